"""The relay on a real broker: what it promises when all is well, and with bad input."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import TIERED, WHEEL, Stage, patient, plan_of
from tests.support.through import Through
from timewheel.core.envelope import Envelope
from timewheel.core.errors import ClientMisuse, TopologyError
from timewheel.core.names import DEAD_LETTER_SUBSCRIPTION, partition_topic
from timewheel.core.plan import Calendar, Scheme, Tiered
from timewheel.provision import ensure
from timewheel.relay import PartitionState, Relay
from timewheel.testing import Broker, eventually

BROKER_HELD = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000), hold="broker")


def hops_of(message: Any) -> int:
    envelope = Envelope.read(message.properties())
    assert envelope is not None
    return envelope.hops


@pytest.mark.parametrize("scheme", [TIERED, BROKER_HELD, WHEEL], ids=["relay-held", "broker-held", "wheel"])
def test_every_timer_comes_to_the_due_topic_in_time_and_once(pulsar_broker: Broker, scheme: Scheme) -> None:
    # A broker releases up to a tick late (broker-facts: a-tick-early-or-late), which is more than this plan's guard.
    tick_ms = 1_000 if scheme is BROKER_HELD else 0
    with Stage(pulsar_broker, plan_of(scheme, partitions=2)) as stage:
        relay = stage.relay()
        sent = {envelope.timer_id: envelope for envelope in stage.hold(4_600 + number % 3_000 for number in range(600))}
        due = stage.await_due(len(sent))
        stage.assert_no_copies()
        in_time = 0
        for message in due:
            envelope = Envelope.read(message.properties())
            assert envelope is not None
            assert envelope.due_ms == sent[envelope.timer_id].due_ms
            in_time += message.publish_timestamp() <= envelope.due_ms + tick_ms
            assert 1 <= envelope.hops <= 3 or stage.is_late
            assert message.topic_name().endswith(str(int(envelope.timer_id[1:]) % 2)), "the partition stays"
        stage.await_all_acknowledged()
        # A machine that stalls makes some late, and a wrong release all of them.
        assert in_time > len(due) / 10
        status = relay.status()
        assert stage.is_late or status.total("forwarded") == sum(hops_of(message) for message in due)
        assert status.total("dead") == status.total("failures") == status.total("refiled") == 0


def test_what_is_no_timer_is_parked_with_its_reason_and_blocks_nobody(stage: Stage) -> None:
    tier = stage.tiers[-1]
    producer = stage.producer(tier, batching_enabled=False)
    now = now_ms()
    bad = {
        b"foreign": {},
        b"foreign with properties": {"colour": "grün", "tw": "not ours"},
        b"garbled": {"tw-id": "x", "tw-timer": "1 soon"},
        b"half": {"tw-timer": f"1 {now + 9_000} 0 0 {now} 1"},
        b"too many hops": Envelope("x", now + 9_000, now, hops=10_000).properties(),
    }
    for payload, properties in bad.items():
        producer.send(payload, properties=properties or None, partition_key="k", event_timestamp=77)
    stage.put(tier, Envelope("good", now + 2_500, now))
    stage.flush()
    stage.relay()
    stage.await_due(1)
    dead = {message.data(): message for message in stage.stored(stage.names.dead_letter)}
    assert set(dead) == set(bad)
    for payload, properties in bad.items():
        found = dead[payload].properties()
        assert properties.items() <= found.items()
        assert found["tw-dead-from"] == f"{tier}-partition-0"
        assert dead[payload].partition_key() == "k"
        assert dead[payload].event_timestamp() == 77
    reasons = {payload: message.properties()["tw-dead-reason"] for payload, message in dead.items()}
    assert "no envelope" in reasons[b"foreign"]
    assert "garbled" in reasons[b"garbled"]
    assert "10000 hops" in reasons[b"too many hops"]
    stage.await_all_acknowledged()
    backlog = stage.admin.topics.partitioned_stats(stage.names.dead_letter, precise_backlog=True).total
    assert 1 <= backlog.subscriptions[DEAD_LETTER_SUBSCRIPTION].backlog <= len(bad), "somebody can read them"


def test_a_dead_letter_is_told_once_it_is_stored_and_not_while_its_topic_refuses_it(stage: Stage) -> None:
    producer = stage.producer(stage.tiers[-1], batching_enabled=False)
    producer.send(b"opens the producer")
    relay = stage.relay(start=False).start()
    eventually(lambda: stage.events.named("relay_dead_letter"), 60)
    stage.admin.topics.terminate(stage.names.dead_letter)
    producer.send(b"foreign")
    eventually(lambda: stage.events.named("relay_session_failed"), 60)
    assert relay.status().total("dead") == len(stage.events.named("relay_dead_letter")) == 1
    stage.admin.topics.delete(stage.names.dead_letter, force=True)
    ensure(stage.admin, stage.plan, now_ms=now_ms())
    eventually(lambda: relay.status().total("dead") == 2, 60)
    assert [message.data() for message in stage.stored(stage.names.dead_letter)] == [b"foreign"]
    stage.await_all_acknowledged()


def test_a_stop_drains_what_is_under_way_and_the_next_relay_goes_on_behind_it(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, patient()) as stage:
        sent = stage.hold_for_one_hop(2_000)
        first = stage.relay()
        eventually(lambda: first.status().total("forwarded") > 0, 60, poll=0.001)
        first.stop(10_000)
        done = first.status().total("forwarded")
        assert {partition.state for partition in first.status().partitions} == {PartitionState.CLOSED}
        assert not first.ready
        assert len(stage.copies()) == done, "confirmed, every one of them"
        second = stage.relay()
        stage.await_due(len(sent))
        stage.await_all_acknowledged()
        stage.assert_no_copies()
        again = second.status().total("deduplicated")
        assert done + second.status().total("forwarded") - again == len(sent)
        assert again < 1_000, "acknowledged, but for the batch that the drain ended in"


def test_large_messages_pass_a_few_at_a_time(stage: Stage) -> None:
    """broker-facts: windows-in-bytes; by their properties, too: a group of these would be more than an entry may be."""
    now = now_ms()
    longest = stage.tiers[0]
    producer = stage.producer(longest, batching_enabled=False)
    for number in range(40):
        envelope = Envelope(f"t{number}", now + 12_000, now)
        producer.send(
            bytes(2_000_000) if number % 2 else b"", properties={**envelope.properties(), "note": "x" * 400_000}
        )
    relay = stage.relay()
    stage.await_due(40)
    stage.await_all_acknowledged()
    stage.assert_no_copies()
    assert relay.status().total("failures") == relay.status().total("dead") == 0


class _Queues(Through):
    """A client that notes how long the queues are that it is asked for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.of: dict[str, list[int]] = defaultdict(list)

    def subscribe(self, topic: str, *args: Any, **options: Any) -> Any:
        self.of[topic].append(options["receiver_queue_size"])
        return self._inner.subscribe(topic, *args, **options)


def test_what_is_received_ahead_keeps_to_the_budget_once_it_is_known_to_be_large(stage: Stage) -> None:
    """broker-facts: queues-count-entries. Half of 32 MB is for two queues: 3 groups each, or 2 of 4 MB."""
    now = now_ms()
    longest, shortest = (partition_topic(tier, 0) for tier in stage.tiers)
    producer = stage.producer(stage.tiers[0], batching_enabled=False)
    for number in range(20):
        size = 4_000_000 if number >= 10 else 100_000
        producer.send(bytes(size), properties=Envelope(f"t{number}", now + 8_000, now).properties())
    queues = _Queues(stage.client)
    relay = stage.relay(client=queues, memory_bytes=32 << 20)
    stage.await_due(20)
    stage.await_all_acknowledged()
    assert queues.of.keys() == {longest, shortest}
    for asked in queues.of.values():
        assert asked[:2] == [3, 2]
        assert set(asked[2:]) <= {2}, "of sessions that began anew"
    stage.assert_no_copies()
    assert relay.status().total("failures") == relay.status().total("dead") == 0


def test_a_due_topic_with_fewer_partitions_than_its_tiers_is_refused(stage: Stage) -> None:
    for tier in stage.tiers:
        stage.admin.topics.update_partitions(tier, 2)
    with pytest.raises(TopologyError, match="has 1 partition, and the plan says 2"):
        stage.relay()


def test_partitions_that_an_operator_added_are_relayed_as_well(stage: Stage) -> None:
    for topic in (stage.plan.due_topic, *stage.tiers):
        stage.admin.topics.update_partitions(topic, 2)
    now = now_ms()
    stage.put(stage.tiers[-1], Envelope("new", now + 2_100, now), partition=1)
    stage.flush()
    stage.relay()
    eventually(lambda: stage.stored(stage.plan.due_topic, 1))


def test_a_plan_without_holding_topics_needs_no_relay(stage: Stage) -> None:
    relay = Relay(stage.client, plan_of(Calendar(interval_ms=60_000)))
    assert [relay.ready, relay.start().ready] == [False, True]
    assert relay.status().partitions == ()
    relay.stop()
    assert not relay.ready
    with pytest.raises(ClientMisuse):
        relay.start()
