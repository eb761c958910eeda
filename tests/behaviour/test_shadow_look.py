"""What looks at a shadowed topic, and what its service tells, is what is there; its audit balances."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import ShadowStage, shadow_plan, staged
from tests.support.command_line import timewheel, well
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import MESSAGE_TTL_S
from timewheel.broker.protocol.consumers import EntryAcknowledger
from timewheel.broker.protocol.dialing import Dialer
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.ids import native_id
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.metrics import Exporter
from timewheel.shadow import verification
from timewheel.shadow.desired_state import State, caught_up_property, desired_in, moves
from timewheel.shadow.draining import Stalls
from timewheel.shadow.machine.audit import Place, Wrong
from timewheel.shadow.overview import Phase, overview_of
from timewheel.shadow.survey import Survey, read_topic
from timewheel.shadow.verification import LOOKS, Verification, verify
from timewheel.testing import Broker, eventually

TIMEOUT_MS = 20_000
GROUP = "billing"
FAR, NEAR = 200, 100


@pytest.fixture
def dialer(pulsar_broker: Broker) -> Dialer:
    return Dialer(pulsar_broker.service_url)


def plan_for(topic: str) -> Plan:
    scheme = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS))
    return replace(shadow_plan(scheme, partitions=0, guard_ms=5 * MINUTE_MS, max_delay_ms=30 * DAY_MS), due_topic=topic)


@pytest.fixture
def plan(admin: AdminClient, topic: str) -> Plan:
    """Of a topic without partitions that is there, with its subscription."""
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, GROUP)
    return plan_for(topic)


def send_mixed(client: Any, topic: str, *, far: int = FAR, near: int = NEAR, due: int = 0) -> None:
    """Far from due, due soon, and without a delay, by turns."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    began_ms = now_ms()
    for number in range(max(far, near, due)):
        for count, delay_ms in ((far, 2 * DAY_MS), (near, MINUTE_MS * 10), (due, 0)):
            if number < count:
                options = {"deliver_at": began_ms + delay_ms + number} if delay_ms else {}
                producer.send_async(b"x" * 20, lambda *_: None, properties={"n": str(number)}, **options)
    producer.flush()
    producer.close()


def acknowledge_due(client: Any, topic: str, count: int) -> Any:
    """A Shared consumer, still open, that has acknowledged what was due."""
    consumer = client.subscribe(
        topic, GROUP, consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    for _ in range(count):
        consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    return consumer


def run(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    urls = ("--admin-url", broker.admin_url, "--service-url", broker.service_url)
    return timewheel("shadow", *arguments, *urls, timeout=300)


def saved(plan: Plan, folder: Path) -> str:
    save_plan(plan, folder / "plan.toml")
    return str(folder / "plan.toml")


# Before anything moves.


def test_a_survey_counts_fates_and_gaps_exactly(
    pulsar_client: Any, admin: AdminClient, dialer: Dialer, plan: Plan
) -> None:
    send_mixed(pulsar_client, plan.due_topic, due=FAR)
    acknowledge_due(pulsar_client, plan.due_topic, FAR)
    eventually(
        lambda: admin.topics.internal_stats(plan.due_topic).cursors[GROUP].gap_count == FAR,
        message="all gaps are there",
    )
    found = read_topic(admin, dialer, plan, target="plan.toml").survey(plan)
    assert found.is_whole
    assert not found.is_refused, found.findings
    assert {name: amount.entries for name, amount in found.decisions.items()} == {"moved": FAR, "near": NEAR}
    assert found.moved.size_bytes == 20 * FAR
    (part,) = found.parts
    (one,) = part.subscriptions
    assert (one.name, one.type, one.pending, one.acked) == (GROUP, "Shared", FAR + NEAR, FAR)
    # far, near, acknowledged by turns: a gap in each round; of the near ones there are half as many rounds
    assert one.gaps == FAR
    assert NEAR - 1 <= one.gaps_after <= NEAR
    assert found.delays is not None
    assert found.delays.longest_ms >= 2 * DAY_MS
    assert found.cost is not None
    # intake, twice three of the long tier, then some of the short one, and back
    assert 5 <= found.cost.writes <= 20


def test_a_large_topic_is_read_in_stretches(pulsar_client: Any, admin: AdminClient, dialer: Dialer, plan: Plan) -> None:
    send_mixed(pulsar_client, plan.due_topic, far=1_000, near=500)
    acknowledge_due(pulsar_client, plan.due_topic, 0)
    found = read_topic(admin, dialer, plan, target="plan.toml", most=300).survey(plan)
    assert not found.is_whole
    assert found.parts[0].read == 300
    assert found.parts[0].entries == 1_500
    assert abs(found.moved.entries - 1_000) < 100
    assert native_since_first(found) == pytest.approx(500, abs=50)


def native_since_first(found: Survey) -> float:
    """Timers due soon that were sent since the first pending entry, by their hourly number."""
    return found.native_per_hour * found.native_seen_ms / HOUR_MS


def test_what_stays_an_hour_is_what_was_sent_though_none_of_it_waits(
    pulsar_client: Any, admin: AdminClient, dialer: Dialer, plan: Plan
) -> None:
    producer = pulsar_client.create_producer(plan.due_topic)
    for delay_ms in (2 * DAY_MS, *(SECOND_MS for _ in range(15)), 0, 2 * DAY_MS):
        producer.send(b"x", **({"deliver_at": now_ms() + delay_ms} if delay_ms else {}))
    acknowledge_due(pulsar_client, plan.due_topic, 16)
    eventually(lambda: admin.topics.stats(plan.due_topic).subscriptions[GROUP].backlog == 2)
    found = read_topic(admin, dialer, plan, target="plan.toml").survey(plan)
    assert {name: amount.entries for name, amount in found.decisions.items()} == {"moved": 2}
    assert native_since_first(found) == pytest.approx(15)


def test_what_stands_against_it_is_named(
    pulsar_client: Any, pulsar_broker: Broker, admin: AdminClient, plan: Plan, tmp_path: Path
) -> None:
    topic = plan.due_topic
    send_mixed(pulsar_client, topic, far=20, near=0)
    admin.subscriptions.create(topic, "audit")
    pulsar_client.subscribe(topic, "audit", consumer_type=pulsar.ConsumerType.Failover)
    admin.topic_policies.set(topic, MESSAGE_TTL_S, 3_600)
    admin.topic_policies.await_value(topic, MESSAGE_TTL_S, 3_600)
    other = replace(plan, partitions=2)
    done = run(pulsar_broker, "start", "--dry-run", "--json", saved(other, tmp_path))
    assert done.returncode == 3, done.stderr
    facts = json.loads(done.stdout)
    slugs = {one["slug"] for one in facts["findings"] if one["severity"] == "error"}
    assert slugs == {"subscription-in-order", "subscriptions-differ", "ttl-below-delays", "partitions-differ"}
    assert not facts["started"]


def test_a_plan_is_made_for_a_topic(
    pulsar_client: Any, pulsar_broker: Broker, admin: AdminClient, plan: Plan, tmp_path: Path
) -> None:
    send_mixed(pulsar_client, plan.due_topic, far=300, near=300)
    acknowledge_due(pulsar_client, plan.due_topic, 0)
    out = tmp_path / "made.toml"
    well(run(pulsar_broker, "start", plan.due_topic, "--out", str(out), "--yes"))
    made = Plan.load(out)
    assert (made.due_topic, made.subscriptions, made.partitions) == (plan.due_topic, (GROUP,), 0)
    assert (made.intake, made.relay, made.readers) == (True, "service", "any")
    assert desired_in(admin.topics.properties(Names(made).journal)).state is State.SHADOWING
    again = run(pulsar_broker, "start", plan.due_topic, "--out", str(tmp_path / "second.toml"), "--yes")
    assert again.returncode == 2, again.stderr + again.stdout
    assert "it has a shadow already (shadowing): name the plan file that it was started with" in " ".join(
        again.stderr.split()
    )
    assert not (tmp_path / "second.toml").exists()


def test_no_plan_is_made_for_a_topic_that_says_nothing_of_delays(
    pulsar_client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "made.toml"
    send_mixed(pulsar_client, plan.due_topic, far=0, near=0, due=5)
    for topic, problem in (
        (plan.due_topic, "no message with a delay waits there now"),
        (f"{plan.due_topic}-none", f"there is no such topic; did you mean {plan.due_topic}?"),
    ):
        done = run(pulsar_broker, "start", topic, "--out", str(out), "--yes")
        assert done.returncode == 1, done.stderr + done.stdout
        assert problem in " ".join(done.stderr.split())
        assert not out.exists()


def test_a_shadow_is_started(
    pulsar_client: Any, pulsar_broker: Broker, admin: AdminClient, plan: Plan, tmp_path: Path
) -> None:
    send_mixed(pulsar_client, plan.due_topic, far=20, near=20)
    acknowledge_due(pulsar_client, plan.due_topic, 0)
    plan_file = saved(plan, tmp_path)
    shown = well(run(pulsar_broker, "start", "--dry-run", plan_file))
    assert "far from due (moved)" in shown.stdout
    assert admin.topics.partitions(Names(plan).journal) is None
    done = well(run(pulsar_broker, "start", plan_file))
    assert "provisioned -> shadowing. Now let it run: timewheel shadow run " in done.stdout
    first = desired_in(admin.topics.properties(Names(plan).journal))
    assert first.state is State.SHADOWING
    assert abs(first.since_ms - now_ms()) < MINUTE_MS
    assert run(pulsar_broker, "start", plan_file).returncode == 0
    assert desired_in(admin.topics.properties(Names(plan).journal)) == first


# Whether the audit balances.

LONG = Tiered(window_ms=10 * SECOND_MS, tiers_ms=(10 * SECOND_MS, HOUR_MS))
"""Most of what is moved waits in holding topics for as long as a test takes."""


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    with staged(pulsar_broker, shadow_plan(LONG, partitions=2, max_delay_ms=2 * DAY_MS)) as on:
        yield on


def told(found: Verification) -> str:
    """What is wrong, for who reads a failure."""
    return "\n".join(f"{part.topic} {part.places} {one}" for part in found.parts for one in part.troubles[:5])


def send_far(stage: ShadowStage, count: int = 300) -> None:
    """Due in hours, soon and now, by turns."""
    producer, began_ms = stage.plain_producer(), now_ms()
    for number in range(count):
        due_ms = began_ms + (HOUR_MS * 5, 5 * SECOND_MS, 0)[number % 3] + number
        producer.send_async(f"{number} {due_ms}".encode(), lambda *_: None, deliver_at=due_ms)
    producer.flush()


HOURS = Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=10),))
SCHEMES: dict[str, dict[str, Any]] = {
    "tiers, two partitions": {"scheme": LONG, "partitions": 2, "max_delay_ms": 2 * DAY_MS},
    "a wheel, unpartitioned": {"scheme": HOURS, "partitions": 0, "max_delay_ms": 8 * HOUR_MS},
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_books_of_a_shadow_that_works_balance(pulsar_broker: Broker, kind: str, tmp_path: Path) -> None:
    plan = shadow_plan(**SCHEMES[kind])
    with staged(pulsar_broker, plan) as stage:
        _play_and_verify(stage, saved(plan, tmp_path))


def _play_and_verify(stage: ShadowStage, plan_file: str) -> None:
    consumer, shadow = stage.plain_consumer(), stage.shadow()
    send_far(stage)
    eventually(lambda: len(consumer.handled) == 200, 60)
    eventually(lambda: sum(one.moved for one in shadow.shadow_status().movers) == 100, 60)
    eventually(lambda: shadow.shadow_status().acked_originals >= 100, 60)
    found = verify(stage.admin, stage.dialer, stage.plan)
    assert found.is_balanced, told(found)
    assert all(part.is_caught_up for part in found.parts)
    assert sum(part.journal for part in found.parts) == 100
    assert sum(part.places[Place.HOLDING] for part in found.parts) == 100
    assert found.missing == ()
    # Once more while timers come and go.
    send_far(stage)
    found = verify(stage.admin, stage.dialer, stage.plan)
    assert found.is_balanced, told(found)
    # And after the way out, when all is back in the topic.
    well(run(stage.broker, "abort", plan_file))
    found = verify(stage.admin, stage.dialer, stage.plan)
    assert found.is_balanced, told(found)
    assert not moves(found.desired.state)
    # More, where a mover that has not seen the desired state yet moves once more what came back.
    assert sum(part.journal for part in found.parts) >= 200
    assert all(part.places[Place.DUE] == part.journal for part in found.parts), told(found)


def test_what_makes_no_progress_is_found(stage: ShadowStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No relay runs here, as behind one that fails again and again."""
    monkeypatch.setattr(verification, "STUCK_MS", 0)
    intake = partition_topic(stage.names.intake, 0)
    stage.plain_producer(intake).send(b"x", properties={"tw-due": str(now_ms())})
    envelope = Envelope("late", now_ms() - 1_000, now_ms() - 2_000)
    journal, tier = (partition_topic(topic, 0) for topic in (stage.names.journal, stage.tiers[0]))
    stage.client.create_producer(journal).send(b"x", properties=envelope.properties())
    head, _ = [stage.client.create_producer(tier).send(b"x", properties=envelope.properties()) for _ in range(2)]
    found = verify(stage.admin, stage.dialer, stage.plan, again_ms=10)
    assert (found.looks, found.is_balanced) == (LOOKS, False)
    assert [one.topic for one in found.stuck] == [intake, journal, tier]
    assert found.stuck[-1].head == EntryPosition(head.ledger_id(), head.entry_id())
    stalls = Stalls(stage.admin, stage.plan, give_up_ms=1)
    assert stalls() == "", "all may have come this moment"
    with pytest.raises(TopologyError, match="has not moved on from"):
        eventually(stalls, 5)


def test_what_is_wrong_is_found(stage: ShadowStage, tmp_path: Path) -> None:
    """By hand, as no shadow would do it: nobody moves anything here."""
    topic, plan = stage.parts()[0], stage.plan
    at_ms = now_ms()
    producer = stage.plain_producer(topic, batching_enabled=False)
    originals = [producer.send(b"x", deliver_at=at_ms + 5 * HOUR_MS) for _ in range(4)]
    unacked_originals, lost, double, left = originals
    journal, tier = (
        stage.client.create_producer(f"{name}-partition-0") for name in (stage.names.journal, stage.tiers[0])
    )
    tier.send(b"x", properties=Envelope("first", at_ms + 5 * HOUR_MS, at_ms).properties())
    for message_id in (unacked_originals, lost, double):
        place = EntryPosition(message_id.ledger_id(), message_id.entry_id())
        envelope = Envelope(native_id(topic, place), at_ms + 5 * HOUR_MS, at_ms)
        origin = f"{place.ledger}:{place.entry} {at_ms}"
        journal.send(b"x", properties={**envelope.properties(), "tw-from": origin})
        if message_id is double:
            tier.send(b"x", properties=envelope.properties())
            tier.send(b"x", properties=envelope.properties())
    with EntryAcknowledger(stage.dialer, topic, BUSINESS) as acknowledger:
        acknowledger.acknowledge([EntryPosition(one.ledger_id(), one.entry_id()) for one in (lost, double)])
    relay = stage.client.subscribe(
        f"{stage.names.journal}-partition-0", RELAY_SUBSCRIPTION, pulsar.ConsumerType.Failover
    )
    taken = [relay.receive(TIMEOUT_MS) for _ in range(3)]
    relay.acknowledge_cumulative(taken[-1])
    relay.close()
    stage.admin.topics.update_properties(stage.names.journal, {caught_up_property(0): str(now_ms())})
    found = verify(stage.admin, stage.dialer, plan, again_ms=100, arrived_ms=0)
    assert found.looks == LOOKS
    assert found.wrong == {Wrong.LOST: 1, Wrong.DOUBLE: 1, Wrong.UNACKED_ORIGINALS: 1, Wrong.LEFT: 1}
    troubles = {one.wrong: one.original for one in found.parts[0].troubles}
    assert troubles == {
        wrong: EntryPosition(one.ledger_id(), one.entry_id())
        for wrong, one in zip((Wrong.UNACKED_ORIGINALS, Wrong.LOST, Wrong.DOUBLE, Wrong.LEFT), originals, strict=True)
    }
    assert left is originals[-1]
    assert found.parts[0].decisions == {"moved": 2}, "the one that is not acknowledged, and the one that is left"
    assert overview_of(stage.admin, stage.dialer, plan, arrived_ms=0).parts[0].left == 1
    done = run(stage.broker, "verify", "--json", saved(plan, tmp_path))
    assert done.returncode == 3, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["lost"], facts["double"], facts["unacked_originals"]) == (1, 1, 1)


# How it stands.


def test_a_shadow_that_works_stands_well(stage: ShadowStage, tmp_path: Path) -> None:
    consumer, shadow = stage.plain_consumer(), stage.shadow()
    send_far(stage)
    eventually(lambda: len(consumer.handled) == 200, 60)
    eventually(lambda: sum(one.moved for one in shadow.shadow_status().movers) == 100, 60)
    eventually(lambda: overview_of(stage.admin, stage.dialer, stage.plan).holding.get(stage.tiers[0]), 60)
    found = overview_of(stage.admin, stage.dialer, stage.plan)
    assert found.timers.keys() == found.holding.keys()
    assert all(timers is not None and timers.count >= found.holding[topic] for topic, timers in found.timers.items())
    assert found.warnings == ()
    assert found.desired.state is State.SHADOWING
    assert [part.phase for part in found.parts] == [Phase.SHADOWING] * 2
    assert [part.journal.entries > 0 for part in found.parts] == [True] * 2
    assert [part.left for part in found.parts] == [0, 0]
    lags = [part.lag for part in found.parts]
    assert sum(lag.copies for lag in lags if lag is not None) == 100
    assert all(lag is not None and 0 <= lag.p50_ms <= lag.p99_ms < MINUTE_MS for lag in lags)
    assert found.writes is not None
    assert 4 <= found.writes <= 2 + 4 + 720
    done = well(run(stage.broker, "status", saved(stage.plan, tmp_path)))
    assert "shadowing" in done.stdout
    shadow.stop()
    stage.plain_producer().send(b"9999", deliver_at=now_ms() + 5 * HOUR_MS)
    done = run(stage.broker, "status", "--json", saved(stage.plan, tmp_path))
    assert done.returncode == 3, done.stderr
    facts = json.loads(done.stdout)
    assert {one["phase"] for one in facts["partitions"]} == {"nobody"}
    assert any("no mover" in text for text in facts["warnings"])


def test_a_plan_without_an_intake_has_no_shadow(pulsar_broker: Broker, topic: str, tmp_path: Path) -> None:
    done = run(pulsar_broker, "status", saved(replace(plan_for(topic), intake=False), tmp_path))
    assert done.returncode == 2
    assert "intake" in done.stderr


def test_gaps_beside_a_shadow_advise_no_second_one_and_tell_its_originals_apart(
    pulsar_broker: Broker, pulsar_client: Any, plan: Plan
) -> None:
    """In turns: far (moved, and acknowledged by the shadow), near (open), due (handled). What a limit of 10 forgets is
    from the twelfth range on: 88 times a handled one and an original, then a handled one and the last 101 originals.
    """
    with staged(pulsar_broker, plan) as stage:
        consumer = acknowledge_due(pulsar_client, plan.due_topic, 0)
        send_mixed(pulsar_client, plan.due_topic, far=FAR, near=NEAR, due=NEAR)
        shadow = stage.shadow()
        for _ in range(NEAR):
            consumer.acknowledge(consumer.receive(TIMEOUT_MS))
        eventually(lambda: shadow.shadow_status().movers[0].moved == FAR, 60)
        options = (plan.due_topic, "--admin-url", pulsar_broker.admin_url, "--gap-limit", 10)

        def seen() -> dict[str, Any]:
            (found,) = json.loads(timewheel("gaps", *options, "--json").stdout)["subscriptions"]
            assert found["gaps"] == NEAR, "each near one begins a gap"
            # The originals are acknowledged only after their copies are stored.
            assert found["again_messages"] == found["again_entries"] == 2 * 88 + 1 + FAR - NEAR
            return dict(found)

        found = eventually(seen, 60)
        assert found["shadow"] == "shadowing"
        assert found["again_originals"] == 88 + FAR - NEAR

        text = timewheel("gaps", *options).stdout
        assert f"{88 + FAR - NEAR} of these are originals" in text
        assert "first aid already, a shadow (shadowing)" in text
        assert "shadow start" not in text
        explained = timewheel("gaps", "explain", *options).stdout
        assert "first aid already, a shadow (shadowing)" in explained
        assert "timewheel shadow status PLAN" in " ".join(explained.split())
        assert ".toml" not in explained, "nobody knows the name of its plan's file"
        assert "shadow start" not in explained
        consumer.close()

        stage.desired(State.NATIVE)
        text = timewheel("gaps", *options).stdout
        assert "timewheel shadow start" in text, "a topic whose shadow was taken away has none"


TIMERS = 50
AHEAD_MS = 600_000
PARTITIONS = 2


def scraped(text: str) -> dict[str, float]:
    """Without ``timewheel_``, with the labels that tell several of a name apart."""
    apart = ("decision", "state", "quantile", "topic", "subscription")
    return {
        " ".join(
            [sample.name.removeprefix("timewheel_"), *(sample.labels[one] for one in apart if one in sample.labels)]
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.real
def test_a_shadow_tells_what_it_has_lifted_and_why_it_may_not(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = shadow_plan(partitions=PARTITIONS, max_delay_ms=2 * AHEAD_MS)
    with staged(pulsar_broker, plan) as on, RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service:
        service.await_ready()

        def told() -> dict[str, float]:
            return scraped(service.ask("/metrics").text)

        def shadow() -> dict[str, Any]:
            found: dict[str, Any] = service.status()["relays"][0]["shadow"]
            return found

        eventually(lambda: told()["shadow_caught_up_partitions"] == PARTITIONS, 60)
        producer = on.plain_producer()
        due_ms = now_ms() + AHEAD_MS
        for number in range(TIMERS):
            producer.send_async(f"{number}".encode(), None, deliver_at=due_ms, partition_key=f"{number}")
        producer.send(b"now")
        producer.flush()
        eventually(lambda: told()["shadow_acked_total"] == told()["shadow_moved_total"] == TIMERS, 60)

        found = told()
        assert found["shadow_entries_total moved"] == TIMERS
        assert (found["shadow_entries_total undelayed"], found["shadow_entries_total near"]) == (1, 0)
        assert (found["shadow_partitions"], found["shadow_led_partitions"]) == (PARTITIONS, PARTITIONS)
        assert (found["shadow_state shadowing"], found["shadow_state paused"], found["shadow_refused"]) == (1, 0, 0)
        assert 0 <= found["shadow_lag_seconds 0.5"] <= found["shadow_lag_seconds 0.99"] < 30
        assert found["relay_ready"] == 1
        assert (shadow()["state"], shadow()["refusal"]) == ("shadowing", "")
        assert [mover["leads"] for mover in shadow()["movers"]] == [True] * PARTITIONS

        backlogs = of_exporter(on)
        assert backlogs[f"{JOURNAL_SUBSCRIPTION}"] > 0, "it keeps copies for a while"
        assert RELAY_SUBSCRIPTION in backlogs

        intruder = on.client.subscribe(plan.due_topic, "intruder", consumer_type=pulsar.ConsumerType.Exclusive)
        eventually(lambda: told()["shadow_refused"] == 1, 60)
        answer = service.ask("/readyz")
        assert (answer.status_code, "intruder" in shadow()["refusal"]) == (503, True), answer.text
        intruder.unsubscribe()
        eventually(lambda: service.ask("/readyz").status_code == 200, 60)
        assert told()["shadow_refused"] == 0


def of_exporter(on: ShadowStage) -> dict[str, float]:
    """Entries of the intake that are not acknowledged, by subscription."""
    exporter, registry = Exporter(on.admin, (), (on.plan,)), CollectorRegistry()
    registry.register(exporter)
    assert exporter.inspect()
    found: dict[str, float] = {}
    for name, value in scraped(generate_latest(registry).decode()).items():
        if name.startswith("backlog_entries ") and f" {on.names.journal} " in f"{name} ":
            subscription = name.rpartition(" ")[2]
            found[subscription] = found.get(subscription, 0) + value
    return found
