"""Whatever a stranger writes into the properties of a timer, alone or together: a relay, the intake and a consumer each
decide about it, publish nowhere else than the plan has topics, and write only what can be read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import NOW_MS, plans
from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import Hooks
from timewheel.consumers.engine import (
    MAX_GIVEN_BACK,
    Acknowledge,
    Deliver,
    Engine,
    HandledWindow,
    NegativeAcknowledge,
    Republish,
)
from timewheel.consumers.message import Arrival, InFlight, Parked, ToRetry, beside_shadow, reading_of
from timewheel.consumers.republisher import Republisher, _kept
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.envelope import MAX_TIME_MS, Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.plan import Calendar, Plan
from timewheel.core.routing import Router
from timewheel.core.steps import INTAKE_STEP, steps
from timewheel.core.topology import topology
from timewheel.relay.machine.readings import parsed, taken_in

_digits = st.integers(0, 10**20).map(str) | st.sampled_from(
    ["", "0", "007", "-1", "9" * 15, "9" * 16, "9" * 5_000, "²"]
)
_times = st.integers(0, MAX_TIME_MS + 1).map(str) | st.integers(NOW_MS - 10**9, NOW_MS + 10**10).map(str) | _digits
_lines = st.tuples(st.sampled_from(["1", "2", "3", "0", "x"]), st.lists(_times, min_size=4, max_size=8)).map(
    lambda drawn: " ".join((drawn[0], *drawn[1]))
)
_texts = st.text(max_size=6) | st.sampled_from(["x" * 256, "x" * 257, "x" * 1_025, "\ud800", "a\nb", "\x1b[2J"])
VALUES = {
    "tw-id": _texts,
    "tw-timer": _lines | _texts,
    "tw-group": st.tuples(_digits, _texts).map(" ".join) | _texts,
    "tw-for": _texts | st.sampled_from(["billing", "nobody"]),
    "tw-due": _times | _texts,
    "tw-from": st.tuples(_digits, _digits, _digits).map("{0[0]}:{0[1]} {0[2]}".format) | _texts,
    "tw-nudge": _texts,
    "tw-probe": _texts,
    "tw-dead-schema": _digits,
    "tw-dead-from": _texts,
    "tw-parked-reason": _texts,
    "tw-new": _texts,
}
GOOD = {"tw-id": "sub-42", "tw-timer": f"2 {NOW_MS} 0 0 {NOW_MS} 3 0 0", "colour": "red"}
alone = st.sampled_from(sorted(VALUES)).flatmap(lambda name: VALUES[name].map(lambda text: {**GOOD, name: text}))
together = st.fixed_dictionaries({}, optional=VALUES)
forged = alone | together | st.tuples(together).map(lambda drawn: {**GOOD, **drawn[0]})


def topics_of(plan: Plan) -> set[str]:
    """All that the plan names, but for a calendar's: of those only what the form of the name says is asked."""
    return {spec.name for spec in topology(plan, NOW_MS).topics}


def is_ours(plan: Plan, topic: str) -> bool:
    return topic in topics_of(plan) or (isinstance(plan.scheme, Calendar) and topic.startswith(plan.due_topic + ".tw."))


@given(plan=plans("tiered", "wheel"), properties=forged, now_ms=st.sampled_from([0, NOW_MS, MAX_TIME_MS]))
def test_a_relay_decides_about_all(plan: Plan, properties: dict[str, str], now_ms: int) -> None:
    router = Router(plan)
    inside = dict(properties)
    published = min(now_ms, NOW_MS)
    for reading, step in (
        *((parsed(properties), step) for step in steps(plan)[:-1]),
        (taken_in(inside, published, "place", plan), INTAKE_STEP),
    ):
        if not isinstance(reading, Envelope):
            continue
        next_hop = NextHop(router, step)
        assert step.kind == "intake" or Envelope.read(properties) == reading
        decisions = [next_hop.held(reading, now_ms)] + (
            [] if step.kind == "intake" else [next_hop.delivered(reading, now_ms)]
        )
        for decision in decisions:
            if isinstance(decision, Hop):
                assert is_ours(plan, decision.topic)
                assert Envelope.read(decision.envelope.properties()) == decision.envelope
                assert decision.envelope.due_ms == reading.due_ms, "no hop moves a due time"


def arrivals(plan: Plan, properties: dict[str, str], redeliveries: int) -> list[Arrival]:
    mine = plan.subscriptions[0] if plan.keeps_back else ""
    message = client_message(properties, topic=partition_topic(plan.due_topic, 0), redeliveries=redeliveries)
    return [reading_of(mine)(message, None), beside_shadow(ManualClock(NOW_MS), mine)(message, None)]


@given(
    plan=plans(),
    properties=forged,
    redeliveries=st.sampled_from([0, MAX_GIVEN_BACK]),
    fails=st.booleans(),
    parks=st.booleans(),
)
def test_a_consumer_gets_rid_of_all(
    plan: Plan, properties: dict[str, str], redeliveries: int, fails: bool, parks: bool
) -> None:
    """Its handler fails or not: sooner or later the message is acknowledged, or waits with the broker."""
    plan = replace(plan, retry=parks, subscriptions=("billing", *plan.subscriptions[1:]))
    client: Any = None
    clock = ManualClock(NOW_MS)
    for arrival in arrivals(plan, properties, redeliveries):
        republisher = Republisher(client, plan, "billing", clock, Hooks(()))
        under = Engine(hold_bound_ms=hold_bound_ms(plan), max_held=8, handled=HandledWindow(10), parks=plan.keeps_back)
        now_ms, waiting = NOW_MS, under.received(arrival, NOW_MS, 0)
        for _ in range(20):
            if not waiting:
                if not under.held_count:
                    break
                now_ms = max(now_ms, under.next_wake_ms() or 0)
                waiting = under.tick(now_ms)
                continue
            command = waiting.pop()
            match command:
                case Deliver(timer) if fails and not plan.keeps_back:
                    waiting += under.failed(timer)
                case Deliver(timer) if fails:
                    redirect = Parked("no") if redeliveries else ToRetry(now_ms + 1)
                    waiting += under.redirected(timer, redirect, now_ms)
                case Deliver(timer):
                    waiting += under.done(timer)
                case Republish(timer):
                    assert_published(plan, republisher, timer, now_ms)
                    # What a handler wants elsewhere waits for that; what came too early must not.
                    is_stored = timer.redirect is not None
                    waiting += under.published(timer, now_ms) if is_stored else under.not_published(timer, now_ms)
                case Acknowledge() | NegativeAcknowledge():
                    pass
        assert not under.held_count, "nothing waits here for ever"


def assert_published(plan: Plan, republisher: Republisher, timer: InFlight, now_ms: int) -> None:
    envelope = timer.arrival.envelope
    topic, _, properties = republisher._redirect(timer, envelope, now_ms, 0)
    assert is_ours(plan, topic) or topic == plan.due_topic
    if envelope is not None and not isinstance(timer.redirect, Parked):
        found = Envelope.read({**_kept(timer), **properties})
        assert found is not None
        assert found.timer_id == envelope.timer_id
    assert Names(plan).is_partitioned(topic) or topic == plan.due_topic
