"""Printed lines: a name that somebody else chose is one word, and pulsar-admin takes every line of ours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tests.inspect import test_doctor_checks as doctor
from tests.inspect.test_doctor_checks import (
    CASES,
    DUE,
    EVICTING,
    NOW_MS,
    OF_OTHERS,
    OF_SHADOWS,
    OTHERS,
    PLAN,
    SPACE,
    all_of,
    healthy,
    of_others,
    own,
    place,
    settings,
    shadowed,
    stats,
    subscription,
)
from tests.shadow import test_refusing as shadow
from tests.support.checkout import ROOT
from tests.support.pulsar_admin import COMMANDS, lines_in, problem_of
from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    DELAYED_DELIVERY,
    PERSISTENCE,
    DelayedDelivery,
    Persistence,
    Policy,
)
from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.core.errors import TopologyError
from timewheel.core.topology import FormerTopic, topology
from timewheel.inspect.doctor import Seen, verdict_on
from timewheel.provision.foreign_settings import (
    delayed_delivery_findings,
    foreign_subscriptions,
    unacknowledged_findings,
)
from timewheel.provision.former_topics import findings_of
from timewheel.provision.provision_steps import TopicState, steps_for
from timewheel.shadow.curing import with_window
from timewheel.shadow.refusing import findings_on

HOSTILE = "pay$(touch${IFS}PWNED);id>PWNED2;z'\"`id`"
RENAMED = {"reminders": HOSTILE, "acme/crm/others": f"acme/crm/{HOSTILE}"}


def renamed(value: Any) -> Any:
    """The same with every topic under a hostile name."""
    if isinstance(value, str):
        for name, hostile in RENAMED.items():
            value = value.replace(name, hostile)
        return value
    if isinstance(value, Policy):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: renamed(getattr(value, field.name)) for field in fields(value) if field.init}
        return replace(value, **own)
    if isinstance(value, Mapping):
        return {renamed(name): renamed(one) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(renamed, value))
    if isinstance(value, tuple | list | frozenset | set):
        return type(value)(map(renamed, value))
    return value


def operators(line: str) -> set[str]:
    """What a shell would act on; our own sentences have only these in them: ``; ( )``."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return {word for word in words if set(word) <= set("();<>|&") and word} - {";", "(", ")", ");"}


def is_safe(text: str) -> bool:
    """Whether the commands in a remedy split, and no part of a hostile name is outside the word that it is in."""
    begins = re.search(r"(timewheel|pulsar-admin) [a-z]", text)
    if begins is None:
        return True
    words = shlex.split(text[begins.start() :])
    return not operators(text[begins.start() :]) and all(HOSTILE in word for word in words if "PWNED" in word)


SEEN = [
    *((slug, change(doctor.healthy())) for slug, change in doctor.CASES),
    *((slug, change(doctor.of_others())) for slug, change in doctor.OF_OTHERS),
    *((slug, change(doctor.shadowed())) for slug, change in doctor.OF_SHADOWS),
]


@pytest.mark.parametrize("seen", [seen for _, seen in SEEN], ids=[f"{slug}-{n}" for n, (slug, _) in enumerate(SEEN)])
def test_every_cure_of_the_doctor_keeps_names_whole(seen: Seen) -> None:
    for finding in verdict_on(renamed(seen)).findings:
        assert is_safe(finding.cure), finding.cure


OF_SHADOW = [(slug, change) for slug, change in shadow.CASES if slug != "topic-of-timewheel"]
"""No plan can be made of that topic, under whatever name."""


@pytest.mark.parametrize(
    "change", [change for _, change in OF_SHADOW], ids=[f"{slug}-{n}" for n, (slug, _) in enumerate(OF_SHADOW)]
)
def test_every_cure_of_a_shadow_keeps_names_whole(change: shadow.Change) -> None:
    excess = replace(shadow.EXCESS, cure=with_window(shadow.PLAN, 10 * MINUTE_MS))
    for finding in findings_on(renamed(change(shadow.sound())), 30 * DAY_MS, {"encrypted": 7}, excess):
        assert is_safe(finding.cure), finding.cure


def test_remedies_of_provisioning_keep_names_whole() -> None:
    (tier,) = (spec for spec in topology(renamed(doctor.PLAN), 0).topics if spec.role == "tier")
    (foreign,) = foreign_subscriptions(tier, {0: frozenset({HOSTILE})})
    delayed = delayed_delivery_findings(tier.name, DelayedDelivery(active=False), spec=tier, tick_ms=1_000)
    with pytest.raises(TopologyError) as stray:
        steps_for(tier, TopicState(partitions=None, stray=(f"{tier.name}-partition-0",)))
    remedies = [foreign.cure, *(one.cure for one in (*delayed, *unacknowledged_findings(tier, 1)))]
    assert all(map(is_safe, remedies))
    assert is_safe(f"pulsar-admin {str(stray.value).partition('pulsar-admin ')[2]}")


def test_a_plan_is_named_whole_in_remedies_though_a_topic_has_the_word_plan_in_its_name() -> None:
    topic = FormerTopic(name="persistent://acme/PLANNING/acme~crm~reminders.tw.tier-6h", backlog=1)
    (found,) = findings_of(doctor.PLAN, [topic], "my plan.toml")
    assert "acme/PLANNING" in found.cure


@pytest.mark.parametrize(
    "line", [f"pulsar-admin topics unsubscribe {HOSTILE} -s s", "timewheel gaps explain pay$(id)PWNED --subscription s"]
)
def test_a_line_without_quotes_is_found(line: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        assert is_safe(line)


(DUE_SPEC,) = (spec for spec in topology(PLAN, NOW_MS).topics if spec.role == "due")
(TIER,) = (spec for spec in topology(PLAN, NOW_MS).topics if spec.role == "tier")
MORE = [
    all_of(own(PERSISTENCE, None), settings(managedLedgerDefaultWriteQuorum="1", managedLedgerDefaultAckQuorum="1")),
    own(PERSISTENCE, Persistence(ensemble=5, write_quorum=2, ack_quorum=1, mark_deletes_per_s=0.5)),
    own(DELAYED_DELIVERY, DelayedDelivery(active=True, tick_ms=2_000, max_delay_ms=60_000)),
]
"""What the cases of the checks leave out, though it changes the line."""
MORE_OF_OTHERS = [
    own(AGE_QUOTA, EVICTING, OTHERS),
    own(DELAYED_DELIVERY, DelayedDelivery(active=False, tick_ms=250), OTHERS),
    place(backlog_quota_map={"destination_storage": {"limitSize": 1, "policy": "producer_exception"}}),
]
NEVER_A_FINDING = [
    f"pulsar-admin namespaces set-max-unacked-messages-per-consumer {SPACE} -c 5000",  # of `gaps explain`
    f"pulsar-admin topics stats {DUE}",  # of `gaps explain`
    f"pulsar-admin topics lookup {DUE}",  # of a broker that cannot be reached
    f"pulsar-admin topics unload {DUE}",  # of `shadow status`
    f"pulsar-admin topics grant-permission --role ROLE --actions produce {DUE}",  # of a refused role
    f"pulsar-admin tenants create {SPACE.partition('/')[0]}",  # of `topics ensure`, and the next two
    f"pulsar-admin namespaces create {SPACE}",
    f"pulsar-admin topics delete {DUE}-partition-0",
    f"pulsar-admin topicPolicies set-replication-clusters {DUE} -c here",  # of `shadow start`
    f"pulsar-admin topicPolicies remove-deduplication {DUE}",  # of the page on leaving, and the next
    f"pulsar-admin topics delete-partitioned-topic {DUE}",
]
IN_PROSE = re.compile(r"pulsar-admin\s+([a-zA-Z]+)\s+([\w{}-]+)")
IN_CODE = re.compile(r"pulsar_admin\(\s*[\"']([a-zA-Z]+)[\"'],\s*[\"']([\w-]+)[\"']")
FOLDERS = ("timewheel", "docs", "deploy", "monitoring", "examples")
ONLY_TEXT = {("topics", name) for name in ("get-message-by-id", "peek-messages", "skip")} | {("namespaces", "unload")}
"""In the runbook and the pages about security and the broker, with words in place of values."""


def _seen() -> Iterator[Seen]:
    ours = [change(healthy()) for change in (*(change for _, change in CASES), *MORE)]
    others = [change(of_others()) for change in (*(change for _, change in OF_OTHERS), *MORE_OF_OTHERS)]
    shadows = [change(shadowed()) for _, change in OF_SHADOWS]
    for seen in (*ours, *others, *shadows):
        yield seen
        # The other way to change a setting: brokers may take it while they run.
        yield replace(seen, dynamic=frozenset(seen.settings or ()) | {"backlogQuotaDefaultLimitSecond"})


def _printed() -> set[str]:
    lines = {line for seen in _seen() for finding in verdict_on(seen).findings for line in lines_in(finding.cure)}
    refused = DelayedDelivery(active=True, max_delay_ms=60_000), DelayedDelivery(active=False)
    remedies = [
        one.cure
        for delayed in refused
        for one in delayed_delivery_findings(DUE_SPEC.name, delayed, spec=DUE_SPEC, tick_ms=1)
    ]
    remedies += [one.cure for one in unacknowledged_findings(DUE_SPEC, 1)]
    return lines | {line for remedy in remedies for line in lines_in(remedy)}


PRINTED = sorted({*_printed(), *NEVER_A_FINDING})


@pytest.mark.parametrize("line", PRINTED)
def test_a_printed_line_is_taken(line: str) -> None:
    assert problem_of(line) is None


def test_every_command_in_code_and_pages_is_known_and_every_known_one_is_printed() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in {".py", ".md"}]
    texts = [path.read_text(encoding="utf-8") for path in files]
    said = {found for text in texts for form in (IN_PROSE, IN_CODE) for found in form.findall(text)}
    named = {(group, command) for group, command in said if "{" not in command}
    printed = {(line.split()[1], line.split()[2]) for line in PRINTED}
    assert named - ONLY_TEXT <= {*COMMANDS}
    assert printed == {*COMMANDS}
    assert named >= ONLY_TEXT


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"pulsar-admin topicPolicies set-ttl {DUE} -t 0", "no command topicPolicies set-ttl"),
        (f"pulsar-admin topics set-message-ttl {DUE} -t 0", "no command topics set-message-ttl"),
        (f"pulsar-admin topicPolicies set-message-ttl {DUE}", "-t is required"),
        (f"pulsar-admin topicPolicies set-message-ttl {DUE} -t never", "-t never is no value"),
        (f"pulsar-admin topicPolicies set-message-ttl {DUE} -t", "-t  is no value"),
        (f"pulsar-admin topicPolicies set-message-ttl {DUE} -ttl 0", "no option -ttl"),
        (f"pulsar-admin topicPolicies set-message-ttl {SPACE} -t 0", f"it is about {SPACE}"),
        ("pulsar-admin topicPolicies set-message-ttl -t 0", "it is about nothing"),
        (f"pulsar-admin topicPolicies set-deduplication {DUE}", "one of the switches is wanted"),
        (f"pulsar-admin topicPolicies set-delayed-delivery {DUE} -e -d", "one of the switches is wanted"),
        ("pulsar-admin brokers update-dynamic-config --config a --value b c", "it is about c"),
        ("pulsar-admin brokers", "no command"),
    ],
)
def test_what_the_tool_refuses_is_found(line: str, problem: str) -> None:
    assert problem_of(line) == problem


@pytest.mark.parametrize("name", ["it's mine", "a b", "$HOME", "*"])
def test_a_name_reaches_the_tool_whole(name: str) -> None:
    (found,) = foreign_subscriptions(TIER, {0: frozenset({name})})
    assert problem_of(found.cure) is None
    assert shlex.split(found.cure)[3:] == ["-s", name, TIER.name]
    (again,) = [one for one in verdict_on(_blocked(name)).findings if one.slug == "blocked-subscription"]
    assert shlex.split(again.cure)[-2:] == ["--subscription", name]


def _blocked(name: str) -> Seen:
    return stats(subscriptions={name: subscription("Shared", blocked=True)})(healthy())


def test_a_line_ends_where_the_sentence_goes_on() -> None:
    text = f"stop it, or pulsar-admin namespaces create {SPACE}, or wait; then: pulsar-admin topics delete {DUE}"
    assert list(lines_in(text)) == [f"pulsar-admin namespaces create {SPACE}", f"pulsar-admin topics delete {DUE}"]
