"""The whole space of valid plans, as hypothesis strategies; and the way of a timer through one."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Due, Hold, Router, release_at
from timewheel.core.steps import hop_bound
from timewheel.core.topology import topology

DUE_TOPIC = "persistent://acme/crm/reminders"
NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z

moments_ms = st.integers(0, 4_000_000_000_000) | st.integers(NOW_MS, NOW_MS + 40 * DAY_MS)
_guards_ms = st.sampled_from([0, 1, SECOND_MS, 5 * MINUTE_MS, DAY_MS]) | st.integers(0, DAY_MS)
# Round and odd ones, from a second to weeks.
_durations_ms = st.sampled_from([SECOND_MS, 3 * SECOND_MS, MINUTE_MS, HOUR_MS, 12 * HOUR_MS, DAY_MS, 5 * DAY_MS]) | (
    st.integers(SECOND_MS, 20 * DAY_MS)
)
_words = st.text("abcxyz019.-_=:é✓", min_size=1, max_size=12).filter(lambda word: "-partition-" not in word)
_cancels = st.none() | st.builds(
    Cancel,
    keep_ms=st.integers(MINUTE_MS, 400 * DAY_MS),
    skew_ms=st.integers(0, DAY_MS),
    on_log_unavailable=st.sampled_from(["hold", "deliver"]),
)
# Made once, here and by `cache`: a strategy that is made within a draw is checked anew each time, and that takes longer
# than drawing.
_either = st.booleans()
_tiers_ms = st.sets(_durations_ms, min_size=1, max_size=5)
_a_little_ms = st.sampled_from([0, 1, SECOND_MS])
_holds: st.SearchStrategy[Literal["relay", "broker"]] = st.sampled_from(["relay", "broker"])
_subscriptions = st.lists(
    _words.filter(lambda word: word not in {".", ".."})
    | st.sampled_from(["public/default/notifier", "a:b/c d%é", "a?b#c", "a%2Fb", "x-partition-0"]),
    min_size=1,
    max_size=3,
    unique=True,
)
_revisions = st.integers(1, 2**31 - 1)
_slots_ms = st.integers(SECOND_MS, 2 * HOUR_MS)
_numbers_of_rings, _numbers_of_slots, _ratios = st.integers(1, 3), st.integers(4, 40), st.integers(2, 30)
_KINDS = ("native", "tiered", "calendar", "wheel")
_AROUND: dict[str, tuple[Any, ...]] = {
    "partitions": tuple(range(17)),
    "holding_namespace": (None, "acme/crm", "acme/held"),
    "relay": ("embedded", "service"),
    "readers": ("timewheel", "any"),
    "tick_ms": (SECOND_MS, 100, MINUTE_MS),
    "former_intervals_ms": ((), (DAY_MS,)),
    "former_namespaces": ((), ("acme/then",)),
    "retry": (False, True),
}
"""What has a few values only: one draw chooses all of it."""
_around = st.sampled_from([dict(zip(_AROUND, values, strict=True)) for values in product(*_AROUND.values())])


@cache
@st.composite
def plans(draw: st.DrawFn, *kinds: str) -> Plan:
    """A valid plan of one of the kinds (``native tiered calendar wheel``; default all)."""
    guard_ms = draw(_guards_ms)
    kind = kinds[0] if len(kinds) == 1 else draw(st.sampled_from(kinds or _KINDS))
    scheme: Native | Tiered | Calendar | Wheel
    match kind:
        case "tiered":
            tiers_ms = tuple(sorted(draw(_tiers_ms)))
            window_ms = tiers_ms[0] + draw(_a_little_ms if draw(_either) else st.integers(0, 3 * tiers_ms[0]))
            scheme = Tiered(window_ms=window_ms, tiers_ms=tiers_ms, hold=draw(_holds))
            # At most a few hundred hops, so that following every one stays cheap.
            max_delay_ms = draw(st.integers(SECOND_MS, 300 * tiers_ms[-1]))
            max_delay_ms = min(max_delay_ms, 3_000 * tiers_ms[0], 3_000 * DAY_MS)
        case "calendar":
            interval_ms = draw(_durations_ms)
            scheme = Calendar(interval_ms=interval_ms)
            max_delay_ms = draw(st.integers(SECOND_MS, min(990 * interval_ms, 3_000 * DAY_MS)))
        case "wheel":
            rings = draw(_rings(guard_ms))
            scheme = Wheel(rings=rings)
            max_delay_ms = draw(st.integers(SECOND_MS, min((rings[-1].slots - 2) * rings[-1].slot_ms, 3_000 * DAY_MS)))
        case _:
            scheme = Native()
            max_delay_ms = draw(st.integers(SECOND_MS, 3_000 * DAY_MS))
    around = draw(_around)
    intake = False
    if scheme_takes_in(scheme) and around["relay"] == "service":
        intake = draw(_either)
    if kind == "calendar":
        around = {**around, "partitions": max(around["partitions"], 1)}
    return Plan(
        due_topic=f"persistent://acme/crm/{draw(_words)}",
        subscriptions=tuple(draw(_subscriptions)),
        scheme=scheme,
        revision=draw(_revisions),
        max_delay_ms=max_delay_ms,
        guard_ms=guard_ms,
        intake=intake,
        jitter_ms=draw(_either) * (max_delay_ms // 2),
        cancel=draw(_cancels) if around["readers"] == "timewheel" else None,
        **around,
    )


def scheme_takes_in(scheme: Native | Tiered | Calendar | Wheel) -> bool:
    """Whether a plan of this scheme may have an intake."""
    return isinstance(scheme, Wheel) or (isinstance(scheme, Tiered) and scheme.hold == "relay")


@st.composite
def _rings(draw: st.DrawFn, guard_ms: int) -> tuple[Ring, ...]:
    """One to three rings whose geometry fits (broker-facts: slot-release-time)."""
    rings: list[Ring] = []
    slot_ms, least_ms = draw(_slots_ms), 0
    for _ in range(draw(_numbers_of_rings)):
        by_guard = least_ms <= guard_ms <= slot_ms and draw(_either)
        headstart_ms = guard_ms if by_guard else draw(st.integers(least_ms, slot_ms))
        if rings:
            fine = rings[-1]
            needed = -(-(slot_ms + headstart_ms) // fine.slot_ms) + 2
            rings[-1] = Ring(
                slot_ms=fine.slot_ms, slots=max(fine.slots, min(needed, 1_000)), headstart_ms=fine.headstart_ms
            )
        rings.append(
            Ring(slot_ms=slot_ms, slots=draw(_numbers_of_slots), headstart_ms=None if by_guard else headstart_ms)
        )
        least_ms = headstart_ms
        slot_ms *= draw(_ratios)
    return tuple(rings)


@st.composite
def sends(draw: st.DrawFn, plan: Plan) -> tuple[int, int]:
    """(due, send time) of a timer that the plan accepts: past due, at a limit, or anything between."""
    at_ms = draw(moments_ms)
    limits = [0, 1, plan.max_delay_ms - 1, plan.max_delay_ms]
    if isinstance(plan.scheme, Tiered):
        limits += [plan.scheme.window_ms, plan.scheme.window_ms + 1]
        limits += [tier + plan.guard_ms + nudge for tier in plan.scheme.tiers_ms for nudge in (-1, 0, 1)]
    near = [limit for limit in limits if 0 <= limit <= plan.max_delay_ms]
    remaining_ms = draw(st.sampled_from(near) if draw(_either) else st.integers(-DAY_MS, plan.max_delay_ms))
    return max(at_ms + remaining_ms, 0), at_ms


class Journey(NamedTuple):
    """A timer's way: every hold as (moment of entry, hold), then the due route and its moment."""

    holds: list[tuple[int, Hold]]
    arrived_ms: int
    due: Due


def journey(plan: Plan, due_ms: int, sent_ms: int) -> Journey:
    """Follow a timer by `route`, and by `release_at` from the stored topology alone, as a relay does."""
    router = Router(plan)
    holding = {topic.name: topic for topic in topology(plan, sent_ms).holding}
    at_ms, holds = sent_ms, list[tuple[int, Hold]]()
    while isinstance(route := router.route(due_ms, at_ms), Hold):
        step = holding[route.topic].step
        released_ms = release_at(step, due_ms, at_ms)
        assert released_ms == route.release_at_ms
        holds.append((at_ms, route))
        assert len(holds) <= hop_bound(plan), "more hops than the plan's bound"
        at_ms = released_ms
    return Journey(holds, at_ms, route)
