"""Services in Java and for Node, which know nothing of timewheel, on a due topic that has a shadow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.support.other_languages import Line, Program, java, node, timers
from timewheel.core.envelope import DUE_PROPERTY, ID_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.keys import partition_for_key
from timewheel.core.names import partition_topic
from timewheel.shadow.machine.states import State
from timewheel.testing import Broker

KEYS = ("customer-7", "Zürich", "日本", "😀")
DELAYS_MS = (0, 1_000, 5_000, 6_000)
"""Due at once, within what stays in the due topic (2.0 s), and two that wait elsewhere."""
PLAIN = {f"{key}, delayed": delay_ms for key, delay_ms in zip(KEYS, DELAYS_MS, strict=True)}
BY_INTAKE = {f"{key}, by the intake": delay_ms for key, delay_ms in zip(KEYS, DELAYS_MS, strict=True)}
FAR_MS = 3_000


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    plan = plan_of(relay="service", readers="any", intake=True, partitions=3)
    with ShadowStage(pulsar_broker, plan) as stage:
        stage.desired(State.SHADOWING)
        stage.shadow()
        yield stage


@pytest.mark.parametrize("program", [java, node], ids=["java", "node"])
def test_a_service_sends_both_ways_and_handles_each_timer_once(stage: ShadowStage, program: Program) -> None:
    """Both clients find the same partition by a key, and it stays on it, whichever way it goes."""
    topic, count = stage.plan.due_topic, len(PLAIN) + len(BY_INTAKE)
    said = program(
        stage.broker,
        *("plain", topic, timers(PLAIN)),
        *("intake", topic, timers(BY_INTAKE)),
        *("receive", topic, BUSINESS, count),
    )
    sent, received = by_key(said.sent), by_key(said.received)
    assert set(sent) == set(received) == {*PLAIN, *BY_INTAKE}
    assert {line["payload"] for line in said.received} == {"renew"}
    for key, line in received.items():
        due_ms, properties = sent[key]["due_ms"], dict(line["properties"])
        assert line["at_ms"] >= due_ms - stage.plan.tick_ms, "a broker is early by a tick at most"
        assert properties.pop("sender") == program.__name__
        partition = partition_for_key(key, stage.plan.partitions)
        if program is java:  # the WebSocket API does not tell it
            assert line["topic"] == partition_topic(topic, partition)
        was_moved = PLAIN.get(key, 0) >= FAR_MS
        if key in PLAIN and not was_moved:
            assert properties == {}
            continue
        assert set(properties) == {ID_PROPERTY, TIMER_PROPERTY}
        envelope = Envelope.read(properties)
        assert envelope is not None
        came_by = partition_topic(topic if was_moved else stage.names.intake, partition)
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
