"""A name that somebody else chose is one word of a printed line, whatever it holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tests.inspect import test_doctor_checks as doctor
from tests.shadow import test_refusing as shadow
from timewheel.broker.admin.policies import DelayedDelivery, Policy
from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.core.errors import TopologyError
from timewheel.core.topology import FormerTopic, topology
from timewheel.inspect.doctor import Seen, verdict_on
from timewheel.provision.foreign_settings import (
    delayed_delivery_findings,
    foreign_subscriptions,
    unacknowledged_findings,
)
from timewheel.provision.former_findings import findings_of
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
    "change",
    [change for _, change in OF_SHADOW],
    ids=[f"{slug}-{n}" for n, (slug, _) in enumerate(OF_SHADOW)],
)
def test_every_cure_of_a_shadow_keeps_names_whole(change: shadow.Change) -> None:
    excess = replace(shadow.EXCESS, cure=with_window(shadow.PLAN, 10 * MINUTE_MS))
    for finding in findings_on(renamed(change(shadow.sound())), 30 * DAY_MS, {"encrypted": 7}, excess):
        assert is_safe(finding.cure), finding.cure


def test_remedies_of_provisioning_keep_names_whole() -> None:
    (tier,) = (spec for spec in topology(renamed(doctor.PLAN), 0).topics if spec.role == "tier")
    (foreign,) = foreign_subscriptions(tier, {0: frozenset({HOSTILE})})
    delayed = delayed_delivery_findings(tier, DelayedDelivery(active=False), 1_000)
    with pytest.raises(TopologyError) as stray:
        steps_for(tier, TopicState(partitions=None, subscriptions={}, policies={}, stray=(f"{tier.name}-partition-0",)))
    remedies = [foreign.remedy, *(one.remedy for one in (*delayed, *unacknowledged_findings(tier, 1)))]
    assert all(map(is_safe, remedies))
    assert is_safe(f"pulsar-admin {str(stray.value).partition('pulsar-admin ')[2]}")


def test_a_plan_is_named_whole_in_remedies_though_a_topic_has_the_word_plan_in_its_name() -> None:
    topic = FormerTopic(name="persistent://acme/PLANNING/acme~crm~reminders.tw.tier-6h", backlog=1)
    (found,) = findings_of(doctor.PLAN, [topic], "my plan.toml")
    assert "acme/PLANNING" in found.remedy


@pytest.mark.parametrize(
    "line", [f"pulsar-admin topics unsubscribe {HOSTILE} -s s", "timewheel gaps explain pay$(id)PWNED --subscription s"]
)
def test_a_line_without_quotes_is_found(line: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        assert is_safe(line)
