"""What plain clients do, and no shadow can forbid: properties sent on, schemas that are refused, pauses in bursts."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import ShadowStage, moved, shadow_plan, staged
from tests.broker.test_shadow_life import AHEAD_MS, DAYS, send
from tests.support.raw_producer import RawProducer, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import MAX_TIME_MS
from timewheel.core.names import Names
from timewheel.shadow.desired_state import desired_for
from timewheel.shadow.driver import move_session
from timewheel.shadow.driver.move_versions import MAX_VERSIONS
from timewheel.shadow.driver.recovery import ack_again
from timewheel.shadow.machine.move_decider import MoveDecision
from timewheel.shadow.machine.nudges import FIRST_NUDGE
from timewheel.shadow.machine.states import State, caught_up_in, desired_in
from timewheel.testing import Broker, eventually


def test_what_a_consumer_sends_on_with_its_properties_comes_at_its_own_due_time(on: ShadowStage) -> None:
    """As a job that plans its next run does, or a client's own retry."""
    consumer, shadow = on.plain_consumer(), on.shadow()
    send(on, range(1), due_ms=now_ms() + AHEAD_MS)
    eventually(lambda: consumer.handled["0"] == 1, 60)
    given = consumer.messages["0"].properties()
    assert "tw-timer" in given, "it came by the shadow"
    due_ms = now_ms() + AHEAD_MS
    producer = on.plain_producer()
    producer.send(f"again {due_ms}".encode(), properties={**given, "colour": "red"}, deliver_at=due_ms)
    eventually(lambda: moved(shadow) == 2, 60)
    eventually(lambda: consumer.handled["again"] == 1, 60)
    assert consumer.lateness_ms["again"] >= -1_000, "by the broker's tick at the most"
    again = consumer.messages["again"].properties()
    assert (again["colour"], again["tw-id"] == given["tw-id"]) == ("red", False)


ODD: dict[str, tuple[MoveDecision, dict[str, Any]]] = {
    "an ordering key of bytes": (MoveDecision.NO_TEXT, {"ordering_key": uuid.UUID(int=255 << 120).bytes}),
    "a property of bytes": (MoveDecision.NO_TEXT, {"properties": {"place": "caf\udce9"}}),
    "a schema version that is not there": (MoveDecision.SCHEMA, {"schema_version": (99).to_bytes(8, "big")}),
    "another that is not there": (MoveDecision.SCHEMA, {"schema_version": (1 << 62).to_bytes(8, "big")}),
    "a schema version of no 64 bits": (MoveDecision.DEFECT, {"schema_version": b"\x01" * 200}),
    "a payload that does not open": (MoveDecision.DAMAGED, {"compression": 3, "uncompressed_bytes": 7}),
    "a size that lies": (MoveDecision.DAMAGED, {"compression": 1, "uncompressed_bytes": 1}),
    "a line of no timer": (MoveDecision.UNREADABLE, {"properties": {"tw-id": "x", "tw-timer": "3 anything"}}),
}  # fmt: skip
"""What no relay could carry, or no client read: by what becomes of it, and what its producer writes. An ordering key is
bytes in Java and Go."""


def test_no_entry_stops_its_neighbours(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan(max_delay_ms=600_000)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
        due_ms = now_ms() + AHEAD_MS
        with RawProducer(pulsar_broker.service_url, on.parts()[0]) as raw:
            for number, (_, facts) in enumerate(ODD.values()):
                raw.send(metadata_of(deliver_at_ms=due_ms + 300_000, **facts), b"odd")
                send(on, range(number, number + 1), due_ms=due_ms)
        eventually(lambda: moved(shadow) == len(ODD), 60)
        eventually(lambda: len(consumer.handled) == len(ODD), 60)
        assert consumer.again == 0
        (mover,) = shadow.shadow_status().movers
        assert mover.failures == 0, mover.reason
        met = Counter(decision.value for decision, _ in ODD.values())
        assert {why: mover.decisions[why] for why in met} == met
        told = [str(event.fields["why"]) for event in on.events.named("shadow_stays_native")]
        assert sorted(told) == sorted(met), "each reason once"


class Renewal(Record):  # type: ignore[misc]  # the client has no types
    number = String()


def test_what_nobody_may_register_stays_and_all_else_is_lifted(pulsar_broker: Broker) -> None:
    space = f"public/frozen-{now_ms()}"
    plan = replace(shadow_plan(DAYS, max_delay_ms=30 * DAY_MS), due_topic=f"persistent://{space}/renewals")
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.namespaces.create(space)
    with staged(pulsar_broker, plan) as on:
        producer = on.plain_producer(schema=AvroSchema(Renewal))
        on.admin._http.call("POST", f"/namespaces/{space}/isAllowAutoUpdateSchema", body=False)
        shadow = on.shadow()
        for number in range(3):
            producer.send(Renewal(number=str(number)), deliver_at=now_ms() + 3 * DAY_MS)
        send(on, range(20), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: moved(shadow) == 20, 60)
        decisions = [event.fields["why"] for event in on.events.named("shadow_stays_native")]
        assert decisions == [MoveDecision.SCHEMA.value]
        assert shadow.shadow_status().movers[0].failures == 0


def test_many_schema_versions_cost_a_few_sessions_and_those_beyond_the_bound_stay(pulsar_broker: Broker) -> None:
    """Whoever may register schemas may register any number, and all others wait while they are fenced."""
    beyond = 3
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        due_ms = now_ms() + 3 * DAY_MS
        for number in range(MAX_VERSIONS + beyond):
            fields = {f"field{index}": String(required_default=True) for index in range(number + 1)}
            record = type("Renewal", (Record,), fields)
            on.plain_producer(schema=JsonSchema(record)).send(record(), deliver_at=due_ms)
        send(on, range(20), due_ms=due_ms)
        shadow = on.shadow()
        eventually(lambda: moved(shadow) == MAX_VERSIONS + 20, 60, message=str(shadow.shadow_status()))
        assert shadow.shadow_status().movers[0].decisions[MoveDecision.SCHEMA.value] == beyond
        (told,) = on.events.named("shadow_stays_native")
        assert f"of the {MAX_VERSIONS} versions that were met first" in str(told.fields["reason"])
        assert len(on.events.named("shadow_moves_again")) <= 3, "each reads the journal and fences what was met"


@pytest.mark.parametrize("state", [State.PAUSED, State.DRAINING])
def test_a_stir_is_taken_out_also_when_nothing_more_is_lifted(pulsar_broker: Broker, state: State) -> None:
    plan = shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)
    with staged(pulsar_broker, plan) as on:
        shadow = on.shadow()
        send(on, range(FIRST_NUDGE), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: shadow.shadow_status().movers[0].nudges == 1, 60, poll=0.01)
        on.desired(state)
        eventually(lambda: shadow.view.desired.state is state, 60)
        back = 0 if state is State.PAUSED else FIRST_NUDGE

        def pending() -> int:
            stats = on.admin.topics.stats(on.parts()[0], precise_backlog=True)
            return stats.subscriptions[BUSINESS].backlog

        eventually(lambda: pending() == back, 60, message="nobody is to be given the nudge")


def test_a_stir_that_says_it_is_of_a_far_year_does_not_keep_others_in_the_topic(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        shadow = on.shadow()
        with RawProducer(pulsar_broker.service_url, on.parts()[0]) as raw:
            for publish_ms in (MAX_TIME_MS, now_ms()):
                nudge = metadata_of(
                    properties={"tw-nudge": "1"}, deliver_at_ms=now_ms() + 3 * DAY_MS, publish_ms=publish_ms
                )
                raw.send(nudge)
        eventually(lambda: shadow.shadow_status().movers[0].decisions[MoveDecision.NUDGE.value] == 2, 60)

        def pending() -> int:
            return on.admin.topics.stats(on.parts()[0], precise_backlog=True).subscriptions[BUSINESS].backlog

        eventually(lambda: pending() == 0, 60)


def test_what_is_noted_is_withdrawn_until_a_backlog_is_gone_through(pulsar_broker: Broker) -> None:
    """By the clock of whoever began it, which may be ahead; and not by what was noted before an outage."""
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        journal = Names(on.plan).journal
        ahead_ms = now_ms() + 60_000
        desired_for(on.admin, on.plan, State.PAUSED, now_ms=now_ms())
        desired_for(on.admin, on.plan, State.SHADOWING, now_ms=ahead_ms)
        shadow = on.shadow()

        def noted() -> int | None:
            properties = on.admin.topics.properties(journal)
            return caught_up_in(properties, 0, desired_in(properties))

        eventually(lambda: noted() is not None, 60)
        assert noted() == ahead_ms
        shadow.stop(5_000)
        send(on, range(20_000), due_ms=now_ms() + 3 * DAY_MS)
        on.mover()
        eventually(lambda: noted() is None, 60, poll=0.01)
        eventually(lambda: noted() == ahead_ms, 60)


def test_a_reload_while_the_journal_is_read_is_noticed(pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker forgot then was pending to whoever looked before; so the session begins anew."""
    reloads = iter([True])

    def interrupted(*args: Any, **more: Any) -> tuple[int, int]:
        found = ack_again(*args, **more)
        if next(reloads, False):
            on.admin.topics.unload(on.plan.due_topic)
        return found

    monkeypatch.setattr(move_session, "ack_again", interrupted)
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        shadow = on.shadow()
        send(on, range(20), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: moved(shadow) == 20, 60)
        mover = shadow.shadow_status().movers[0]
        assert mover.failures == 1
        assert "loaded again" in str(mover.reason)
