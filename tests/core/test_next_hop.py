"""Where a timer goes on to, and when: cases in a table, and every plan's whole way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import DUE_TOPIC, NOW_MS, journey, moments_ms, plans, sends
from tests.support.plans import plan_of
from timewheel.core.cancellations import is_too_late
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import MAX_TIME_MS, Envelope, Life
from timewheel.core.next_hop import Drop, Hop, NextHop, NotYet, ToDeadLetter, again, retry_hop
from timewheel.core.plan import MAX_HOPS, Calendar, Holder, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Router
from timewheel.core.steps import INTAKE_STEP, Step, hop_bound, steps
from timewheel.core.topology import topology

GUARD_MS = 5 * MINUTE_MS
TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS)), guard_ms=GUARD_MS, revision=3)
WHEEL = plan_of(
    Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=10))),
    max_delay_ms=8 * DAY_MS,
    guard_ms=GUARD_MS,
    revision=3,
)
LEAD_MS = TIERED.lead_ms
DAY_TIER, HALF_TIER = steps(TIERED)[0], steps(TIERED)[1]
OUT_MS = NOW_MS + DAY_MS  # when what entered the tier of a day at NOW_MS may leave it


def timer(remaining_ms: int, entered_ms: int = NOW_MS, **more: Any) -> Envelope:
    """A timer with so much left at its release from the tier of a day."""
    return Envelope("t", NOW_MS + DAY_MS + remaining_ms, entered_ms, revision=3, **more)


def held_until(decision: Hop | NotYet | ToDeadLetter | Drop) -> int:
    assert isinstance(decision, NotYet)
    return decision.until_ms


def short(topic: str) -> str:
    return topic.removeprefix(f"{DUE_TOPIC}.tw.")


@pytest.mark.parametrize(
    ("remaining_ms", "now_ms", "topic", "is_late"),
    [
        (DAY_MS + GUARD_MS, OUT_MS, "tier-1d", False),
        (DAY_MS + GUARD_MS - 1, OUT_MS, "tier-12h", False),
        (12 * HOUR_MS, OUT_MS, DUE_TOPIC, False),
        # An hour late: a whole day more would still end before the due time, or not.
        (2 * DAY_MS, OUT_MS + HOUR_MS, "tier-1d", False),
        (DAY_MS + GUARD_MS, OUT_MS + HOUR_MS, "tier-12h", True),
        (12 * HOUR_MS + GUARD_MS, OUT_MS + HOUR_MS, DUE_TOPIC, True),
        # Late, yet on the nominal way: into the due topic nothing overshoots.
        (HOUR_MS, OUT_MS + 5 * HOUR_MS, DUE_TOPIC, False),
    ],
)
def test_a_released_timer_goes_its_nominal_way_unless_that_would_end_too_late(
    remaining_ms: int, now_ms: int, topic: str, is_late: bool
) -> None:
    hop = NextHop(Router(TIERED), DAY_TIER).held(timer(remaining_ms), now_ms)
    assert isinstance(hop, Hop)
    assert (short(hop.topic), hop.is_late) == (topic, is_late)
    assert hop.is_due == (topic == DUE_TOPIC)
    due_ms = OUT_MS + remaining_ms
    asked_ms = due_ms - LEAD_MS if hop.is_due and due_ms - LEAD_MS > OUT_MS else 0
    assert hop.deliver_at_ms == asked_ms
    entered_ms = now_ms if is_late else OUT_MS
    assert hop.envelope == timer(remaining_ms, entered_ms, hops=1), "the nominal release time travels on"


SKEW_MS = TIERED.skew_ms


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, SKEW_MS])
def test_the_head_waits_for_a_whole_stay_from_when_it_entered(ahead_ms: int) -> None:
    next_hop = NextHop(Router(TIERED), DAY_TIER)
    envelope = timer(DAY_MS, NOW_MS + ahead_ms)
    release_ms = NOW_MS + ahead_ms + DAY_MS
    for now_ms in (NOW_MS, release_ms - 1):
        assert held_until(next_hop.held(envelope, now_ms)) == release_ms
    hop = next_hop.held(envelope, release_ms)
    assert isinstance(hop, Hop)
    assert not hop.is_late


@pytest.mark.parametrize(
    ("remaining_ms", "room_ms"),
    [
        (DAY_MS + GUARD_MS, GUARD_MS),  # into the tier of a day
        (DAY_MS + GUARD_MS - 1, 12 * HOUR_MS + GUARD_MS - 1),  # into that of half a day
        (12 * HOUR_MS + GUARD_MS - 1, 0),  # into the due topic
    ],
)
def test_it_is_told_how_much_later_a_timer_may_leave(remaining_ms: int, room_ms: int) -> None:
    next_hop, envelope = NextHop(Router(TIERED), DAY_TIER), timer(remaining_ms)
    assert next_hop.held(envelope, NOW_MS) == NotYet(OUT_MS, room_ms)
    for now_ms, is_late in ((OUT_MS + room_ms, False), (OUT_MS + room_ms + 1, room_ms > 0)):
        hop = next_hop.held(envelope, now_ms)
        assert isinstance(hop, Hop)
        assert hop.is_late is is_late
        assert hop.latest_ms == (OUT_MS + room_ms if room_ms and not is_late else None)


@pytest.mark.parametrize("ahead_ms", [SKEW_MS + 1, DAY_MS, 400 * DAY_MS])
def test_one_that_entered_too_far_in_the_future_leaves_at_once_by_the_clock(ahead_ms: int) -> None:
    """It would block whatever is behind it for as long."""
    envelope = timer(DAY_MS, NOW_MS + ahead_ms)
    hop = NextHop(Router(TIERED), DAY_TIER).held(envelope, NOW_MS)
    assert isinstance(hop, Hop)
    assert hop.is_late
    assert hop.topic == Router(TIERED).route(envelope.due_ms, NOW_MS).topic
    assert hop.envelope == envelope.hopped(NOW_MS)
    again_ = NextHop(Router(TIERED), DAY_TIER).held(hop.envelope, NOW_MS)
    assert isinstance(again_, NotYet), "once"


def test_one_that_had_arrived_before_it_entered_leaves_at_once_unless_its_stay_is_over() -> None:
    """Its turn came when that time was near, and it would have stayed for as long again."""
    envelope = timer(2 * DAY_MS, NOW_MS)
    next_hop = NextHop(Router(TIERED), DAY_TIER)
    arrived_ms = NOW_MS - SKEW_MS - 1
    assert isinstance(next_hop.held(envelope, NOW_MS, arrived_ms + 1), NotYet)
    hop = next_hop.held(envelope, NOW_MS, arrived_ms)
    assert isinstance(hop, Hop)
    assert hop.is_late
    release_ms = NOW_MS + DAY_TIER.stay_ms
    assert next_hop.held(envelope, release_ms, arrived_ms) == next_hop.held(envelope, release_ms)


def test_a_slot_releases_by_its_own_time_whenever_it_was_seen() -> None:
    step = steps(WHEEL)[0]
    due_ms = NOW_MS // DAY_MS * DAY_MS + 3 * DAY_MS + HOUR_MS
    release_ms = due_ms - HOUR_MS - GUARD_MS
    next_hop = NextHop(Router(WHEEL), step)
    envelope = Envelope("t", due_ms, NOW_MS + 2 * DAY_MS, revision=3)
    assert held_until(next_hop.held(envelope, release_ms - 1)) == release_ms
    hop = next_hop.held(envelope, release_ms)
    assert isinstance(hop, Hop)
    assert short(hop.topic).startswith("ring-1h-")


@pytest.mark.parametrize("hops", [hop_bound(TIERED), MAX_HOPS - 1, MAX_HOPS])
def test_a_timer_is_buried_at_the_greatest_bound_of_any_plan_whatever_this_ones(hops: int) -> None:
    next_hop, envelope = NextHop(Router(TIERED), DAY_TIER), timer(DAY_MS, hops=hops)
    for decision in (next_hop.held(envelope, OUT_MS), next_hop.delivered(envelope, OUT_MS)):
        assert isinstance(decision, ToDeadLetter) == (hops == MAX_HOPS)
        assert not isinstance(decision, ToDeadLetter) or decision.reason.startswith("10000 hops")


@given(plans("tiered"), st.data())
def test_what_a_broker_held_goes_where_a_relay_would_have_sent_it_in_time(plan: Plan, data: st.DataObject) -> None:
    due_ms, sent_ms = data.draw(sends(plan))
    router = Router(plan)
    for step in steps(plan)[:-1]:
        envelope = Envelope("t", due_ms, sent_ms, revision=plan.revision)
        next_hop = NextHop(router, step)
        held = next_hop.held(envelope, sent_ms + step.stay_ms)
        delivered = next_hop.delivered(envelope, sent_ms + step.stay_ms)
        if not (isinstance(held, Hop) and held.is_late):
            assert isinstance(held, Hop)
            assert delivered == held._replace(latest_ms=None), "the broker holds each by itself: none comes too late"


@given(plans("tiered", "wheel"), st.data())
def test_released_in_time_a_timer_makes_the_journey_that_its_plan_says(plan: Plan, data: st.DataObject) -> None:
    due_ms, sent_ms = data.draw(sends(plan))
    expected = journey(plan, due_ms, sent_ms)
    router = Router(plan)
    holding = {topic.name: topic.step for topic in topology(plan, sent_ms).holding}
    envelope, topic, way = Envelope("t", due_ms, sent_ms, revision=plan.revision), "", list[str]()
    route = router.route(due_ms, sent_ms)
    topic = route.topic
    while topic in holding:
        way.append(topic)
        next_hop = NextHop(router, holding[topic])
        waits = next_hop.held(envelope, envelope.entered_ms)
        now_ms = waits.until_ms if isinstance(waits, NotYet) else envelope.entered_ms
        hop = next_hop.held(envelope, now_ms)
        assert isinstance(hop, Hop)
        assert not hop.is_late
        topic, envelope = hop.topic, hop.envelope
    assert way == [hold.topic for _, hold in expected.holds]
    assert topic == expected.due.topic
    assert envelope.hops == len(way)
    assert way == [] or envelope.entered_ms == expected.arrived_ms


def test_what_came_far_too_early_goes_back_under_its_due_time() -> None:
    envelope = Envelope("t", NOW_MS + DAY_MS, NOW_MS - DAY_MS, hops=2, revision=3)
    hop = again(Router(TIERED), envelope, NOW_MS, "elsewhere")
    assert hop == Hop(DUE_TOPIC, NOW_MS + DAY_MS - LEAD_MS, envelope._replace(hops=3), True, False)
    calendar = Plan(due_topic=DUE_TOPIC, subscriptions=("s",), scheme=Calendar())
    assert again(Router(calendar), envelope, NOW_MS, "elsewhere").topic.startswith(f"{DUE_TOPIC}.tw.1d-")


@pytest.mark.parametrize("beyond_ms", [0, 1, 10_000 * DAY_MS])
def test_in_a_calendar_it_stays_in_its_topic_if_none_need_be_there_when_it_is_due(beyond_ms: int) -> None:
    """There it waits as well; to be published where no topic is, it would wait in a consumer for ever."""
    plan = Plan(due_topic=DUE_TOPIC, subscriptions=("s",), scheme=Calendar(), max_delay_ms=30 * DAY_MS)
    due_ms, came_from = NOW_MS + 30 * DAY_MS + beyond_ms, f"{DUE_TOPIC}.tw.1d-20260101"
    hop = again(Router(plan), Envelope("t", due_ms, NOW_MS), NOW_MS, came_from)
    assert (hop.topic == came_from) is (beyond_ms > 0)
    assert hop.topic in {spec.name for spec in topology(plan, NOW_MS).topics}
    assert hop.deliver_at_ms == due_ms - plan.lead_ms


@pytest.mark.parametrize("now_ms", [NOW_MS, OUT_MS, OUT_MS + 40 * DAY_MS])
def test_what_is_known_to_be_dead_is_dropped_whenever_it_is_looked_at(now_ms: int) -> None:
    dead, alive = timer(DAY_MS), timer(DAY_MS)._replace(timer_id="alive")
    next_hop = NextHop(Router(TIERED), DAY_TIER, lambda envelope: envelope.timer_id == "t")
    assert isinstance(next_hop.held(dead, now_ms), Drop)
    assert isinstance(next_hop.delivered(dead, now_ms), Drop)
    assert next_hop.held(alive, now_ms) == NextHop(Router(TIERED), DAY_TIER).held(alive, now_ms)
    assert next_hop.delivered(alive, now_ms) == NextHop(Router(TIERED), DAY_TIER).delivered(alive, now_ms)


RETRYING = replace(TIERED, retry=True)
FOR_BILLING = Life(attempt=2, first_due_ms=NOW_MS, only_for="billing")


@pytest.mark.parametrize("scheme", ["tiered", "wheel", "native", "calendar"])
@given(data=st.data())
def test_what_is_tried_again_goes_the_plans_own_way_and_ends_with_its_subscription(
    scheme: str, data: st.DataObject
) -> None:
    plan = replace(data.draw(plans(scheme)), retry=True)
    due_ms, now_ms = data.draw(sends(plan))
    subscription = data.draw(st.sampled_from(plan.subscriptions))
    router = Router(plan)
    before = Envelope("t", now_ms + 1, now_ms, 7, 3, 1, Life(group="g", group_stamp=5))
    hop = retry_hop(router, before, subscription, due_ms, now_ms, stored_within_ms=0)
    life = Life(1, now_ms + 1, "g", 5, subscription)
    assert hop.envelope == Envelope("t", due_ms, now_ms, 7, 0, plan.revision, life)
    next_one = retry_hop(router, hop.envelope, subscription, due_ms, now_ms, stored_within_ms=0)
    assert next_one.envelope.life == life._replace(attempt=2)
    holding = {topic.name: topic.step for topic in topology(plan, now_ms).holding}
    plain = Envelope("t", due_ms, now_ms, revision=plan.revision)
    topic, route = hop.topic, router.route(due_ms, now_ms).topic
    while topic in holding:
        assert topic == route
        step = holding[topic]
        redirect = NextHop(router, step).delivered(hop.envelope, now_ms)
        beside = NextHop(router, step).delivered(plain, now_ms)
        assert isinstance(redirect, Hop)
        assert isinstance(beside, Hop)
        assert redirect.deliver_at_ms == beside.deliver_at_ms
        hop, plain, topic, route = redirect, beside.envelope, redirect.topic, beside.topic
    assert topic == router.names.retry(subscription)
    assert hop.is_due
    assert topic in topology(plan, now_ms)


def test_what_was_sent_after_its_due_time_and_is_tried_again_was_wanted_from_the_send_on() -> None:
    """Its cancels are remembered from then on: the next attempt must not come too late to be judged."""
    sent = Envelope("t", NOW_MS - 9 * DAY_MS, NOW_MS)
    hop = retry_hop(Router(RETRYING), sent, "billing", NOW_MS + HOUR_MS, NOW_MS + 5, stored_within_ms=0)
    assert hop.envelope.life.first_due_ms == NOW_MS
    assert not is_too_late(hop.envelope, NOW_MS + DAY_MS, DAY_MS)


def test_what_may_come_to_a_slot_when_that_was_swept_goes_to_the_subscriptions_topic_at_once() -> None:
    ring = Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=62, headstart_ms=60_000),))
    router = Router(replace(RETRYING, scheme=ring, max_delay_ms=2 * DAY_MS))
    slot_ms = (NOW_MS // HOUR_MS + 3) * HOUR_MS - 60_000  # less the head start
    before = Envelope("t", NOW_MS, NOW_MS)
    latest_ms = slot_ms - router.plan.skew_ms - 12_000
    for now_ms, expected in ((latest_ms - 1, "slot"), (latest_ms, "retry"), (slot_ms, "retry")):
        hop = retry_hop(router, before, "billing", slot_ms + 120_000, now_ms, stored_within_ms=12_000)
        assert ("retry" if hop.is_due else "slot") == expected, now_ms - slot_ms
        assert hop.topic.endswith(".tw.retry.billing") is hop.is_due


def test_what_is_for_a_subscription_that_has_no_topic_any_more_is_buried_with_the_reason() -> None:
    envelope = timer(HOUR_MS, life=FOR_BILLING)
    for plan in (TIERED, replace(RETRYING, subscriptions=("other",))):
        next_hop = NextHop(Router(plan), DAY_TIER)
        for decision in (next_hop.held(envelope, OUT_MS), next_hop.delivered(envelope, OUT_MS)):
            assert isinstance(decision, ToDeadLetter)
            assert "a retry of billing" in decision.reason
    hop = NextHop(Router(RETRYING), DAY_TIER).held(envelope, OUT_MS)
    assert isinstance(hop, Hop)
    assert short(hop.topic) == "retry.billing"


def test_another_set_of_topics_for_what_is_tried_again_is_another_way() -> None:
    prints = [
        Router(plan).fingerprint
        for plan in (
            TIERED,
            RETRYING,
            replace(RETRYING, subscriptions=("billing", "other")),
            replace(RETRYING, revision=9),
            replace(TIERED, subscriptions=("other",)),
        )
    ]
    assert prints[0] == prints[4], "without such topics the names of subscriptions decide nothing"
    assert prints[1] == prints[3]
    assert len(set(prints)) == 3


def test_what_came_far_too_early_goes_back_where_it_came_from() -> None:
    envelope = Envelope("t", NOW_MS + DAY_MS, NOW_MS, revision=3, life=FOR_BILLING)
    assert short(again(Router(RETRYING), envelope, NOW_MS, DUE_TOPIC).topic) == "retry.billing"


@pytest.mark.parametrize(
    ("drains_from_ms", "leaves_plan"), [(OUT_MS + 1, False), (OUT_MS, False), (OUT_MS - 1, True), (NOW_MS, True)]
)
def test_on_the_way_out_only_what_is_released_later_leaves_the_plan(drains_from_ms: int, leaves_plan: bool) -> None:
    """What is released before may have been sent on by a relay that goes as the plan says: it goes that way."""
    router = Router(TIERED)
    by_plan, way_out = NextHop(router, DAY_TIER), NextHop(router, DAY_TIER, drains_from_ms=drains_from_ms)
    envelope = timer(DAY_MS + GUARD_MS)
    for now_ms in (NOW_MS, OUT_MS):
        if not leaves_plan:
            assert way_out.held(envelope, now_ms) == by_plan.held(envelope, now_ms)
            continue
        hop = way_out.held(envelope, now_ms)
        assert isinstance(hop, Hop)
        assert (hop.topic, hop.is_due, hop.leaves_plan) == (DUE_TOPIC, True, True)
        assert hop.deliver_at_ms == router.to_due(envelope.due_ms, now_ms).deliver_at_ms
        assert (hop.envelope.due_ms, hop.envelope.entered_ms) == (envelope.due_ms, envelope.entered_ms)


@given(plans("tiered", "wheel"), st.data())
def test_on_the_way_out_a_replay_at_any_later_time_goes_the_same_way(plan: Plan, data: st.DataObject) -> None:
    due_ms, sent_ms = data.draw(sends(plan))
    step, since_ms = data.draw(st.sampled_from(steps(plan)[:-1])), sent_ms + data.draw(st.integers(-DAY_MS, DAY_MS))
    way_out = NextHop(Router(plan), step, drains_from_ms=since_ms)
    envelope = Envelope("t", due_ms, sent_ms)
    first, later = (way_out.held(envelope, sent_ms + wait_ms) for wait_ms in (0, data.draw(st.integers(0, DAY_MS))))
    if isinstance(first, Hop) and isinstance(later, Hop):
        assert first.leaves_plan is later.leaves_plan


@given(plans("tiered", "wheel"), st.data())
def test_by_a_native_plan_what_an_earlier_one_held_leaves_at_once_for_one_place_and_is_not_early(
    former: Plan, data: st.DataObject
) -> None:
    """Whenever a hop is made again it meets the same destination and the same producer's name."""
    due_ms, sent_ms = data.draw(sends(former))
    step, now_ms = data.draw(st.sampled_from(steps(former)[:-1])), sent_ms + data.draw(st.integers(-DAY_MS, DAY_MS))
    router = Router(replace(former, scheme=Native(), intake=False))
    next_hop, envelope = NextHop(router, step), Envelope("t", due_ms, sent_ms)
    for hop in (next_hop.held(envelope, now_ms), next_hop.held(envelope, due_ms), next_hop.delivered(envelope, now_ms)):
        assert isinstance(hop, Hop)
        assert (hop.topic, hop.is_due, hop.is_late, hop.leaves_plan) == (former.due_topic, True, False, False)
        assert (hop.envelope.due_ms, hop.envelope.hops) == (due_ms, 1)
    for hop, at_ms in ((next_hop.held(envelope, now_ms), now_ms), (next_hop.delivered(envelope, now_ms), sent_ms)):
        assert isinstance(hop, Hop)
        asked_ms = due_ms - router.plan.lead_ms
        assert hop.deliver_at_ms == (asked_ms if asked_ms > at_ms else 0)


def test_to_a_calendar_it_leaves_at_its_time_since_its_topic_may_not_be_there_before() -> None:
    calendar = Router(replace(TIERED, scheme=Calendar(interval_ms=DAY_MS)))
    assert held_until(NextHop(calendar, DAY_TIER).held(timer(DAY_MS), NOW_MS)) == OUT_MS


# ------------------------------------------------------------ envelopes that nobody of this plan wrote


def hops_at_once(plan: Plan, step: Step, envelope: Envelope, now_ms: int) -> tuple[int, Envelope]:
    """How often a timer hops while no time passes, from where it waits; and its envelope then."""
    router = Router(plan)
    holding = {topic.name: topic for topic in topology(plan, now_ms).holding}
    for hops in range(MAX_HOPS + 1):
        next_hop = NextHop(router, step)
        by_broker = not plan.holds_in_relay
        decision = next_hop.delivered(envelope, now_ms) if by_broker else next_hop.held(envelope, now_ms)
        if not isinstance(decision, Hop):
            return hops, envelope
        envelope = decision.envelope
        if decision.is_due or decision.deliver_at_ms > now_ms:
            return hops + 1, envelope
        step = holding[decision.topic].step
    raise AssertionError("it hops for ever")


@pytest.mark.parametrize("hold", ["relay", "broker"])
@pytest.mark.parametrize("due_ms", [MAX_TIME_MS, NOW_MS + 29 * DAY_MS])
def test_one_that_entered_in_1970_hops_once_and_then_waits(hold: Holder, due_ms: int) -> None:
    """Of one message by its nominal way 10,000 copies were made within seconds."""
    plan = replace(TIERED, scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS), hold=hold))
    for step in (*steps(plan)[:-1], *([INTAKE_STEP] if hold == "relay" else [])):
        hops, envelope = hops_at_once(plan, step, Envelope("t", due_ms, 0), NOW_MS)
        assert (hops, envelope.entered_ms) == (1, NOW_MS)


@given(plans("tiered", "wheel"), st.data())
def test_no_envelope_hops_at_once_more_often_than_the_plan_does_in_all(plan: Plan, data: st.DataObject) -> None:
    now_ms = data.draw(moments_ms)
    times = st.integers(0, MAX_TIME_MS) | st.integers(-plan.max_delay_ms, 2 * plan.max_delay_ms).map(
        lambda left: min(max(now_ms + left, 0), MAX_TIME_MS)
    )
    held: list[Step] = [*steps(plan)[:-1], *([INTAKE_STEP] if plan.holds_in_relay else [])]
    step = data.draw(st.sampled_from(held))
    forged = Envelope("t", data.draw(times), data.draw(times), hops=data.draw(st.integers(0, MAX_HOPS)))
    hops, _ = hops_at_once(plan, step, forged, now_ms)
    assert hops <= hop_bound(plan) + 2, "one by the clock, and one out of the intake"


@given(plans("tiered", "wheel"), st.data())
def test_a_timer_of_an_earlier_plan_with_a_longer_delay_comes_in_time_and_never_early(
    plan: Plan, data: st.DataObject
) -> None:
    """Whatever time the relay loses meanwhile, as long as that is before the due time."""
    sent_ms = data.draw(st.integers(NOW_MS, NOW_MS + 40 * DAY_MS))
    due_ms = sent_ms + plan.max_delay_ms + data.draw(st.integers(1, 2 * plan.max_delay_ms))
    lost = data.draw(st.lists(st.floats(0, 0.5), max_size=6))
    router, now_ms = Router(plan), sent_ms
    holding = {topic.name: topic.step for topic in topology(plan, now_ms).holding}
    envelope, topic = Envelope("t", due_ms, sent_ms), router.route(due_ms, sent_ms).topic
    while topic in holding:
        step = holding[topic]
        if lost:
            now_ms += int((due_ms - now_ms) * lost.pop())
        next_hop = NextHop(router, step)
        if plan.holds_in_relay:
            decision = next_hop.held(envelope, now_ms)
            if isinstance(decision, NotYet):
                now_ms = max(now_ms, decision.until_ms)
                decision = next_hop.held(envelope, now_ms)
        else:
            now_ms = max(now_ms, next_hop.release_ms(envelope))
            decision = next_hop.delivered(envelope, now_ms)
        assert isinstance(decision, Hop)
        envelope, topic = decision.envelope, decision.topic
        if decision.is_due:
            assert decision.deliver_at_ms or due_ms - plan.lead_ms <= now_ms, "never early"
            assert decision.deliver_at_ms <= due_ms
    assert now_ms <= due_ms, "in time"
