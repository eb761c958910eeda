"""What a sender to the intake may expect (docs/specification.md), and services in Java and for Node beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import PlainConsumer, ShadowStage
from tests.support.other_languages import Line, Program, java, node, timers
from timewheel.client.dead_letters import DEAD_FROM, DEAD_REASON
from timewheel.core.envelope import DUE_PROPERTY, FROM_PROPERTY, ID_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.names import partition_for_key, partition_topic
from timewheel.core.plan import Tiered
from timewheel.shadow.desired_state import State
from timewheel.testing import Broker, eventually


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    with ShadowStage(pulsar_broker, plan_of(relay="service", readers="any", intake=True)) as stage:
        stage.desired(State.SHADOWING)
        stage.shadow()
        yield stage


def test_what_is_refused_is_a_dead_letter_that_says_why(stage: ShadowStage) -> None:
    producer = stage.plain_producer(stage.names.intake)
    due_ms = now_ms() + stage.plan.max_delay_ms + 60_000
    producer.send(b"forgotten", properties={"colour": "red"})
    producer.send(b"garbled", properties={DUE_PROPERTY: "tomorrow"})
    producer.send(b"beyond", properties={DUE_PROPERTY: str(due_ms)})
    producer.send(b"seconds", properties={DUE_PROPERTY: str(due_ms // 1_000)})
    producer.send(b"whole", properties={ID_PROPERTY: "whole", TIMER_PROPERTY: f"1 {due_ms} 0 0 {now_ms()} 1"})
    producer.send(b"later", properties={ID_PROPERTY: "later", TIMER_PROPERTY: "3 anything"})
    producer.send(b"fine", properties={DUE_PROPERTY: str(now_ms())})

    assert [message.data() for message in stage.await_due(1)] == [b"fine"], "what stands behind them goes on"
    eventually(lambda: len(stage.stored(stage.names.dead_letter)) == 6, 60)
    dead_letters = {message.data(): message.properties() for message in stage.stored(stage.names.dead_letter)}
    assert "no due time" in dead_letters[b"forgotten"][DEAD_REASON]
    assert "garbled" in dead_letters[b"garbled"][DEAD_REASON]
    assert "not seconds" in dead_letters[b"seconds"][DEAD_REASON]
    assert "max_delay" in dead_letters[b"beyond"][DEAD_REASON]
    assert "max_delay" in dead_letters[b"whole"][DEAD_REASON]
    assert "upgrade" in dead_letters[b"later"][DEAD_REASON]
    assert dead_letters[b"forgotten"]["colour"] == "red"
    assert dead_letters[b"beyond"][DUE_PROPERTY] == str(due_ms), "as it was sent"
    assert {dead_letter[DEAD_FROM] for dead_letter in dead_letters.values()} == {partition_topic(stage.names.intake, 0)}


def test_what_a_client_repeats_is_stored_once_and_what_a_sender_repeats_is_a_copy(stage: ShadowStage) -> None:
    properties = {DUE_PROPERTY: str(now_ms() + 4_000), ID_PROPERTY: "order-7"}
    for _ in range(2):  # as after a reconnection: the same name, the same sequence id
        producer = stage.plain_producer(stage.names.intake, producer_name="orders")
        producer.send(b"x", properties=properties, sequence_id=1)
        producer.close()
    stage.plain_producer(stage.names.intake).send(b"x", properties=properties)

    eventually(lambda: len(stage.due()) == 2, 60)
    stage.await_all_acknowledged()
    assert stage.copies() == {"order-7": 2}
    stored = [message for message in stage.stored(stage.names.intake) if ID_PROPERTY in message.properties()]
    assert len(stored) == 2


def test_no_sender_has_the_message_of_another_acknowledged(pulsar_broker: Broker) -> None:
    """Where an original stands is read in the journal alone, to which only the shadow's role may produce."""
    plan = plan_of(Tiered(window_ms=20_000, tiers_ms=(20_000,)), relay="service", readers="any", intake=True)
    with ShadowStage(pulsar_broker, plan) as stage:
        stage.desired(State.SHADOWING)
        stage.shadow()
        consumer = PlainConsumer(stage.client, plan.due_topic)
        producer, due_ms = stage.plain_producer(plan.due_topic), now_ms() + 10_000
        victims = [producer.send(b"victim%d" % number, deliver_at=due_ms) for number in range(5)]
        intake = stage.plain_producer(stage.names.intake)
        for number, victim in enumerate(victims):
            place = f"{victim.ledger_id()}:{victim.entry_id()} {now_ms()}"
            properties = {DUE_PROPERTY: str(now_ms()), FROM_PROPERTY: place}
            intake.send(b"forged%d" % number, properties=properties)
            line = Envelope(f"forged-{number}", now_ms(), now_ms(), revision=plan.revision)
            intake.send(b"enveloped%d" % number, properties={**line.properties(), FROM_PROPERTY: place})

        eventually(lambda: len(consumer.handled) == 15, 60)
        assert consumer.again == 0
        assert not any(FROM_PROPERTY in message.properties() for message in consumer.messages.values())
        consumer.close()


KEYS = ("customer-7", "Zürich", "日本", "😀")
DELAYS_MS = (0, 1_000, 5_000, 6_000)
"""Due at once, within what stays in the due topic (2.0 s), and two that wait elsewhere."""
PLAIN = {f"{key}, delayed": delay_ms for key, delay_ms in zip(KEYS, DELAYS_MS, strict=True)}
BY_INTAKE = {f"{key}, by the intake": delay_ms for key, delay_ms in zip(KEYS, DELAYS_MS, strict=True)}
FAR_MS = 3_000


@pytest.fixture
def shadowed(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    plan = plan_of(relay="service", readers="any", intake=True, partitions=3)
    with ShadowStage(pulsar_broker, plan) as shadowed:
        shadowed.desired(State.SHADOWING)
        shadowed.shadow()
        yield shadowed


@pytest.mark.real
@pytest.mark.parametrize("program", [java, node], ids=["java", "node"])
def test_a_service_sends_both_ways_and_handles_each_timer_once(shadowed: ShadowStage, program: Program) -> None:
    """Both clients find the same partition by a key, and it stays on it, whichever way it goes."""
    topic, count = shadowed.plan.due_topic, len(PLAIN) + len(BY_INTAKE)
    said = program(
        shadowed.broker,
        *("plain", topic, timers(PLAIN)),
        *("intake", topic, timers(BY_INTAKE)),
        *("receive", topic, BUSINESS, count),
    )
    sent, received = by_key(said.sent), by_key(said.received)
    assert set(sent) == set(received) == {*PLAIN, *BY_INTAKE}
    assert {line["payload"] for line in said.received} == {"renew"}
    for key, line in received.items():
        due_ms, properties = sent[key]["due_ms"], dict(line["properties"])
        assert line["at_ms"] >= due_ms - shadowed.plan.tick_ms, "a broker is early by a tick at most"
        assert properties.pop("sender") == program.__name__
        partition = partition_for_key(key, shadowed.plan.partitions)
        if program is java:  # the WebSocket API does not tell it
            assert line["topic"] == partition_topic(topic, partition)
        was_moved = PLAIN.get(key, 0) >= FAR_MS
        if key in PLAIN and not was_moved:
            assert properties == {}
            continue
        assert set(properties) == {ID_PROPERTY, TIMER_PROPERTY}
        envelope = Envelope.read(properties)
        assert envelope is not None
        came_by = partition_topic(topic if was_moved else shadowed.names.intake, partition)
        assert envelope.timer_id.startswith(f"{came_by}:"), "named by the place where its sender put it"
        assert abs(envelope.due_ms - due_ms) < 1_000, "what a client reckons from a delay is its own affair"
        if key in BY_INTAKE:
            assert envelope.due_ms == due_ms
    ids = {line["properties"].get(ID_PROPERTY) for line in received.values()} - {None}
    assert len(ids) == count - sum(delay_ms < FAR_MS for delay_ms in DELAYS_MS), "though Java's client makes batches"
    assert DUE_PROPERTY not in str(said.received)


def by_key(lines: list[Line]) -> dict[str, Line]:
    found = {line["key"]: line for line in lines}
    assert len(found) == len(lines), "each once"
    return found
