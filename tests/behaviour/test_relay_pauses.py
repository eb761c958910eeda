"""Relays whose broker pauses, dies or comes back, and that are stuck themselves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import PATIENT_LEFT_MS, WHEEL, Stage, patient, plan_of
from tests.support.wrong_hops import HopClient, RelayPoint
from timewheel.client.hooks import LOST_AFTER_MS
from timewheel.consumers import DelayedConsumer
from timewheel.consumers.errors import ReceiveTimeout
from timewheel.core.envelope import Envelope
from timewheel.core.names import partition_topic
from timewheel.core.plan import Ring, Wheel
from timewheel.core.steps import steps
from timewheel.relay import PartitionState
from timewheel.testing import LocalPulsar, eventually


def test_an_embedded_relay_that_is_stuck_says_that_it_is_not_ready(stage: Stage) -> None:
    go_on = threading.Event()

    def wait_at(point: RelayPoint) -> None:
        if point == "before_forward":
            go_on.wait(60)

    relay = stage.relay(client=HopClient(stage.client, wait_at), stuck_ms=5_000)
    stage.hold([2_100])
    eventually(lambda: not relay.ready, 60, poll=0.2)
    go_on.set()
    eventually(lambda: relay.ready, 60, poll=0.2)
    stage.await_due(1)


ONCE = Wheel(rings=(Ring(slot_ms=8_000, slots=8, headstart_ms=500),))
"""A turn of it is longer than the test takes: each slot is looked into once."""


def fill_last_turn(stage: Stage) -> int:
    """One timer into every slot, as if no relay had been there for the last turn but one."""
    step = steps(stage.plan)[0]
    topics = stage.names.of_step(step)
    turn_ms = step.slots * step.slot_ms
    last_turn_ms = (now_ms() // turn_ms - 1) * turn_ms
    for slot, topic in enumerate(topics):
        due_ms = last_turn_ms + slot * step.slot_ms
        stage.put(topic, Envelope(f"{last_turn_ms}-{slot}", due_ms, due_ms - 4_000))
    stage.flush()
    return len(topics)


def test_a_broker_that_pauses_leaves_no_full_slot_behind(mortal: LocalPulsar) -> None:
    """An empty receive of a second was taken for an empty slot, whose timers then waited for a whole turn."""
    with Stage(mortal, plan_of(WHEEL)) as stage:
        filled = fill_last_turn(stage)
        relay = stage.relay(start=False)
        relay.start()
        # Subscribed, and nothing delivered yet: a broker begins to read a second later.
        eventually(lambda: sum(part.state is PartitionState.RUNNING for part in relay.status().partitions) >= 4, 60)
        mortal.pause()
        try:
            assert not relay.ready
            frozen_ms = now_ms()
            eventually(lambda: now_ms() - frozen_ms > 2_500)  # two empty receives of every slot that is looked into
            assert not relay.ready, "what it could not look into it does not call empty"
        finally:
            mortal.resume()
        eventually(lambda: relay.ready, 60, message=str(relay.status()))
        assert len(stage.copies()) == filled, "all that was there when it said ready"


def test_what_a_killed_broker_forgot_does_not_stay_in_the_backlog(mortal: LocalPulsar) -> None:
    """The client hides what it has acknowledged once: nobody acknowledged it again while the tier was quiet."""
    with Stage(mortal, patient()) as stage:
        relay = stage.relay(hop_linger_ms=0)
        sent = 0
        for count in range(4, 12):
            now = now_ms()
            for number in range(count):  # a broker writes down an acknowledgement a second, and the last in a minute
                timer = Envelope(f"{count}-{number}", now + PATIENT_LEFT_MS, now - 1_000 + 250 * number)
                stage.put(stage.tiers[0], timer)
                stage.flush()
            sent += count
            stage.await_due(sent)
            stage.await_all_acknowledged()
            mortal.kill()
            mortal.start()
            if any(stage.holding(tier).backlog for tier in stage.tiers):
                break
        else:
            pytest.fail("nothing was forgotten: the kills proved nothing")
        stage.await_all_acknowledged(180)
        stage.assert_no_copies()
        assert relay.status().total("late") == 0


@pytest.mark.short
def test_slots_that_were_emptied_by_others_are_proven_empty_and_left(mortal: LocalPulsar) -> None:
    with Stage(mortal, plan_of(ONCE)) as stage:
        first = stage.relay(relay_id="first")
        filled = fill_last_turn(stage)
        first.stop()
        relays = [stage.relay(client=stage.open_client(), relay_id=name, start=False) for name in ("a", "b", "c")]
        for relay in relays:
            relay.start()
        eventually(lambda: all(relay.ready for relay in relays), 180)  # they leave one after the other
        assert len(stage.copies()) == filled
        stage.assert_no_copies()
        again = stage.relay(relay_id="again")  # everything is acknowledged: only a probe can tell
        assert again.status().total("dead") == again.status().total("forwarded") == 0
        stage.await_all_acknowledged()


@pytest.mark.real
def test_neither_relay_nor_consumer_is_ready_without_a_connection_and_a_service_lives_on(
    mortal: LocalPulsar, tmp_path: Path
) -> None:
    """To restart a process does not bring a broker back, so its page of life must not ask for that."""
    plan = plan_of()
    with (
        Stage(mortal, plan) as stage,
        RelayProcess(mortal, plan, tmp_path) as service,
        DelayedConsumer(stage.client, plan, plan.subscriptions[0], relay=False, hooks=(stage.events,)) as consumer,
    ):
        relay = stage.relay()
        assert consumer.ready
        service.await_ready()
        assert [service.ask(path).status_code for path in ("/livez", "/readyz")] == [200, 200]
        mortal.kill()
        eventually(lambda: not relay.ready, 60)
        eventually(lambda: not consumer.ready, 60)
        assert not any(partition.connected for partition in relay.status().partitions)
        with pytest.raises(ReceiveTimeout):
            consumer.receive(timeout_millis=LOST_AFTER_MS + 1_500)
        lost = {event.fields["topic"] for event in stage.events.named("connection_lost")}
        assert partition_topic(plan.due_topic, 0) in lost
        assert {partition.topic for partition in relay.status().partitions} & lost
        assert [service.ask(path).status_code for path in ("/livez", "/readyz")] == [200, 503]
        mortal.start()
        eventually(lambda: relay.ready and consumer.ready, 60, message=str(relay.status()))
        eventually(lambda: service.ask("/readyz").status_code == 200, 60)
        with pytest.raises(ReceiveTimeout):
            consumer.receive(timeout_millis=500)
        assert partition_topic(plan.due_topic, 0) in {
            event.fields["topic"] for event in stage.events.named("connection_back")
        }
