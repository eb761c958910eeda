"""What the relay does about the broker's ways (docs/broker-facts.md), each on the real broker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import PATIENT_GUARD_MS, PATIENT_LEFT_MS, WHEEL, Stage, patient, plan_of
from tests.support.processes import StartedThreads
from tests.support.raw_producer import RawEntry, RawProducer, metadata_of
from tests.support.through import Through
from timewheel.broker.protocol.wire import data_field, number_field
from timewheel.client.dead_letters import DEAD_AT, DEAD_FROM
from timewheel.client.positions import Position
from timewheel.core.clock import SystemClock
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_topic
from timewheel.core.plan import Ring, Tiered, Wheel
from timewheel.core.routing import Hold
from timewheel.core.steps import steps
from timewheel.events import RelayBatchSplit
from timewheel.relay import PartitionState, Relay
from timewheel.relay.driver.dead_letter_writer import MAX_JUMPS, Seen, inspect
from timewheel.relay.driver.hop_producers import producer_name
from timewheel.relay.driver.source import consumer_name
from timewheel.relay.machine.order import Spot, sequence_id
from timewheel.testing import Broker, eventually
from timewheel.testing.plugin import MakeLocalPulsar


@pytest.fixture
def calm(pulsar_broker: Broker) -> Iterator[Stage]:
    """One on which no relay is late."""
    with Stage(pulsar_broker, patient()) as made:
        yield made


@pytest.mark.real
def test_kills_and_unloads_lose_nothing_and_leave_no_extra_copy(
    pulsar_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Stage(pulsar_broker, patient()) as stage:
        sent = stage.hold(PATIENT_LEFT_MS + number % 1_000 for number in range(3_000))
        dropped = 0
        for number in range(4):
            with RelayProcess(pulsar_broker, stage.plan, tmp_path_factory.mktemp("relay")) as relay:
                relay.await_ready()
                try:
                    relay.await_forwarded(600)
                except AssertionError:  # lives that were longer than they needed to be left this one less
                    assert len(stage.copies()) == len(sent), relay.status()
                if number % 2:
                    stage.unload(stage.tiers[number // 2])
                    stage.unload(stage.plan.due_topic)
                dropped += relay.total("deduplicated")
                relay.kill()
        last = stage.relay()
        stage.await_due(len(sent), 180)
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        assert last.status().total("late") == 0
        dropped += last.status().total("deduplicated")
        assert dropped > 0, "the kills left nothing to drop: they proved nothing"
        hops = [Envelope.read(message.properties()) for message in stage.due()]
        assert {envelope.hops for envelope in hops if envelope} == {3}, "4 s, 4 s, 2 s, and the rest is for the broker"


def test_late_timers_leave_by_the_late_lane_and_none_is_lost(stage: Stage) -> None:
    """No relay for so long that the nominal way would end after the due time."""
    now = now_ms()
    tier = stage.tiers[0]  # 4 s
    for number in range(200):
        # Entered 9 s ago: released 5 s ago with 4.6 s left, so the nominal way was the same tier once more.
        stage.put(tier, Envelope(f"t{number}", now - 9_000 + 4_000 + 4_600, now - 9_000))
    stage.flush()
    relay = stage.relay()
    stage.await_due(200)
    stage.await_all_acknowledged()
    assert relay.status().total("late") == 200
    assert relay.status().total("forwarded") == 0
    stage.assert_no_copies()


@pytest.mark.real
def test_no_late_hop_is_made_of_a_message_that_its_nominal_way_has_stored(stage: Stage) -> None:
    """As after an unload that cost a relay the receipts of its hops, and then a guard of time."""
    now, tier = now_ms(), stage.tiers[0]
    timers = [Envelope(f"t{number}", now - 9_000 + 4_000 + 4_600, now - 9_000) for number in range(200)]
    for timer in timers:
        stage.put(tier, timer)
    stage.flush()
    partition = partition_topic(tier, 0)
    name = producer_name(partition, partition, -1, stage.router.fingerprint)
    earlier = stage.producer(tier, producer_name=name)
    for timer, message in zip(timers, stage.stored(tier), strict=True):
        number = sequence_id(Position.of(message.message_id()))
        # The nominal release, from which the way goes on.
        earlier.send(b"", properties=timer.hopped(now - 5_000).properties(), sequence_id=number)
    earlier.close()
    relay = stage.relay()
    stage.await_due(200)
    stage.await_all_acknowledged()
    assert set(stage.copies().values()) == {1}
    assert relay.status().total("deduplicated") == 200


def test_the_late_lane_goes_into_a_tier_in_batches(pulsar_broker: Broker) -> None:
    """Too late for the long tier once more, in time for the short one."""
    with Stage(
        pulsar_broker, plan_of(Tiered(window_ms=1_500, tiers_ms=(1_500, 120_000)), max_delay_ms=600_000)
    ) as stage:
        longest, shortest = stage.tiers
        now = now_ms()
        for number in range(500):
            stage.put(longest, Envelope(f"t{number}", now + 60_000, now - 200_000))
        stage.flush()
        relay = stage.relay()
        eventually(lambda: len(stage.stored(shortest)) >= 500, 50, poll=0.2)
        assert relay.status().total("late") >= 500
        assert len(entries_of(stage.stored(shortest))) <= 100


@pytest.mark.real
def test_the_producers_name_is_the_lease_and_is_given_back(calm: Stage) -> None:
    """Whoever finds it taken waits, holding everything; a pause gives it back."""
    source, destination = f"{calm.tiers[-1]}-partition-0", f"{calm.plan.due_topic}-partition-0"
    name = producer_name(source, destination, -1, calm.router.fingerprint)
    squatter = calm.client.create_producer(destination, producer_name=name)
    calm.hold_for_one_hop(1)
    relay = calm.relay()
    eventually(lambda: PartitionState.WAITING_FOR_LEASE in {p.state for p in relay.status().partitions}, 60)
    assert len(calm.events.named("relay_waits_for_lease")) == 1, "told once, not at every attempt"
    assert relay.ready
    assert not calm.due()
    squatter.close()
    calm.await_due(1, 60)

    def free() -> bool:
        try:
            calm.client.create_producer(destination, producer_name=name).close()
        except pulsar.ProducerBusy:
            return False
        return True

    eventually(free, 60, poll=0.5)


MANY_HIDDEN = 3_000
OPENS_NEVER = metadata_of(compression=2, uncompressed_bytes=400)
A_LAST_PART = metadata_of(
    more=data_field(26, b"alone-0") + number_field(28, 30) + number_field(27, 3) + number_field(29, 2)
)
"""Of a message in three parts, of which no other is there."""


@pytest.mark.real
def test_what_the_client_hides_is_named_in_one_letter_and_holds_nobody_up(stage: Stage) -> None:
    tier = stage.tiers[-1]
    now = now_ms()
    properties = [Envelope(f"t{number}", now + 2_500, now).properties() for number in range(4)]
    with RawProducer(stage.broker.service_url, f"{tier}-partition-0") as producer:
        before = producer.send(metadata_of(properties=properties[0]), b"before")
        producer.send_all(RawEntry(OPENS_NEVER, b"garbage") for _ in range(MANY_HIDDEN))
        producer.send(A_LAST_PART, b"part")
        between = producer.send(metadata_of(properties=properties[1]), b"between")
        producer.send(A_LAST_PART, b"part")
        behind = producer.send(metadata_of(properties=properties[2]), b"behind")
    relay = stage.relay()
    stage.await_due(3)
    stage.await_all_acknowledged()
    assert [message.data() for message in stage.due()] == [b"before", b"between", b"behind"]
    dead_letters = stage.stored(stage.names.dead_letter)
    assert [dead_letter.properties()[DEAD_AT] for dead_letter in dead_letters] == [
        f"{before.text}..{between.text}",
        f"{between.text}..{behind.text}",
    ]
    assert between.entry - before.entry == MANY_HIDDEN + 2
    assert {dead_letter.properties()[DEAD_FROM] for dead_letter in dead_letters} == {f"{tier}-partition-0"}
    assert relay.status().total("dead") == 2
    assert relay.status().total("failures") == relay.status().total("jumps") == 0
    assert relay.ready


@pytest.mark.real
def test_what_somebody_has_acknowledged_by_itself_is_named_and_holds_nobody_up(stage: Stage) -> None:
    """It can be read, and no subscription is ever given it. Here: the first of the chunks of a message."""
    tier = stage.tiers[-1]
    now = now_ms()
    whole, chunked, behind = (Envelope(f"t{number}", now + 2_500, now).properties() for number in range(3))
    stage.producer(tier, batching_enabled=False).send(b"whole", properties=whole)
    last = stage.producer(tier, chunking_enabled=True).send(os.urandom(6_000_000), properties=chunked)
    stage.producer(tier, batching_enabled=False).send(b"behind", properties=behind)
    skipping = stage.client.subscribe(f"{tier}-partition-0", RELAY_SUBSCRIPTION, pulsar.ConsumerType.Shared)
    skipping.acknowledge(pulsar.MessageId(-1, last.ledger_id(), last.entry_id() - 1, -1))
    skipping.close()
    relay = stage.relay()
    stage.await_due(2, 60)
    stage.await_all_acknowledged()
    assert {message.data() for message in stage.due()} == {b"whole", b"behind"}
    (dead_letter,) = stage.stored(stage.names.dead_letter)
    ledger, entry = last.ledger_id(), last.entry_id()
    assert dead_letter.properties()[DEAD_AT] == f"{ledger}:{entry - 2}..{ledger}:{entry + 1}"
    assert relay.status().total("jumps") == MAX_JUMPS


@pytest.mark.short
def test_ledgers_that_end_are_no_holes(make_local_pulsar: MakeLocalPulsar) -> None:
    small = {"managedLedgerMaxEntriesPerLedger": "50", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    with Stage(make_local_pulsar(config=small), patient()) as stage:
        producer = stage.producer(stage.tiers[0], batching_enabled=False)
        relay = stage.relay()
        now = now_ms()
        for number in range(400):
            producer.send(b"", properties=Envelope(f"t{number}", now + PATIENT_LEFT_MS, now - 2_000).properties())
        ledgers = {message.message_id().ledger_id() for message in stage.stored(stage.tiers[0])}
        assert len(ledgers) >= 4
        stage.await_due(400)
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        assert relay.status().total("jumps") == relay.status().total("failures") == 0


def see(stage: Stage, topic: str, after: Spot, before: Position) -> Seen:
    return inspect(stage.client, topic, after, before, lambda _silences: False)


@pytest.mark.real
def test_a_jump_over_what_others_acknowledged_is_no_hole(stage: Stage) -> None:
    producer = stage.producer(stage.tiers[-1], batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    positions = [Position(found.ledger_id(), found.entry_id(), -1) for found in ids]
    topic = f"{stage.tiers[-1]}-partition-0"
    assert see(stage, topic, Spot(positions[0], 0), positions[3]) == Seen(positions[1], is_hidden=False)
    # So is a message in chunks, that stands where its last one does.
    chunked = stage.producer(stage.tiers[-1], chunking_enabled=True).send(os.urandom(6_000_000))
    whole = positions[3]._replace(entry=chunked.entry_id())
    assert whole.entry == positions[3].entry + 2
    behind = whole._replace(entry=whole.entry + 1)
    assert see(stage, topic, Spot(positions[3], 0), behind) == Seen(whole, is_hidden=False)


def is_trimmed(stage: Stage, topic: str, ledger_id: int) -> bool:
    """Whether a ledger of a partition is gone; if not, the broker is asked to."""
    path = topic.replace("://", "/")
    httpx.post(f"{stage.broker.admin_url}/admin/v2/{path}/trim").raise_for_status()
    return all(ledger.ledger_id != ledger_id for ledger in stage.admin.topics.internal_stats(topic).ledgers)


@pytest.mark.real
def test_a_position_whose_ledger_was_trimmed_is_no_hole(stage: Stage) -> None:
    """In the middle of a batch, the rest of which an operator has skipped."""
    whole = f"{stage.plan.due_topic}-trimmed"  # without deduplication, whose cursor would keep the ledger for minutes
    topic = partition_topic(whole, 0)
    stage.admin.topics.create(whole, 1)
    stage.admin.subscriptions.create(topic, RELAY_SUBSCRIPTION)
    batching = stage.client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(10):
        batching.send_async(b"%d" % number, lambda *_: None)
    batching.flush()
    batching.close()
    in_batch = [Position.of(message.message_id()) for message in stage.stored(whole)][3]
    stage.unload(whole)  # which ends the ledger
    later = Position.of(stage.client.create_producer(topic).send(b""))
    stage.admin.subscriptions.clear(topic, RELAY_SUBSCRIPTION)
    eventually(lambda: is_trimmed(stage, topic, in_batch.ledger), 60)
    assert see(stage, topic, Spot(in_batch, 10), later) == Seen(later, is_hidden=False)


@pytest.mark.real
def test_what_is_hidden_behind_a_trimmed_ledger_is_a_hole(stage: Stage) -> None:
    whole = f"{stage.plan.due_topic}-hidden"
    topic = partition_topic(whole, 0)
    stage.admin.topics.create(whole, 1)
    stage.admin.subscriptions.create(topic, RELAY_SUBSCRIPTION)
    last = Position.of(stage.client.create_producer(topic).send(b""))
    stage.unload(whole)
    with RawProducer(stage.broker.service_url, topic) as producer:
        producer.send(OPENS_NEVER, b"garbage")
    behind = Position.of(stage.client.create_producer(topic).send(b""))
    stage.admin.subscriptions.clear(topic, RELAY_SUBSCRIPTION)
    eventually(lambda: is_trimmed(stage, topic, last.ledger), 60)
    assert behind.ledger > last.ledger
    assert see(stage, topic, Spot(last, 0), behind) == Seen(behind, is_hidden=True)


def test_silence_is_no_hole(stage: Stage) -> None:
    """A relay that took it for one would name what is not hidden when a broker is killed while it looks."""
    topic = f"{stage.tiers[-1]}-partition-0"
    sent = stage.producer(stage.tiers[-1], batching_enabled=False).send(b"")
    only = Position(sent.ledger_id(), sent.entry_id(), -1)
    with pytest.raises(pulsar.Timeout):
        see(stage, topic, Spot(only, 0), only._replace(entry=only.entry + 1))
    before = Spot(only._replace(entry=only.entry - 1), 0)
    assert see(stage, topic, before, only) == Seen(only, is_hidden=False), "what comes next"


def test_a_relay_that_comes_back_into_its_turn_goes_on_behind_the_others(calm: Stage) -> None:
    tier = calm.tiers[-1]
    later, sooner = sorted(("x", "y"), key=lambda name: consumer_name(name, tier), reverse=True)

    def hop(number: int) -> None:
        calm.hold_for_one_hop(1, prefix=f"hop {number} ")
        calm.await_due(number, 60)
        calm.await_all_acknowledged()

    staying = calm.relay(client=calm.open_client(), relay_id=later)
    hop(1)
    passing = calm.relay(client=calm.open_client(), relay_id=sooner)
    hop(2)  # the names' order gives the partition to the newcomer
    assert passing.status().total("forwarded") == 1
    passing.stop()
    hop(3)
    assert staying.status().total("jumps") == 1
    assert staying.ready
    calm.assert_no_copies()


def test_a_held_head_takes_a_few_entries_into_memory_not_the_backlog(stage: Stage) -> None:
    tier = stage.tiers[0]
    producer = stage.producer(
        tier, batching_enabled=True, batching_max_messages=100, batching_max_publish_delay_ms=60_000
    )
    now = now_ms()
    for number in range(10_000):
        # Due in a minute, as if the plan's tier were that long: entered in half a minute.
        producer.send_async(b"", lambda *_: None, properties=Envelope(f"t{number}", now + 60_000, now).properties())
    producer.flush()
    # A relay of a plan with a longer stay on the same topic would hold them; here the clock stands still instead.
    with _held(stage, now):
        stats = eventually(lambda: _delivered(stage, tier))
        assert 100 <= stats <= 2 * 16 * 100, "entries of 100 messages; 16 in the queue, refilled at half"


class _Frozen(SystemClock):
    """A clock that stands still for the date and runs for durations."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms


def _held(stage: Stage, at_ms: int) -> Relay:
    return Relay(stage.client, stage.plan, clock=_Frozen(at_ms), hooks=(stage.events,))


def _delivered(stage: Stage, tier: str) -> int:
    return stage.admin.topics.stats(f"{tier}-partition-0").subscriptions[RELAY_SUBSCRIPTION].delivered


def test_relays_share_partitions_and_tiers_evenly_and_take_over(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of(partitions=3)) as stage:
        relays = {name: stage.relay(client=stage.open_client(), relay_id=name) for name in ("a", "b", "c")}

        def active() -> list[str]:
            found = []
            for tier in stage.tiers:
                for partition in range(3):
                    stats = stage.admin.topics.stats(f"{tier}-partition-{partition}", clients=True)
                    found.append(str(stats.subscriptions[RELAY_SUBSCRIPTION].active_consumer).rpartition("-")[2])
            return found

        eventually(lambda: [active().count(name) for name in relays] == [2, 2, 2], 60, poll=0.3)
        sent = stage.hold(4_600 + number % 500 for number in range(300))
        relays.pop("b").stop()
        # Of three partitions one gets two, on each of two tiers: 4 and 2, or 3 and 3.
        eventually(lambda: min(active().count(name) for name in relays) >= 2, 60, poll=0.3)
        # Of each tier both have a partition now, and so a share of what comes from here on.
        sent += stage.hold((4_600 + number % 500 for number in range(300)), prefix="u")
        stage.await_due(len(sent))
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        assert all(relay.status().total("forwarded") + relay.status().total("late") for relay in relays.values())


def test_relays_that_come_and_go_while_timers_arrive_take_none_with_them(pulsar_broker: Broker) -> None:
    """On a change the broker may give the next consumer what stands behind the last one's (see `beginning`)."""
    with Stage(pulsar_broker, patient(partitions=3)) as stage:
        staying = [stage.relay(client=stage.open_client(), relay_id=name) for name in ("a", "c")]
        passing = stage.open_client()
        sent = []
        for number in range(8):
            coming = stage.relay(client=passing, relay_id="b")
            sent += stage.hold((PATIENT_GUARD_MS + 3_000 + left for left in range(200)), prefix=f"{number}-")
            coming.stop()
        stage.await_due(len(sent), 180)
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        assert sum(relay.status().total("late") for relay in staying) == 0


@pytest.mark.short
def test_a_frozen_relay_that_comes_back_steps_into_line(
    make_local_pulsar: MakeLocalPulsar, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It was replaced meanwhile, and goes on behind what the other one has done."""
    broker = make_local_pulsar(config={"keepAliveIntervalSeconds": "2"})
    folder = tmp_path_factory.mktemp("relay")
    with Stage(broker, patient()) as stage, RelayProcess(broker, stage.plan, folder, relay_id="frozen") as frozen:
        frozen.await_ready()
        sent = stage.hold(PATIENT_LEFT_MS for _ in range(500))
        frozen.await_forwarded(100)
        frozen.pause()
        sent += stage.hold((PATIENT_LEFT_MS for _ in range(500)), prefix="u")
        stage.relay(relay_id="other")
        stage.await_due(len(sent), 180)
        frozen.resume()
        sent += stage.hold((PATIENT_LEFT_MS for _ in range(500)), prefix="v")
        stage.await_due(len(sent), 180)
        eventually(lambda: frozen.status()["ready"], 60)
        stage.await_all_acknowledged()
        stage.assert_no_copies()


def entries_of(messages: Iterable[Any]) -> set[tuple[int, int]]:
    ids = [message.message_id() for message in messages]
    return {(message_id.ledger_id(), message_id.entry_id()) for message_id in ids}


def test_hops_into_a_tier_are_a_few_entries_and_arrive_in_order(calm: Stage) -> None:
    """broker-facts: batched-hops"""
    longest, shortest = calm.tiers
    now = now_ms()
    for number in range(2_000):
        calm.put(longest, Envelope(f"t{number}", now + 4_000 + PATIENT_GUARD_MS + 3_000, now))
    calm.flush()
    calm.relay()
    calm.await_due(2_000, 60)
    stored = calm.stored(shortest)
    assert [message.properties()["tw-id"] for message in stored] == [f"t{n}" for n in range(2_000)]
    assert len(entries_of(stored)) <= 200
    calm.await_all_acknowledged()
    calm.assert_no_copies()


class _Cutting(Through):
    """A client that sends batches of two at most."""

    def create_producer(self, topic: str, **options: Any) -> Any:
        if options.get("max_pending_messages") == 0:
            options["batching_max_messages"] = 2
        return self._inner.create_producer(topic, **options)


def test_groups_that_the_client_cuts_are_told_and_lose_nothing(stage: Stage) -> None:
    """broker-facts: batched-hops"""
    sent = [*stage.hold(7_000 for _ in range(50))]
    stage.relay(client=_Cutting(stage.client))
    stage.await_due(len(sent))
    stage.await_all_acknowledged()
    cut = stage.events.named("relay_batch_split")
    # All but groups of one or two, as a machine that lags gathers now and then: nothing cuts those.
    assert sum(event.messages for event in cut if isinstance(event, RelayBatchSplit)) >= 40


class _Mute(Through):
    """A client whose topic's end cannot be asked for, as while it is moved."""

    def subscribe(self, *args: Any, **options: Any) -> Any:
        return _MuteConsumer(self._inner.subscribe(*args, **options))


class _MuteConsumer(Through):
    asked = 0

    def get_last_message_id(self) -> Any:
        self.asked += 1
        if self.asked <= 3:
            raise pulsar.BrokerMetadataError
        return self._inner.get_last_message_id()


def test_a_question_that_fails_while_a_topic_moves_ends_no_session(stage: Stage) -> None:
    """It did: the relay subscribed anew, and its partition was silent for 11 s in one demo."""
    sent = [*stage.hold(2_100 for _ in range(50))]
    relay = stage.relay(client=_Mute(stage.client))
    stage.await_due(len(sent))
    stage.await_all_acknowledged()
    assert relay.status().total("failures") == 0


class _Asking(Through):
    """A client that counts requests for redelivery."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked = 0

    def subscribe(self, *args: Any, **options: Any) -> Any:
        return _AskingConsumer(self._inner.subscribe(*args, **options), self)


class _AskingConsumer(Through):
    def __init__(self, inner: Any, client: _Asking) -> None:
        super().__init__(inner)
        self._client = client

    def redeliver_unacknowledged_messages(self) -> None:
        self._client.asked += 1
        self._inner.redeliver_unacknowledged_messages()


def test_large_messages_that_are_asked_for_again_come_in_order(stage: Stage) -> None:
    """broker-facts: interleaved-redelivery. One request is enough; out of order each beginning asks for another one."""
    now = now_ms()
    producer = stage.producer(stage.tiers[0], batching_enabled=False)
    for number in range(40):
        producer.send(bytes(900_000), properties=Envelope(f"t{number}", now + 8_000, now).properties())
    asking = _Asking(stage.open_client())
    stage.relay(client=asking)
    stage.await_due(40)
    stage.await_all_acknowledged()
    # Each of two tiers' partitions asks once at its first message; one that is idle for 2 s asks once more,
    # and more of them are where the machine is busy; without the pause there were 13.
    assert asking.asked < 13
    stage.assert_no_copies()


def test_after_reload_the_holder_skips_what_it_forwarded(stage: Stage) -> None:
    """One batch whose messages leave over three seconds, and the last one later: half done, a reload delivers all of it
    again (broker-facts: lost-acknowledgements).
    """
    tier = stage.tiers[-1]
    now = now_ms()
    producer = stage.producer(tier, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(100):
        entered_ms = now - 500 + (30 * number if number < 99 else 8_000)
        envelope = Envelope(f"t{number}", entered_ms + 1_500 + 1_400, entered_ms)
        producer.send_async(b"", lambda *_: None, properties=envelope.properties())
    producer.flush()
    relay = stage.relay()
    eventually(lambda: relay.status().total("forwarded") >= 20, 60, poll=0.01)
    stage.unload(tier)
    stage.await_due(100)
    stage.await_all_acknowledged()
    stage.assert_no_copies()
    status = relay.status()
    assert status.total("skipped") + status.total("late") >= 20
    assert status.total("deduplicated") == 0, "skipped, not sent again"


@pytest.mark.short
def test_a_killed_broker_forgets_acknowledgements_and_nothing_is_doubled(make_local_pulsar: MakeLocalPulsar) -> None:
    broker = make_local_pulsar()
    with Stage(broker, patient()) as stage:
        sent = stage.hold(PATIENT_LEFT_MS for _ in range(3_000))
        # Each hop by itself, so that many acknowledgements are under way at the kill.
        relay = stage.relay(hop_linger_ms=0)
        eventually(lambda: relay.status().total("forwarded") >= 4_000, 60, poll=0.05)
        broker.kill()
        broker.start()
        stage.await_due(len(sent), 180)
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        status = relay.status()
        assert status.total("late") == 0
        assert status.total("skipped") + status.total("deduplicated") > 0, "nothing came again: the kill proved nothing"


def test_a_fast_producers_clock_blocks_nobody(stage: Stage) -> None:
    tier = stage.tiers[-1]  # 1.5 s
    relay = stage.relay()
    now = now_ms()
    skewed, sane = Envelope("skewed", now + 3_600_000, now + 3_590_000), Envelope("sane", now + 2_500, now)
    stage.put(tier, skewed)
    stage.put(tier, sane)
    stage.flush()
    (message,) = stage.await_due(1, 60)
    assert message.properties()["tw-id"] == "sane", "not after the hour that the envelope before it says"
    assert message.publish_timestamp() - now >= 1_500
    eventually(lambda: relay.status().total("late") >= 1)


def test_messages_that_say_they_entered_one_stay_after_the_other_block_nobody(stage: Stage) -> None:
    """Each was believed once the one before it had left: ten years of a partition for a few thousand messages."""
    tier = stage.tiers[0]  # 4 s
    now = now_ms()
    for number in range(40):
        stage.put(tier, Envelope(f"forged{number}", now + 3_600_000, now + number * 4_000))
    sane = Envelope("sane", now + 9_000, now)
    stage.put(tier, sane)
    stage.flush()
    stage.relay()
    (message,) = stage.await_due(1, 60)
    assert message.properties()["tw-id"] == "sane", "not after the 160 s of the others"


@pytest.mark.short
def test_a_wheel_of_many_slots_needs_few_threads(pulsar_broker: Broker) -> None:
    rings = Wheel(rings=(Ring(slot_ms=3_600_000, slots=28), Ring(slot_ms=86_400_000, slots=32)))
    with Stage(pulsar_broker, plan_of(rings, guard_ms=300_000, max_delay_ms=30 * 86_400_000)) as stage:
        started, relay = StartedThreads("timewheel-relay"), stage.relay()
        assert len(relay.status().partitions) == 60
        eventually(lambda: len(started.names()) <= 5, 60, poll=0.5, message="threads of a wheel at rest")
        states = [partition.state for partition in relay.status().partitions]
        assert states.count(PartitionState.RESTING) >= 56


@pytest.mark.short
def test_a_straggler_behind_a_later_turn_is_not_stuck_for_a_turn(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of(WHEEL)) as stage:
        relay = stage.relay()
        slot_ms, turn_ms = 2_000, 12_000
        due_ms = now_ms() // slot_ms * slot_ms + 3 * slot_ms + 1_000
        step = steps(stage.plan)[0]
        topic = stage.names.of_step(step)[due_ms // slot_ms % step.slots]
        now = now_ms()
        stage.put(topic, Envelope("later turn", due_ms + turn_ms, now))
        stage.put(topic, Envelope("straggler", due_ms, now))
        stage.flush()
        first = stage.await_due(1)
        assert [message.properties()["tw-id"] for message in first] == ["straggler"]
        assert first[0].publish_timestamp() < due_ms + 1_000
        assert relay.status().total("refiled") >= 1
        assert {message.properties()["tw-id"]: message for message in stage.await_due(2)}.keys() == {
            "straggler",
            "later turn",
        }
        stage.assert_no_copies()
        stage.await_all_acknowledged()


@pytest.mark.real
def test_a_slot_is_left_though_its_last_entry_is_hidden(pulsar_broker: Broker) -> None:
    """Nothing comes behind it but a probe of the relay's own."""
    with Stage(pulsar_broker, plan_of(WHEEL)) as stage:
        at_ms = now_ms()
        route = stage.router.route(at_ms + 5_000, at_ms)
        assert isinstance(route, Hold)
        with RawProducer(stage.broker.service_url, f"{route.topic}-partition-0") as producer:
            producer.send(metadata_of(properties=Envelope("t", at_ms + 5_000, at_ms).properties()), b"due")
            producer.send(OPENS_NEVER, b"garbage")
        relay = stage.relay()
        stage.await_due(1)
        eventually(lambda: len(stage.stored(stage.names.dead_letter)) == 1, 60)
        stage.await_all_acknowledged()

        def rests() -> bool:
            (slot,) = [one for one in relay.status().partitions if one.topic.startswith(f"{route.topic}-partition-")]
            return slot.state is PartitionState.RESTING

        eventually(rests, 60)
