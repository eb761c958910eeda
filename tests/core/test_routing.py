"""Where timers go, by tables and over the whole space of plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.core.plan_space import DUE_TOPIC, NOW_MS, journey, moments_ms, plans, sends
from tests.support.plans import plan_of as plan
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.errors import PlanError
from timewheel.core.names import Names
from timewheel.core.plan import Calendar, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.routing import ROUTING_CODE, Due, Hold, Router
from timewheel.core.steps import hop_bound, longest_due_stay_ms, steps
from timewheel.core.topology import topology

TIERED = Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS))
GUARD_MS = 5 * MINUTE_MS
SKEW_MS = MINUTE_MS


# ------------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("remaining_ms", "tier"),
    [
        (30 * DAY_MS, "5d"),
        (5 * DAY_MS + GUARD_MS, "5d"),  # remaining >= T + guard (broker-facts: guard-and-skew)
        (5 * DAY_MS + GUARD_MS - 1, "1d"),
        (5 * DAY_MS, "1d"),
        (DAY_MS + GUARD_MS, "1d"),
        (DAY_MS + GUARD_MS - 1, "12h"),
        (12 * HOUR_MS + GUARD_MS, "12h"),
        (12 * HOUR_MS + GUARD_MS - 1, None),
        (12 * HOUR_MS, None),
        (0, None),
        (-DAY_MS, None),
    ],
)
@pytest.mark.parametrize("hold", ["relay", "broker"])
def test_a_timer_waits_in_the_largest_tier_that_fits_with_the_guard(
    remaining_ms: int, tier: str | None, hold: str
) -> None:
    route = Router(
        plan(Tiered(window_ms=TIERED.window_ms, tiers_ms=TIERED.tiers_ms, hold=hold))  # type: ignore[arg-type]
    ).route(NOW_MS + remaining_ms, NOW_MS)
    if tier is None:
        assert isinstance(route, Due)
        return
    stay_ms = {"12h": 12 * HOUR_MS, "1d": DAY_MS, "5d": 5 * DAY_MS}[tier]
    kind, deliver_at_ms = ("tier", 0) if hold == "relay" else ("delay", NOW_MS + stay_ms)
    assert route == Hold(f"{DUE_TOPIC}.tw.{kind}-{tier}", deliver_at_ms, NOW_MS + stay_ms, stay_ms)


def test_the_window_wins_over_a_tier_that_would_fit() -> None:
    router = Router(plan(Tiered(window_ms=3 * DAY_MS, tiers_ms=(DAY_MS,))))
    assert isinstance(router.route(NOW_MS + 3 * DAY_MS, NOW_MS), Due)
    assert isinstance(router.route(NOW_MS + 3 * DAY_MS + 1, NOW_MS), Hold)


def test_the_longest_stay_in_the_due_topic() -> None:
    assert longest_due_stay_ms(plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))) == DAY_MS + GUARD_MS
    assert longest_due_stay_ms(plan(Tiered(window_ms=2 * DAY_MS, tiers_ms=(DAY_MS,)))) == 2 * DAY_MS
    assert longest_due_stay_ms(plan(Native())) == 30 * DAY_MS
    wheel = Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32)))
    assert longest_due_stay_ms(plan(wheel)) == HOUR_MS + GUARD_MS + 2 * SKEW_MS


def test_a_timer_of_seventeen_days_goes_down_the_tiers() -> None:
    way = journey(plan(TIERED), NOW_MS + 17 * DAY_MS, NOW_MS)
    # 17 = 3 x 5 + 1 + 1, and the last day does not fit with the guard: 12 h, and 12 h in the due topic.
    assert [hold.stay_ms for _, hold in way.holds] == [5 * DAY_MS] * 3 + [DAY_MS] + [12 * HOUR_MS]
    assert way.arrived_ms == NOW_MS + 17 * DAY_MS - 12 * HOUR_MS
    assert way.due == Due(DUE_TOPIC, NOW_MS + 17 * DAY_MS - 1_500)


@pytest.mark.parametrize(
    ("scheme", "max_delay_ms", "hops"),
    [
        (Native(), 30 * DAY_MS, 0),
        (Calendar(), 30 * DAY_MS, 0),
        (Wheel(rings=(Ring(slot_ms=DAY_MS, slots=32),)), 30 * DAY_MS, 1),
        # 30 d leave 5 d after five stays, which do not fit with the guard: then four days, and half of the last.
        (TIERED, 30 * DAY_MS, 5 + 4 + 1),
        (Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), 30 * DAY_MS, 29),
        (Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), DAY_MS, 0),
    ],
)
def test_the_hop_bound(scheme: Native | Tiered | Calendar | Wheel, max_delay_ms: int, hops: int) -> None:
    value = plan(scheme, max_delay_ms=max_delay_ms)
    assert hop_bound(value) == hops
    assert len(journey(value, NOW_MS + max_delay_ms, NOW_MS).holds) == hops


@pytest.mark.parametrize(
    ("readers", "remaining_ms", "asked_ms"),
    [
        ("timewheel", HOUR_MS, HOUR_MS - 1_500),
        ("timewheel", 1_501, 1),
        ("timewheel", 1_500, None),  # asked for now is asked for at once
        ("timewheel", 0, None),
        ("any", HOUR_MS, HOUR_MS),
        ("any", 1, 1),
        ("any", 0, None),
        ("any", -DAY_MS, None),  # past due: delivered now
    ],
)
def test_the_broker_is_asked_for_a_lead(readers: str, remaining_ms: int, asked_ms: int | None) -> None:
    route = Router(plan(Native(), readers=readers)).route(NOW_MS + remaining_ms, NOW_MS)
    assert route == Due(DUE_TOPIC, 0 if asked_ms is None else NOW_MS + asked_ms)


@pytest.mark.parametrize(
    ("interval_ms", "due_ms", "label"),
    [
        (DAY_MS, NOW_MS, "1d-20260101"),
        (DAY_MS, NOW_MS + DAY_MS - 1, "1d-20260101"),
        (DAY_MS, NOW_MS + DAY_MS, "1d-20260102"),
        (HOUR_MS, NOW_MS + 90 * MINUTE_MS, "1h-20260101T0100Z"),
        (3_000, NOW_MS + 7_000, "3s-20260101T000006Z"),
        (1_500, NOW_MS + 2_000, "1500ms-20260101T000001.500Z"),
    ],
)
def test_a_calendar_has_a_topic_per_interval(interval_ms: int, due_ms: int, label: str) -> None:
    value = plan(Calendar(interval_ms=interval_ms), max_delay_ms=10_000)
    assert Router(value).route(due_ms, NOW_MS) == Due(f"{DUE_TOPIC}.tw.{label}", max(due_ms - 1_500 - NOW_MS, 0) and (
        due_ms - 1_500
    ))  # fmt: skip


def test_a_past_due_timer_never_goes_to_a_passed_interval() -> None:
    router = Router(plan(Calendar()))
    assert router.route(NOW_MS - 40 * DAY_MS, NOW_MS + 1) == Due(f"{DUE_TOPIC}.tw.1d-20260101", 0)


RINGS = Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32)))


@pytest.mark.parametrize(
    ("due_in_ms", "slot_topic", "released_in_ms"),
    [
        # 2026-01-01 is day 20,454 since 1970 = slot 6 of 32 (20,454 = 639 x 32 + 6).
        (3 * DAY_MS + 7 * HOUR_MS, "ring-1d-32.009", 3 * DAY_MS - GUARD_MS),
        (DAY_MS, "ring-1d-32.007", DAY_MS - GUARD_MS),
        # Day 0 has begun; its hour 490,896 = 16,363 x 30 + 6, five hours on: slot 11.
        (5 * HOUR_MS + 1, "ring-1h-30.011", 5 * HOUR_MS - GUARD_MS),
        (HOUR_MS, "ring-1h-30.007", HOUR_MS - GUARD_MS),
        (HOUR_MS - 1, None, None),
        (-1, None, None),
    ],
)
def test_the_coarsest_ring_that_still_separates_now_from_the_due_time(
    due_in_ms: int, slot_topic: str | None, released_in_ms: int | None
) -> None:
    route = Router(plan(RINGS)).route(NOW_MS + due_in_ms, NOW_MS)
    if slot_topic is None or released_in_ms is None:
        assert isinstance(route, Due)
    else:
        assert route == Hold(f"{DUE_TOPIC}.tw.{slot_topic}", 0, NOW_MS + released_in_ms, 0)


@pytest.mark.parametrize(
    ("remaining_ms", "room_ms"), [(DAY_MS + GUARD_MS, GUARD_MS), (DAY_MS + GUARD_MS + 5, GUARD_MS + 5)]
)
def test_a_tier_may_be_entered_until_its_stay_would_end_behind_the_due_time(remaining_ms: int, room_ms: int) -> None:
    router, due_ms = Router(plan(TIERED)), NOW_MS + remaining_ms  # the tier of 1 d fits just with its guard
    hold = router.route(due_ms, NOW_MS)
    assert isinstance(hold, Hold)
    assert router.latest_entry_ms(hold, due_ms) == NOW_MS + room_ms


def test_a_slot_may_be_entered_until_it_is_swept() -> None:
    router, due_ms = Router(plan(RINGS)), NOW_MS + 3 * DAY_MS
    hold = router.route(due_ms, NOW_MS)
    assert isinstance(hold, Hold)
    assert router.latest_entry_ms(hold, due_ms) == hold.release_at_ms - 1


@pytest.mark.parametrize(
    ("before_sweep_ms", "slot_topic"),
    [
        (SKEW_MS + 10_001, "ring-1d-32.009"),
        (SKEW_MS + 10_000, "ring-1h-30.025"),  # hour 490,896 + 79 = 16,365 x 30 + 25
        (1, "ring-1h-30.025"),
        (0, "ring-1h-30.025"),
    ],
)
def test_a_new_message_passes_over_a_slot_that_may_be_swept_before_it_is_stored(
    before_sweep_ms: int, slot_topic: str
) -> None:
    due_ms = NOW_MS + 3 * DAY_MS + 7 * HOUR_MS
    now_ms = NOW_MS + 3 * DAY_MS - GUARD_MS - before_sweep_ms
    route = Router(plan(RINGS)).route_of_send(due_ms, now_ms, 10_000)
    assert route.topic == f"{DUE_TOPIC}.tw.{slot_topic}"


def test_a_new_message_that_no_slot_takes_is_delayed_by_the_broker_from_now_on() -> None:
    due_ms = NOW_MS + 7 * HOUR_MS
    now_ms = due_ms - GUARD_MS - SKEW_MS
    assert isinstance(Router(plan(RINGS)).route(due_ms, now_ms), Hold)
    assert Router(plan(RINGS)).route_of_send(due_ms, now_ms, 0) == Due(DUE_TOPIC, due_ms - 1_500)


def test_a_broker_held_tier_may_always_be_entered_since_nothing_stands_before_a_message() -> None:
    router = Router(plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,), hold="broker")))
    hold = router.route(NOW_MS + 2 * DAY_MS, NOW_MS)
    assert isinstance(hold, Hold)
    assert router.latest_entry_ms(hold, NOW_MS + 2 * DAY_MS) is None


# ---------------------------------------------------------------------------------------- over the whole space of plans


@given(st.data())
def test_stays_and_hops_lead_to_the_due_time_and_never_past_it(data: st.DataObject) -> None:
    value = data.draw(plans())
    due_ms, sent_ms = data.draw(sends(value))
    way = journey(value, due_ms, sent_ms)  # checks release_at against route, and the hop bound
    assert way.arrived_ms <= max(due_ms, sent_ms)
    assert way.arrived_ms == (way.holds[-1][1].release_at_ms if way.holds else sent_ms)
    assert due_ms - way.arrived_ms <= longest_due_stay_ms(value)
    if way.due.deliver_at_ms:
        assert way.arrived_ms < way.due.deliver_at_ms <= due_ms
    else:
        assert due_ms - way.arrived_ms <= value.lead_ms


@given(st.data())
def test_every_hold_leaves_after_it_is_entered_and_before_the_due_time(data: st.DataObject) -> None:
    value = data.draw(plans("tiered", "wheel"))
    due_ms, sent_ms = data.draw(sends(value))
    for entered_ms, hold in journey(value, due_ms, sent_ms).holds:
        assert entered_ms < hold.release_at_ms <= due_ms
        if hold.stay_ms:
            # with the guard to spare (broker-facts: guard-and-skew)
            assert hold.release_at_ms == entered_ms + hold.stay_ms
            assert due_ms - hold.release_at_ms >= value.guard_ms
        assert hold.deliver_at_ms in ((0,) if value.holds_in_relay else (hold.release_at_ms,))
        latest_ms = Router(value).latest_entry_ms(hold, due_ms)
        assert latest_ms is None or latest_ms >= entered_ms


@given(st.data(), st.integers(0, 10 * MINUTE_MS))
def test_a_new_message_takes_the_first_place_that_is_left_late_enough(data: st.DataObject, within_ms: int) -> None:
    value = data.draw(plans())
    due_ms, sent_ms = data.draw(sends(value))
    router = Router(value)
    route = router.route_of_send(due_ms, sent_ms, within_ms)
    if route != router.route(due_ms, sent_ms):
        assert isinstance(value.scheme, Wheel)
        swept_ms = [
            due_ms // ring.slot_ms * ring.slot_ms - value.headstart_ms(ring) for ring in reversed(value.scheme.rings)
        ]
        fitting = [at_ms for at_ms in swept_ms if at_ms > sent_ms + within_ms + value.skew_ms]
        if fitting:  # the coarsest comes first
            assert isinstance(route, Hold)
            assert route.release_at_ms == fitting[0]
        else:
            assert route == router.to_due(due_ms, sent_ms)
    if isinstance(route, Due) and within_ms <= value.skew_ms:
        assert due_ms - sent_ms <= longest_due_stay_ms(value)


@given(st.data())
def test_every_routed_topic_is_in_the_topology_of_that_moment(data: st.DataObject) -> None:
    value = data.draw(plans())
    due_ms, sent_ms = data.draw(sends(value))
    made = topology(value, sent_ms)
    way = journey(value, due_ms, sent_ms)
    for topic in (*(hold.topic for _, hold in way.holds), way.due.topic):
        assert topic in made


@given(st.data())
def test_a_timer_of_any_clock_reaches_the_due_topic_within_the_hop_bound(data: st.DataObject) -> None:
    """Late lanes route by the wall clock: hops made late, any number of times, keep the bound and end."""
    value = data.draw(plans("tiered", "wheel"))
    due_ms, at_ms = data.draw(sends(value))
    router, hops = Router(value), 0
    while isinstance(route := router.route(due_ms, at_ms), Hold):
        hops += 1
        assert hops <= hop_bound(value)
        at_ms = route.release_at_ms + data.draw(st.sampled_from([0, 1, value.guard_ms, DAY_MS]))


@given(st.data())
def test_rings_only_hop_inwards(data: st.DataObject) -> None:
    value = data.draw(plans("wheel"))
    due_ms, sent_ms = data.draw(sends(value))
    names = Names(value)
    rank = {name: rank for rank, step in enumerate(steps(value)) for name in names.of_step(step)}
    ranks = [rank[hold.topic] for _, hold in journey(value, due_ms, sent_ms).holds]
    assert ranks == sorted(set(ranks)), "a ring met twice, or a coarser one after a finer"


@given(st.data())
def test_a_ring_never_wraps_into_a_slot_that_is_still_to_be_swept(data: st.DataObject) -> None:
    value = data.draw(plans("wheel"))
    due_ms, sent_ms = data.draw(sends(value))
    rings = {name: step for step in steps(value) for name in Names(value).of_step(step)}
    for entered_ms, hold in journey(value, due_ms, sent_ms).holds:
        step = rings[hold.topic]
        # The previous turn of the same slot topic is swept at its release, and again a slot later for stragglers
        # (broker-facts: slot-sweep): both lie behind us.
        previous_release_ms = hold.release_at_ms - step.slots * step.slot_ms
        assert previous_release_ms + step.slot_ms <= entered_ms


@given(plan=plans("calendar"), now_ms=moments_ms, skew_ms=st.integers(0, 5 * MINUTE_MS))
def test_a_topology_made_a_moment_ago_still_holds_a_new_timer(plan: Plan, now_ms: int, skew_ms: int) -> None:
    assert isinstance(plan.scheme, Calendar)
    later_ms = now_ms + min(skew_ms, plan.scheme.interval_ms)
    assert Router(plan).route(later_ms + plan.max_delay_ms, later_ms).topic in topology(plan, now_ms)


# --------------------------------------------------------------------------------------------------------- fingerprint


def test_the_fingerprint_changes_with_all_that_decides_where_a_timer_goes_and_with_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = plan(TIERED)
    fingerprint = Router(base).fingerprint
    other_way = {
        "window": plan(Tiered(window_ms=13 * HOUR_MS, tiers_ms=TIERED.tiers_ms)),
        "tiers": plan(Tiered(window_ms=TIERED.window_ms, tiers_ms=TIERED.tiers_ms[:2])),
        "guard": plan(TIERED, guard_ms=GUARD_MS + 1),
        "due topic": plan(TIERED, due_topic=f"{DUE_TOPIC}2"),
        "holding namespace": plan(TIERED, holding_namespace="acme/held"),
        "hold": plan(Tiered(window_ms=TIERED.window_ms, tiers_ms=TIERED.tiers_ms, hold="broker")),
    }
    found = {name: Router(changed).fingerprint for name, changed in other_way.items()}
    assert len({fingerprint, *found.values()}) == 1 + len(other_way)
    same_way = plan(TIERED, revision=9, subscriptions=("billing", "audit"), partitions=8, max_delay_ms=DAY_MS)
    assert Router(same_way).fingerprint == fingerprint, "only the way counts: a name that changes costs copies"
    monkeypatch.setattr("timewheel.core.routing.ROUTING_CODE", ROUTING_CODE + 1)
    assert Router(base).fingerprint != fingerprint


@given(plans("tiered"), st.integers(0, 3_600_000), st.integers(0, 2_000), st.data())
def test_plans_of_one_fingerprint_route_alike(
    value: Plan, more_window_ms: int, more_guard_ms: int, data: st.DataObject
) -> None:
    assert isinstance(value.scheme, Tiered)
    wider = replace(value.scheme, window_ms=value.scheme.window_ms + more_window_ms)
    guard_ms = min(value.guard_ms + more_guard_ms, DAY_MS)
    changed = replace(value, scheme=wider, guard_ms=guard_ms, revision=value.revision // 2 + 1)
    due_ms, at_ms = data.draw(sends(value))
    one, other = Router(value), Router(changed)
    if one.route(due_ms, at_ms).topic != other.route(due_ms, at_ms).topic:
        assert one.fingerprint != other.fingerprint
    if not more_window_ms and not more_guard_ms:
        assert one.fingerprint == other.fingerprint


@given(plan=plans(), due_ms=moments_ms, now_ms=moments_ms, factor=st.integers(2, 4))
def test_a_scaled_plan_routes_scaled_times_as_the_plan_routes_times(
    plan: Plan, due_ms: int, now_ms: int, factor: int
) -> None:
    try:
        scaled = plan.scaled(factor)
    except PlanError:
        reject()  # ten years and a guard of a day are limits of their own
    of_plan = Router(plan).route(due_ms, now_ms)
    of_scaled = Router(scaled).route(factor * due_ms, factor * now_ms)
    assert type(of_plan) is type(of_scaled)
    holding, scaled_holding = ([topic.name for topic in topology(one, 0).holding] for one in (plan, scaled))
    if isinstance(of_plan, Hold):
        assert holding.index(of_plan.topic) == scaled_holding.index(of_scaled.topic)


def test_a_plan_scaled_there_and_back_is_the_plan() -> None:
    for scheme in (TIERED, Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32))), Calendar()):
        assert plan(scheme).scaled(Fraction(1, 600)).scaled(600) == plan(scheme)
