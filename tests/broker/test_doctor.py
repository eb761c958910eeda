"""The doctor on a real broker: each fault is made, found, and gone once its cure was applied."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pulsar
import pytest

from tests.broker.due_topic import ShiftedClock, now_ms
from tests.support.command_line import timewheel, well
from tests.support.own_broker import BUCKETS, own_broker
from tests.support.raw_producer import RawProducer, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    DEDUPLICATION,
    DELAYED_DELIVERY,
    INACTIVE_TOPIC,
    MAX_MESSAGE_BYTES,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MESSAGE_TTL_S,
    PAUSE_ON_ACK_STATE,
    PERSISTENCE,
    RETENTION,
    SIZE_QUOTA,
    SUBSCRIPTION_EXPIRY_MIN,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopic,
    Persistence,
    Retention,
)
from timewheel.broker.protocol.wire import data_field
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION, STATE_PROPERTY, Names, partition_topic
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.inspect.doctor import Finding, Severity, Verdict, fix, inspect_plan, inspect_topic, verdict_on
from timewheel.inspect.doctor.checks.relays import SHADOWS
from timewheel.provision.provisioning import ensure
from timewheel.relay import Relay
from timewheel.relay.driver.hop_producers import producer_name
from timewheel.testing import LocalPulsar, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.conftest import Connect
    from timewheel.testing import Broker

TIERED = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,))
SETTLE_S = 60.0
OF_SHADOWS = {kind.slug for check in SHADOWS for kind in check.kinds} | {"wrong-subscription-type"}
NOTES = {"one-bookie", "no-relay-yet"}  # True of a single bookie, and of a plan whose relays were not started


@dataclass
class Setup:
    """A plan of a test's own, provisioned, and the ways to break it."""

    admin: AdminClient
    client: Any
    plan: Plan
    namespace: str

    @property
    def due(self) -> str:
        return self.plan.due_topic

    @property
    def tier(self) -> str:
        return f"{self.due}.tw.tier-1h"

    def verdict(self) -> Verdict:
        return verdict_on(inspect_plan(self.admin, self.plan, target="plan.toml"))

    def slugs(self) -> set[str]:
        return {finding.slug for finding in self.verdict().findings}

    def found(self, slug: str) -> Finding:
        return next(finding for finding in self.verdict().findings if finding.slug == slug)

    def topic_policy(self, policy: Any, value: Any, topic: str | None = None) -> None:
        name = topic or self.due
        self.admin.topic_policies.set(name, policy, value)
        if policy is not PAUSE_ON_ACK_STATE:
            self.admin.topic_policies.await_value(name, policy, value)

    def namespace_policy(self, policy: Any, value: Any) -> None:
        self.admin.namespaces.set_policy(self.namespace, policy, value)

    def call(self, method: str, path: str, body: Any = None) -> None:
        self.admin._http.call(method, path.replace("NAMESPACE", self.namespace), body=body)

    def type_in(self, line: str, folder: Path, broker: Broker) -> None:
        """Run a printed line as it stands, where the plan's file is."""
        save_plan(self.plan, folder / "plan.toml")
        program, *arguments = shlex.split(line)
        assert program == "timewheel"
        well(timewheel(*arguments, cwd=folder, env={**os.environ, "PULSAR_ADMIN_URL": broker.admin_url}))

    def provision(self) -> None:
        ensure(self.admin, self.plan, now_ms=SystemClock().now_ms(), ignore_former_topics=True)


def make(admin: AdminClient, client: Any, scheme: Scheme = TIERED, **options: Any) -> Setup:
    tenant = f"doctor-{uuid.uuid4().hex[:8]}"
    assert admin.tenants.create(tenant)
    assert admin.namespaces.create(f"{tenant}/crm")
    due = f"persistent://{tenant}/crm/reminders"
    plan = Plan(due_topic=due, subscriptions=("billing",), scheme=scheme, max_delay_ms=30 * DAY_MS, **options)
    setup = Setup(admin, client, plan, f"{tenant}/crm")
    setup.provision()
    return setup


@pytest.fixture
def setup(admin: AdminClient, pulsar_client: Any) -> Setup:
    return make(admin, pulsar_client)


@pytest.mark.parametrize(
    "scheme",
    [
        Native(),
        TIERED,
        replace(TIERED, hold="broker"),
        Calendar(interval_ms=15 * DAY_MS),
        Wheel(rings=(Ring(slot_ms=8 * DAY_MS, slots=6),)),
    ],
    ids=["native", "tiered", "held by the broker", "calendar", "wheel"],
)
def test_a_healthy_setup_has_notes_only(admin: AdminClient, pulsar_client: Any, scheme: Scheme) -> None:
    verdict = make(admin, pulsar_client, scheme).verdict()
    assert {finding.slug for finding in verdict.findings} <= NOTES
    assert verdict.worst is Severity.INFO
    assert verdict.left_out == ()


Change = Callable[[Setup], object]


def policy(kind: Any, value: Any, *, of_tier: bool = False) -> Change:
    return lambda setup: setup.topic_policy(kind, value, setup.tier if of_tier else None)


def unset(kind: Any, *, of_tier: bool = False) -> Change:
    return lambda setup: setup.admin.topic_policies.remove(setup.tier if of_tier else setup.due, kind)


def of_namespace(kind: Any, value: Any) -> Change:
    return lambda setup: setup.namespace_policy(kind, value)


def posted(path: str, body: Any) -> Change:
    return lambda setup: setup.call("POST", f"/namespaces/NAMESPACE/{path}", body)


def planned(**changes: Any) -> Change:
    return lambda setup: setattr(setup, "plan", replace(setup.plan, **changes))


def both(*changes: Change) -> Change:
    def change(setup: Setup) -> None:
        for one in changes:
            one(setup)

    return change


def provision(setup: Setup) -> None:
    setup.provision()


def quota(**options: Any) -> BacklogQuota:
    return BacklogQuota(action="producer_exception", **options)


def delays(**options: Any) -> Change:
    return policy(DELAYED_DELIVERY, DelayedDelivery(**{"active": True, **options}))


def bounds(most: int) -> Change:
    return both(policy(MAX_UNACKED_PER_CONSUMER, most), policy(MAX_UNACKED_PER_SUBSCRIPTION, most))


def bookies(count: int) -> Change:
    return of_namespace(PERSISTENCE, Persistence(ensemble=count, write_quorum=count, ack_quorum=1))


def not_kept(setup: Setup) -> None:
    for suffix in ("", ".tw.tier-1h", ".tw.dead-letter"):
        setup.topic_policy(RETENTION, Retention(time_min=0, size_mb=0), setup.due + suffix)


EVICTING = BacklogQuota(limit_bytes=10**9, action="consumer_backlog_eviction")
CAUGHT_UP = InactiveTopic(delete=True, mode="delete_when_subscriptions_caught_up")
FAULTS: dict[str, list[tuple[str, Change, Change]]] = {
    "policies of topics": [
        ("delays-off", delays(active=False), delays()),
        ("ttl-too-short", policy(MESSAGE_TTL_S, 60, of_tier=True), policy(MESSAGE_TTL_S, 0, of_tier=True)),
        ("quota-drops", policy(SIZE_QUOTA, EVICTING, of_tier=True), provision),
        ("quota-too-short", policy(AGE_QUOTA, quota(limit_s=60)), provision),
        (
            "removed-when-caught-up",
            policy(INACTIVE_TOPIC, CAUGHT_UP),
            policy(INACTIVE_TOPIC, InactiveTopic(delete=False)),
        ),
        ("pauses-at-the-limit", policy(PAUSE_ON_ACK_STATE, value=True), unset(PAUSE_ON_ACK_STATE)),
        (
            "message-size-differs",
            policy(MAX_MESSAGE_BYTES, 1_000_000, of_tier=True),
            unset(MAX_MESSAGE_BYTES, of_tier=True),
        ),
        (
            "foreign-subscription",
            lambda setup: setup.admin.subscriptions.create(setup.tier, "curious"),
            lambda setup: setup.admin.subscriptions.delete(setup.tier, "curious"),
        ),
        ("no-deduplication", policy(DEDUPLICATION, value=False), policy(DEDUPLICATION, value=True)),
        ("few-unacknowledged", bounds(1_000), bounds(50_000)),
    ],
    "a namespace": [
        ("delay-too-long", delays(max_delay_ms=60_000), delays(max_delay_ms=0)),
        ("subscription-expiry", of_namespace(SUBSCRIPTION_EXPIRY_MIN, 30), of_namespace(SUBSCRIPTION_EXPIRY_MIN, 0)),
        ("ttl-beyond-stay", both(unset(MESSAGE_TTL_S), of_namespace(MESSAGE_TTL_S, 864_000)), policy(MESSAGE_TTL_S, 0)),
        ("quota-blocks", both(unset(SIZE_QUOTA), of_namespace(SIZE_QUOTA, quota(limit_bytes=10**9))), provision),
        ("schemas-enforced", posted("schemaValidationEnforced", True), posted("schemaValidationEnforced", False)),
        ("schemas-frozen", posted("isAllowAutoUpdateSchema", False), posted("isAllowAutoUpdateSchema", True)),
    ],
    "what is lacking": [
        (
            "missing-partition",
            lambda setup: setup.admin.topics.delete_unpartitioned(partition_topic(setup.tier, 0)),
            provision,
        ),
        ("missing-subscription", lambda setup: setup.admin.subscriptions.delete(setup.due, "billing"), provision),
        ("unguarded-topic", unset(MESSAGE_TTL_S), provision),
        ("kept-for-ever", of_namespace(RETENTION, Retention(time_min=-1, size_mb=-1)), not_kept),
    ],
    "bookies and tick": [
        ("too-few-bookies", bookies(2), bookies(1)),
        ("tick-differs", delays(tick_ms=2_000), planned(tick_ms=2_000)),
    ],
    "a topic that is gone": [
        (
            "auto-creation",
            lambda setup: setup.admin.topics.delete(setup.tier, force=True),
            posted("autoTopicCreation", {"allowAutoTopicCreation": False}),
        ),
        ("missing-topic", lambda setup: setup.admin.topics.delete(setup.tier), provision),
    ],
    "another number of partitions": [("topic-in-the-way", planned(partitions=2), planned(partitions=1))],
}
"""Faults of a setup have nothing to do with each other; what `topics ensure` calls an error is cured first."""


@pytest.mark.parametrize("group", FAULTS)
def test_a_fault_is_found_and_its_cure_cures_it(
    setup: Setup, pulsar_broker: Broker, group: str, tmp_path: Path
) -> None:
    faults = FAULTS[group]
    slugs = {slug for slug, _, _ in faults}
    assert not slugs & setup.slugs()

    for _, fault, _ in faults:
        fault(setup)
    eventually(lambda: slugs <= setup.slugs(), SETTLE_S, message=f"all of {slugs} are found")

    for slug, _, cure in faults:
        seen = {finding.slug: finding for finding in setup.verdict().findings}
        if slug not in seen:
            continue  # cured with another one
        printed = seen[slug].cure
        if printed.startswith("timewheel "):
            setup.type_in(printed, tmp_path, pulsar_broker)
        else:
            # For pulsar-admin, or for a hand: what it asks for, by the admin API.
            cure(setup)
        eventually(lambda: slug not in setup.slugs(), SETTLE_S, message=f"{slug} is gone")  # noqa: B023 - called before the next
    assert not slugs & setup.slugs()


def test_what_can_be_fixed_is_fixed_and_stays_so(setup: Setup) -> None:
    setup.topic_policy(MESSAGE_TTL_S, 60, setup.tier)
    setup.topic_policy(DELAYED_DELIVERY, DelayedDelivery(active=False))
    setup.admin.subscriptions.delete(setup.due, "billing")
    before = setup.verdict()
    assert {"ttl-too-short", "delays-off", "missing-subscription"} <= {finding.slug for finding in before.findings}

    done = fix(setup.admin, setup.plan, before.findings)

    assert {str(step) for step in done} == {
        "set messageTTL = 0 (never)",
        "create subscription billing at earliest",
        f"set delayedDelivery = {DelayedDelivery(active=True)}",
    }
    after = setup.verdict()
    assert {finding.slug for finding in after.findings} <= NOTES
    assert fix(setup.admin, setup.plan, after.findings) == ()


def test_a_namespace_that_is_missing(admin: AdminClient) -> None:
    tenant = f"doctor-{uuid.uuid4().hex[:8]}"
    admin.tenants.create(tenant)
    plan = Plan(due_topic=f"persistent://{tenant}/crm/reminders", subscriptions=("billing",))

    def verdict() -> Verdict:
        return verdict_on(inspect_plan(admin, plan, target="plan.toml"))

    (finding,) = [one for one in verdict().findings if one.severity is Severity.ERROR]
    assert (finding.slug, finding.cure) == (
        "missing-namespace",
        "timewheel topics ensure plan.toml --create-namespaces",
    )
    ensure(admin, plan, now_ms=SystemClock().now_ms(), create_namespaces=True)
    assert verdict().worst is Severity.INFO


def test_timers_of_an_earlier_plan(setup: Setup) -> None:
    former = f"{setup.due}.tw.tier-9h"
    setup.admin.topics.create(former, 1)
    setup.admin.subscriptions.create(former, "timewheel-relay")
    setup.client.create_producer(partition_topic(former, 0)).send(b"timer")

    assert "left-behind" in setup.slugs()
    setup.plan = replace(setup.plan, relay="service")
    assert "former-topic" in setup.slugs()
    assert setup.found("former-topic").cure.endswith("timewheel topics ensure plan.toml --remove-drained")
    setup.admin.subscriptions.clear(former, "timewheel-relay")
    eventually(lambda: not {"former-topic", "left-behind"} & setup.slugs(), SETTLE_S)


def test_relays_that_are_absent_late_alone(setup: Setup) -> None:
    assert "no-relay-yet" in setup.slugs()
    now_ms = SystemClock().now_ms()
    # It entered an hour and four minutes ago: the guard is five minutes.
    properties = Envelope.first_properties("bill-7", now_ms + HOUR_MS, now_ms - HOUR_MS - 240_000, 1)
    setup.client.create_producer(partition_topic(setup.tier, 0)).send(b"", properties=properties)

    found = {finding.slug: finding for finding in setup.verdict().findings}
    read = r"1 entry waits in 1 of 1 partition, the first due in (5\d\S* min|1 h); no relay is connected"
    assert re.fullmatch(read, found["no-relay"].read)
    assert found["relay-behind"].read.startswith(f"timer bill-7 should have left {setup.tier}-partition-0 4")
    setup.plan = replace(setup.plan, guard_ms=60_000)
    assert "relay-late" in setup.slugs()

    relay = setup.client.subscribe(
        partition_topic(setup.tier, 0), "timewheel-relay", consumer_type=pulsar.ConsumerType.Failover
    )
    eventually(lambda: "no-standby" in setup.slugs(), SETTLE_S)
    assert "no-relay" not in setup.slugs()
    relay.acknowledge_cumulative(relay.receive(10_000))
    eventually(lambda: not {"relay-late", "no-relay"} & setup.slugs(), SETTLE_S)
    relay.close()


def test_beside_a_relay_that_works_by_another_plan_the_cure_is_to_restart_it_and_cures(setup: Setup) -> None:
    setup.plan = replace(setup.plan, relay="service", holding_namespace=f"{setup.namespace}-holding")
    setup.admin.namespaces.create(f"{setup.namespace}-holding")
    setup.provision()
    earlier = replace(setup.plan, holding_namespace=None)
    ensure(setup.admin, earlier, now_ms=SystemClock().now_ms(), ignore_former_topics=True)
    now_ms = SystemClock().now_ms()
    waiting = Envelope.first_properties("bill-7", now_ms + HOUR_MS, now_ms - HOUR_MS - 240_000, 1)
    (tier,) = (spec.name for spec in topology(setup.plan, now_ms).topics if spec.role == "tier")
    setup.client.create_producer(partition_topic(tier, 0)).send(b"", properties=waiting)

    relay = Relay(setup.client, earlier, relay_id="by-the-earlier-plan")
    relay.start()
    eventually(lambda: "relay-elsewhere" in setup.slugs(), SETTLE_S)
    found = setup.found("relay-elsewhere")
    assert "no-relay" not in setup.slugs()
    assert "relay by-the-earlier-plan reads " in found.read
    assert found.cure == ("see the log of relay by-the-earlier-plan; then restart it: timewheel relay run plan.toml")
    relay.stop()
    assert "no-relay" in setup.slugs()

    again = Relay(setup.client, setup.plan, relay_id="by-the-earlier-plan")
    again.start()
    eventually(lambda: not {"relay-elsewhere", "no-relay", "relay-late"} & setup.slugs(), SETTLE_S)
    again.stop()


class WrongClock(RawProducer):
    """A producer whose clock is ahead of this machine's, or behind it, by so much: clients use their machine's time."""

    def __init__(self, service_url: str, topic: str, name: str, *, off_ms: int = 0, client: str = "raw") -> None:
        super().__init__(service_url, topic, name=name, client=client)
        self._name, self._off_ms, self._numbers = name, off_ms, itertools.count()

    @property
    def address(self) -> str:
        """The client's address, as the broker reports it."""
        host, port = self._socket.getsockname()
        return f"/{host}:{port}"

    def publish(self, *, replicated_from: str | None = None) -> None:
        """Store a message with this clock's time; optionally as if replicated from another cluster."""
        more = data_field(1, self._name) + (data_field(5, replicated_from) if replicated_from else b"")
        at_ms = now_ms() + self._off_ms
        self.send(metadata_of(sequence_id=next(self._numbers), publish_ms=at_ms, more=more), b"x")


def test_a_client_that_says_how_old_it_is(pulsar_broker: Broker, setup: Setup) -> None:
    part = partition_topic(setup.due, 0)
    setup.client.create_producer(part)
    assert "old-client" not in setup.slugs(), "this one is as new as it should be"
    with WrongClock(pulsar_broker.service_url, part, "veteran", client="Pulsar-CPP-v3.7.1"):
        assert setup.found("old-client").read == "Pulsar-CPP-v3.7.1: veteran"
    eventually(lambda: "old-client" not in setup.slugs(), SETTLE_S)


def test_consumers_of_a_wrong_type_or_with_too_much_in_hand(setup: Setup) -> None:
    setup.topic_policy(MAX_UNACKED_PER_SUBSCRIPTION, 10)
    part = partition_topic(setup.due, 0)
    wrong = setup.client.subscribe(setup.due, "billing", consumer_name="worker-1")
    eventually(lambda: "wrong-subscription-type" in setup.slugs(), SETTLE_S)
    assert setup.found("wrong-subscription-type").read == (
        f"billing is Exclusive on {part} (worker-1), not Key_Shared or Shared"
    )
    wrong.close()
    consumer = setup.client.subscribe(setup.due, "billing", consumer_type=pulsar.ConsumerType.Shared)
    assert "wrong-subscription-type" not in setup.slugs()

    producer = setup.client.create_producer(part, batching_enabled=False)
    for _ in range(20):
        producer.send(b"")
    eventually(lambda: "blocked-subscription" in setup.slugs(), SETTLE_S)
    for _ in range(20):
        consumer.acknowledge(consumer.receive(10_000))
    eventually(lambda: "blocked-subscription" not in setup.slugs(), SETTLE_S)
    consumer.close()


def test_clocks_that_differ(pulsar_broker: Broker, setup: Setup) -> None:
    setup.client.create_producer(partition_topic(setup.due, 0), producer_name="right").send(b"")
    assert setup.slugs() <= NOTES
    with AdminClient(pulsar_broker.admin_url, clock=ShiftedClock(-HOUR_MS)) as late:
        found = {
            finding.slug: finding for finding in verdict_on(inspect_plan(late, setup.plan, target="p.toml")).findings
        }
    assert "its clock is 1 h ahead of this machine's; 1m is allowed" in found["clock-differs"].read
    assert not found.keys() & {"producer-ahead", "producer-behind"}, "it is this machine's clock that is off"


def test_producers_whose_clocks_are_certainly_wrong(pulsar_broker: Broker, setup: Setup) -> None:
    hour = partition_topic(setup.due, 0)
    with WrongClock(pulsar_broker.service_url, hour, "early-bird", off_ms=HOUR_MS) as early:
        early.publish()
        found = setup.found("producer-ahead")
        address = re.escape(early.address)
    assert re.search(
        rf"producer early-bird \({address}\) is at least (59\S* min|1 h) ahead of the broker's", found.read
    )

    with WrongClock(pulsar_broker.service_url, hour, "late-riser", off_ms=-HOUR_MS) as late:
        late.publish()  # into a ledger that was begun after this time, by the clock of the broker
        found = setup.found("producer-behind")
        late.publish(replicated_from="elsewhere")  # where it may have waited
        assert "producer-behind" not in setup.slugs()
        assert re.search(r"late-riser .* is at least (59\S* min|1 h) behind the broker's", found.read)
    with WrongClock(pulsar_broker.service_url, hour, "waited", off_ms=-80_000) as waited:
        waited.publish()  # it may have waited for half a minute in its client, and a minute is allowed
        assert not setup.slugs() & {"producer-ahead", "producer-behind"}


def test_a_producer_that_sends_while_the_doctor_looks_is_known_to_be_behind(
    admin: AdminClient, pulsar_broker: Broker, setup: Setup
) -> None:
    """Its ledger is older than what it says: only that its message was not there yet tells."""
    part = partition_topic(setup.due, 0)
    before = setup.client.create_producer(part)
    before.send(b"")
    with WrongClock(pulsar_broker.service_url, part, "late-riser", off_ms=-2 * HOUR_MS) as late:
        topics = _Sending(admin.topics, late)
        seen = inspect_plan(_With(admin, topics), setup.plan, target="p.toml")  # type: ignore[arg-type]

    (due,) = (topic for topic in seen.topics if topic.name == setup.due)
    later = due.parts[0].later
    assert later is not None
    assert (later.producer, later.ledger_since_ms) == ("late-riser", None)
    assert "producer-behind" in {finding.slug for finding in verdict_on(seen).findings}


class _With:
    """A client with other topics."""

    def __init__(self, admin: AdminClient, topics: Any) -> None:
        self._admin, self.topics = admin, topics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)


class _Sending:
    """The topics, and a producer that sends whenever an entry was looked at."""

    def __init__(self, topics: Any, producer: WrongClock) -> None:
        self._topics, self._producer = topics, producer

    def entry(self, *place: Any) -> Any:
        found = self._topics.entry(*place)
        self._producer.publish()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics, name)


def test_a_stranger_among_the_relays_is_named(setup: Setup) -> None:
    curious = setup.client.subscribe(
        partition_topic(setup.tier, 0),
        RELAY_SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Failover,
        consumer_name="curious",
    )
    spy = setup.client.subscribe(partition_topic(setup.tier, 0), "spies", consumer_name="spy")
    found = setup.found("foreign-consumer")
    assert re.search(r"no relay: curious at /127\.0\.0\.1:\d+$", found.read)
    assert re.search(r"'spies' is not timewheel's.*; connected: spy at /127", setup.found("foreign-subscription").read)
    for consumer in (curious, spy):
        consumer.close()
    with Relay(setup.client, setup.plan) as relay:
        eventually(lambda: relay.ready, SETTLE_S)
        assert "foreign-consumer" not in setup.slugs()


def test_a_shadow_is_seen_with_its_state_its_lifter_and_its_journal(admin: AdminClient, pulsar_client: Any) -> None:
    setup = make(admin, pulsar_client, relay="service", readers="any", intake=True)
    journal = Names(setup.plan).journal
    assert setup.slugs() & OF_SHADOWS == set()
    admin.topics.update_properties(journal, {STATE_PROPERTY: f"shadowing {SystemClock().now_ms()}"})
    assert "no mover writes into 1 of 1 partition" in setup.found("nobody-moves").read
    mover = pulsar_client.create_producer(
        partition_topic(journal, 0), producer_name="tw|move|doctors/crm/reminders-partition-0||-1|"
    )
    mover.send(b"a copy")
    other = pulsar_client.create_producer(
        partition_topic(setup.due, 0),
        producer_name=producer_name(partition_topic(setup.tier, 0), partition_topic(setup.due, 0), -1, "0123456789ab"),
    )
    audit = pulsar_client.subscribe(setup.due, "audit", consumer_type=pulsar.ConsumerType.Failover)
    seen = inspect_plan(admin, setup.plan, target="plan.toml")
    (part,) = next(topic for topic in seen.topics if topic.name == journal).parts
    assert part.journal_since_ms is not None
    assert 0 <= SystemClock().now_ms() - part.journal_since_ms < 600_000
    assert {finding.slug for finding in verdict_on(seen).findings} & (OF_SHADOWS | {"no-relay"}) == {
        "movers-differ", "unnamed-subscription", "wrong-subscription-type", "no-relay",
    }  # fmt: skip
    in_two_hours = replace(seen, at_ms=seen.at_ms + 3 * HOUR_MS)
    assert "journal-is-old" in {finding.slug for finding in verdict_on(in_two_hours).findings}
    for one in (mover, other, audit):
        one.close()
    setup.call("DELETE", "/persistent/NAMESPACE/reminders.tw.journal-partition-0?force=true")
    assert "journal-removed" in setup.slugs()


def test_anyones_topic(admin: AdminClient, pulsar_client: Any, setup: Setup) -> None:
    topic = f"persistent://{setup.namespace}/others"
    admin.topics.create_unpartitioned(topic)

    def slugs() -> set[str]:
        return {finding.slug for finding in verdict_on(inspect_topic(admin, topic)).findings}

    assert slugs() == {"nobody-subscribed", "one-bookie"}
    admin.subscriptions.create(topic, "s")
    assert slugs() == {"one-bookie"}
    consumer = pulsar_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    pulsar_client.create_producer(topic).send(b"", deliver_at=SystemClock().now_ms() + HOUR_MS)
    setup.namespace_policy(MESSAGE_TTL_S, 864_000)
    setup.namespace_policy(SIZE_QUOTA, quota(limit_bytes=10**9))
    eventually(lambda: {"ttl-over-delays", "quota-blocks"} <= slugs(), SETTLE_S)
    admin.topic_policies.set(topic, MESSAGE_TTL_S, 0)
    admin.namespaces.remove_policy(setup.namespace, SIZE_QUOTA)
    eventually(lambda: slugs() == {"one-bookie"}, SETTLE_S)
    consumer.close()


def run(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return timewheel("doctor", *arguments, "--admin-url", broker.admin_url)


def test_the_command(pulsar_broker: Broker, setup: Setup, tmp_path: Path) -> None:
    plan, junit = tmp_path / "plan.toml", tmp_path / "doctor.xml"
    save_plan(setup.plan, plan)
    setup.topic_policy(MESSAGE_TTL_S, 60)

    broken = run(pulsar_broker, str(plan), "--json", "--junit", str(junit))
    assert broken.returncode == 4, broken.stderr
    (error,) = [one for one in json.loads(broken.stdout)["findings"] if one["severity"] == "error"]
    assert (error["slug"], error["subject"]) == ("ttl-too-short", setup.due)
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    assert suite.find("testcase[@name='ttl-too-short']/failure") is not None
    told = run(pulsar_broker, str(plan))
    assert f"cure  pulsar-admin topicPolicies set-message-ttl {setup.due} -t 0" in told.stdout

    fixed = well(run(pulsar_broker, str(plan), "--fix"))
    assert f"fixed: {setup.due}: set messageTTL = 0 (never)" in fixed.stdout

    setup.admin.subscriptions.create(setup.tier, "curious")
    assert run(pulsar_broker, str(plan)).returncode == 3
    assert run(pulsar_broker, str(plan), "--fail-at", "error").returncode == 0
    nobody = run(pulsar_broker, "public/default/nobody")
    assert (nobody.returncode, "there is no such topic" in nobody.stderr) == (1, True)
    assert run(pulsar_broker, "public/default/nobody", "--fix").returncode == 2


BROKEN = {
    "ttlDurationDefaultInSeconds": "60",
    "backlogQuotaDefaultLimitBytes": "1000000",
    "backlogQuotaDefaultLimitSecond": "60",
    "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
    "subscriptionExpirationTimeMinutes": "7",
    "brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up",
    "delayedDeliveryMaxDelayInMillis": "60000",
    "delayedDeliveryTickTimeMillis": "500",
    "delayedDeliveryTrackerFactoryClassName": BUCKETS["delayedDeliveryTrackerFactoryClassName"],
    "delayedDeliveryMaxNumBuckets": "50",
    "managedLedgerMaxUnackedRangesToPersist": "400000",
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "100000",
    "managedLedgerPersistIndividualAckAsLongArray": "false",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "100000",
    "brokerDeduplicationMaxNumberOfProducers": "50",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "5",
    "brokerDeduplicationEntriesInterval": "10",  # after so many entries the broker writes down which names it knows
    "isSchemaValidationEnforced": "true",
    "maxUnackedMessagesPerConsumer": "1000",
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
}
OF_BROKER = {
    "subscription-expiry",
    "delay-too-long",
    "tick-differs",
    "tracker-merges",
    "cursor-too-large",
    "cursor-fills-metadata-store",
    "endless-ledgers",
    "few-producer-names",
    "producer-names-forgotten-soon",
    "schemas-enforced",
    "few-unacknowledged",
    "pauses-at-the-limit",
    "early-for-others",
    "detection-of-fixed-delays",
}
OF_UNGUARDED = {"ttl-too-short", "quota-drops", "removed-when-caught-up", "unguarded-topic"}


@pytest.mark.short
def test_a_broker_of_bad_settings_and_the_same_one_cured(connect: Connect) -> None:
    with own_broker(BROKEN) as broker, AdminClient(broker.admin_url) as admin:
        setup = make(admin, connect(broker), readers="any")
        assert setup.slugs() >= OF_BROKER
        assert not OF_UNGUARDED & setup.slugs(), "the topics' own policies beat the broker's"
        assert "producer-names-full" not in setup.slugs()
        for number in range(40):  # of 50
            producer = setup.client.create_producer(partition_topic(setup.due, 0), producer_name=f"job-{number}")
            producer.send(b"")
            producer.close()
        last = setup.client.create_producer(partition_topic(setup.due, 0), producer_name="job-40")
        for _ in range(10):
            last.send(b"")
        eventually(lambda: "producer-names-full" in setup.slugs(), SETTLE_S)
        for kind in (MESSAGE_TTL_S, SIZE_QUOTA, AGE_QUOTA, INACTIVE_TOPIC):
            admin.topic_policies.remove(setup.due, kind)
        eventually(lambda: setup.slugs() >= OF_UNGUARDED, SETTLE_S)
        setup.provision()

        verdict = setup.verdict()
        cures = {finding.slug: finding.cure for finding in verdict.findings}
        dynamic = re.fullmatch(
            r"pulsar-admin brokers update-dynamic-config --config (\w+) --value (\w+)", cures["pauses-at-the-limit"]
        )
        assert dynamic is not None
        admin.brokers.set_dynamic(dynamic[1], dynamic[2])
        eventually(lambda: "pauses-at-the-limit" not in setup.slugs(), SETTLE_S)
        setup.namespace_policy(SUBSCRIPTION_EXPIRY_MIN, 0)
        setup.topic_policy(MAX_UNACKED_PER_CONSUMER, 50_000)
        setup.topic_policy(DELAYED_DELIVERY, DelayedDelivery(active=True, tick_ms=500))
        setup.plan = replace(setup.plan, tick_ms=500)
        left = {"subscription-expiry", "few-unacknowledged", "delay-too-long", "tick-differs"}
        eventually(lambda: not left & setup.slugs(), SETTLE_S)
        written = dict(
            line
            for finding in verdict.findings
            for line in re.findall(r"^write (\w+)=(\S+) into broker.conf", finding.cure)
        )
        assert len(written) == 9

    with own_broker({**BROKEN, **written}) as broker, AdminClient(broker.admin_url) as admin:
        cured = make(admin, connect(broker), readers="any").slugs()
    assert cured & OF_BROKER == {
        "subscription-expiry", "delay-too-long", "tick-differs", "few-unacknowledged", "pauses-at-the-limit",
    }, "those whose cure is no line of broker.conf"  # fmt: skip


MERGING = {**BUCKETS, "delayedDeliveryMaxNumBuckets": "4"}  # a broker that merges buckets all the time
LONGEST_DELAY_S = 12
MERGING_ROUNDS = 8


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_merged_buckets_leave_due_timers_and_the_doctor_names_them(connect: Connect) -> None:
    with own_broker(MERGING) as broker, AdminClient(broker.admin_url) as admin:
        setup = make(admin, connect(broker), scheme=Native(), partitions=8)
        assert "tracker-merges" in setup.slugs()
        consumers = [
            setup.client.subscribe(
                partition_topic(setup.due, number), "billing", consumer_type=pulsar.ConsumerType.Shared,
                message_listener=lambda consumer, message: consumer.acknowledge(message),
            )
            for number in range(8)
        ]  # fmt: skip
        producers = [setup.client.create_producer(partition_topic(setup.due, number)) for number in range(8)]
        choices = random.Random(1)
        for _ in range(MERGING_ROUNDS):
            for _ in range(50):
                for producer in producers * 10:
                    producer.send_async(b"", None, deliver_at=now_ms() + choices.randint(3_000, LONGEST_DELAY_S * 1000))
                time.sleep(0.3)
            time.sleep(LONGEST_DELAY_S + 5)
            if "tracker-stands-still" in setup.slugs():
                break
        if not broker.version.startswith("4.0."):
            assert "tracker-stands-still" not in setup.slugs()
            return
        found = [one for one in setup.verdict().findings if one.slug == "tracker-stands-still"]
        assert found
        for one in found:  # as its cure says
            admin.topics.unload(one.subject)
        eventually(lambda: "tracker-stands-still" not in setup.slugs(), SETTLE_S)
        eventually(lambda: sum(topic_backlogs(setup)) == 0, SETTLE_S)
        for consumer in consumers:
            consumer.close()


def topic_backlogs(setup: Setup) -> list[int]:
    stats = setup.admin.topics.partitioned_stats(setup.due, precise_backlog=True)
    return [part.subscriptions["billing"].backlog for part in stats.partitions.values()]


@pytest.mark.short
def test_a_broker_that_forgets_and_has_no_policies_of_topics(connect: Connect) -> None:
    few = {
        "managedLedgerMaxUnackedRangesToPersist": "50",
        "managedLedgerPersistIndividualAckAsLongArray": "true",
        "managedLedgerMaxEntriesPerLedger": "20",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "topicLevelPoliciesEnabled": "false",
        "delayedDeliveryFixedDelayDetectionLookahead": "100",
    }
    with own_broker(few) as broker, AdminClient(broker.admin_url) as admin:
        topic = "persistent://public/default/mixed"
        admin.topics.create(topic, 1)
        admin.subscriptions.create(topic, "s")
        client = connect(broker)
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(partition_topic(topic, 0), batching_enabled=False)
        later_ms = time.time_ns() // 1_000_000 + HOUR_MS

        def gaps(count: int) -> None:
            for number in range(2 * count):
                producer.send_async(b"", None, deliver_at=later_ms if number % 2 else None)
            producer.flush()
            for _ in range(count):
                consumer.acknowledge(consumer.receive(10_000))

        def slugs() -> set[str]:
            return {finding.slug for finding in verdict_on(inspect_topic(admin, topic)).findings}

        gaps(45)  # of 50; an unload would forget none of them yet
        eventually(lambda: "many-gaps" in slugs(), SETTLE_S)
        assert "forgets-acknowledgements" not in slugs()
        gaps(155)
        wanted = {"forgets-acknowledgements", "low-gap-limit", "small-ledgers", "due-topic-starves"}
        eventually(lambda: wanted <= slugs(), SETTLE_S)
        assert "many-gaps" not in slugs()
        admin.namespaces.set_policy("public/default", PAUSE_ON_ACK_STATE, value=True)
        eventually(lambda: {"paused-at-the-limit", "pauses-at-the-limit"} <= slugs(), SETTLE_S)
        admin.namespaces.remove_policy("public/default", PAUSE_ON_ACK_STATE)
        eventually(lambda: not {"paused-at-the-limit", "pauses-at-the-limit"} & slugs(), SETTLE_S)
        admin.namespaces.create("public/crm")
        plan = Plan(due_topic="persistent://public/crm/reminders", subscriptions=("billing",))
        found = {one.slug for one in verdict_on(inspect_plan(admin, plan, target="p.toml")).findings}
        assert "missing-topic" in found
        admin.topics.create(plan.due_topic, 1)
        found = {one.slug for one in verdict_on(inspect_plan(admin, plan, target="p.toml")).findings}
        assert "no-topic-policies" in found


class TwoBookies(LocalPulsar):
    """A standalone Pulsar with two bookies; each takes a port of the kernel's."""

    def _command(self, java: str, lib: Path) -> list[str]:
        given = super()._command(java, lib)
        given[given.index("--bookkeeper-port") + 1] = "0"
        return [*given, "--num-bookies", "2"]


@pytest.mark.short
def test_copies_and_clusters() -> None:
    with own_broker({"allowEphemeralPorts": "false"}, TwoBookies) as broker, AdminClient(broker.admin_url) as admin:
        setup = make(admin, None)
        usual = {"no-relay-yet", "no-speculative-reads", "stopped-reads-stay"}
        # One copy of everything, as every broker of these tests is told; here there is a second bookie.
        assert setup.slugs() == {"one-copy", *usual}
        cure = f"pulsar-admin namespaces set-persistence {setup.namespace} -e 2 -w 2 -a 2 -r 0"
        assert setup.found("one-copy").cure == cure
        setup.namespace_policy(PERSISTENCE, Persistence(ensemble=2, write_quorum=2, ack_quorum=1))
        assert setup.slugs() == {"one-confirmation", *usual}
        assert setup.found("one-confirmation").cure == cure
        setup.namespace_policy(PERSISTENCE, Persistence(ensemble=2, write_quorum=2, ack_quorum=2))
        # Two copies on two bookies leave none to spare.
        assert setup.slugs() == {"no-spare-bookie", *usual}

        # A second cluster that nobody can reach: what counts is what the namespace says.
        elsewhere = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
        setup.call("PUT", "/clusters/elsewhere", elsewhere)
        tenant = setup.namespace.partition("/")[0]
        setup.call("POST", f"/tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone", "elsewhere"]})
        setup.call("POST", "/namespaces/NAMESPACE/replication", ["standalone", "elsewhere"])
        eventually(lambda: "replicated" in setup.slugs(), SETTLE_S)
        setup.call("POST", "/namespaces/NAMESPACE/replication", ["standalone"])
        eventually(lambda: "replicated" not in setup.slugs(), SETTLE_S)
