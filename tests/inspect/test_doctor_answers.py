"""What the doctor reads from a broker whose answers are made up, and how its verdict is written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.inspect.test_doctor_checks import CASES, healthy, namespace, place
from tests.inspect.test_gap_looks import Cluster
from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminUnreachable
from timewheel.core.plan import Plan
from timewheel.errors import NoSuchTarget
from timewheel.inspect.doctor import KINDS, Severity, Unread, inspect_plan, inspect_topic, verdict_on
from timewheel.inspect.doctor.seen import Source
from timewheel.inspect.doctor.verdict import facts_of, junit_of

PLAN = Plan(due_topic="persistent://a/b/t", subscriptions=("s",))
TOPIC = "/persistent/a/b/t"
PART = "/persistent/a/b/t-partition-0"
ANSWERS: dict[str, Any] = {
    "/brokers/configuration/runtime": {},
    "/brokers/configuration": [],
    "/brokers/version": "4.0.7",
    "/bookies/all": {"bookies": [{"bookieId": "1"}, {"bookieId": "2"}, {"bookieId": "3"}]},
    "/namespaces/a/b": {"replication_clusters": ["one"]},
    "/persistent/a/b": ["persistent://a/b/t-partition-0"],
    f"{TOPIC}/partitions": {"partitions": 1},
    f"{PART}/stats": {"subscriptions": {"s": {"type": "Shared", "consumers": []}}, "publishers": []},
    f"{TOPIC}/messageTTL": "0",
    f"{TOPIC}/backlogQuotaMap": {
        "destination_storage": {"limitSize": -1, "limitTime": -1, "policy": "producer_exception"},
        "message_age": {"limitSize": -1, "limitTime": -1, "policy": "producer_exception"},
    },
    f"{TOPIC}/inactiveTopicPolicies": {
        "deleteWhileInactive": False,
        "maxInactiveDurationSeconds": 60,
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    },
}


def slugs(answers: dict[str, Any]) -> list[str]:
    with Cluster(answers).client() as admin:
        return [finding.slug for finding in verdict_on(inspect_plan(admin, PLAN, target="p.toml")).findings]


def test_a_plan_is_read_and_in_order() -> None:
    assert slugs(ANSWERS) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"/brokers/configuration/runtime": 403}, ["not-seen", "not-seen"]),
        ({"/bookies/all": 403}, ["not-seen"]),
        ({f"{TOPIC}/messageTTL": 403}, ["unguarded-topic", "not-seen"]),
        ({f"{PART}/stats": 403}, ["not-seen"]),
        ({"/namespaces/a/b": 403}, ["not-seen"]),
        ({"/namespaces/a/b": 404}, ["missing-namespace"]),
        ({"/persistent/a/b": 403}, ["not-seen"]),
        ({"/persistent/a/b": []}, ["missing-topic", "auto-creation"]),
        ({f"{TOPIC}/messageTTL": "60"}, ["ttl-too-short"]),
    ],
)
def test_what_is_refused_is_told_and_the_rest_goes_on(changes: dict[str, Any], found: list[str]) -> None:
    assert slugs({**ANSWERS, **changes}) == found


def test_a_broker_without_policies_of_topics_is_asked_once() -> None:
    cluster = Cluster({**ANSWERS, f"{TOPIC}/messageTTL": 405})
    with cluster.client() as admin:
        verdict = verdict_on(inspect_plan(admin, PLAN, target="p.toml"))
    assert [finding.slug for finding in verdict.findings] == ["no-topic-policies"]
    assert f"{TOPIC}/retention" not in cluster.asked


def test_what_is_in_force_is_asked_where_the_settings_are_not_known() -> None:
    answers = {**ANSWERS, "/brokers/configuration/runtime": 403}
    answers[f"{TOPIC}/delayedDelivery"] = {"active": False, "tickTime": 1_000}
    answers[f"{TOPIC}/persistence"] = {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    assert {"delays-off", "one-copy-perhaps"} <= set(slugs(answers))


def test_a_topic_that_is_not_there() -> None:
    with Cluster({**ANSWERS, f"{TOPIC}/partitions": 404}).client() as admin, pytest.raises(NoSuchTarget):
        inspect_topic(admin, PLAN.due_topic)


def test_a_partition_stands_for_its_topic() -> None:
    with Cluster(ANSWERS).client() as admin:
        seen = inspect_topic(admin, f"{PLAN.due_topic}-partition-0")
    assert [topic.name for topic in seen.topics] == [PLAN.due_topic]
    assert verdict_on(seen).findings == ()


def test_nobody_answers() -> None:
    with AdminClient("http://127.0.0.1:1", retry_for_s=0) as admin, pytest.raises(AdminUnreachable):
        inspect_plan(admin, PLAN, target="p.toml")


def test_facts_have_all_of_it() -> None:
    facts = facts_of(verdict_on(place(subscription_expiration_time_minutes=5)(healthy())))
    assert (facts["worst"], facts["errors"], facts["warnings"], facts["notes"]) == ("error", 1, 0, 0)
    assert facts["findings"][0]["cure"] == "pulsar-admin namespaces set-subscription-expiration-time acme/crm -t 0"
    assert facts_of(verdict_on(healthy()))["worst"] == "ok"


@pytest.mark.parametrize(("slug", "change"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_a_pipeline_reads_every_verdict(slug: str, change: Any) -> None:
    verdict = verdict_on(change(healthy()))

    suite = ET.fromstring(junit_of(verdict))

    assert suite.get("tests") == str(len(KINDS)) == str(len(suite))
    bad = {finding.slug for finding in verdict.findings if finding.severity > Severity.INFO}
    assert {case.get("name") for case in suite if case.find("failure") is not None} == bad
    assert (slug in bad) == (next(kind for kind in KINDS if kind.slug == slug).severity > Severity.INFO)


def test_what_was_left_out_is_skipped_and_odd_names_are_written() -> None:
    odd = replace(
        healthy(),
        target="a\x00b",
        unread=(Unread(source=Source.TIME, subject="the broker", reason="\x1b[31m"),),
        namespaces={"acme/crm": namespace()},
    )
    suite = ET.fromstring(junit_of(verdict_on(odd)))
    assert suite.get("skipped") == "1"
    assert suite.find("testcase[@name='clock-differs']/skipped") is not None
    assert suite.get("name") == "timewheel doctor a\\x00b"
