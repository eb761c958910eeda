"""The whole space of valid plans, as hypothesis strategies; and the way of a timer through one."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.life_cycle import Cancel
from timewheel.core.plan import Calendar, Native, Plan, Readers, Ring, Tiered, Wheel
from timewheel.core.routing import Due, Hold, Router, release_at
from timewheel.core.steps import hop_bound
from timewheel.core.topology import topology

DUE_TOPIC = "persistent://acme/crm/reminders"
NOW_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

moments_ms = st.integers(0, 4_000_000_000_000) | st.integers(NOW_MS, NOW_MS + 40 * DAY_MS)
_guards_ms = st.sampled_from([0, 1, SECOND_MS, 5 * MINUTE_MS, DAY_MS]) | st.integers(0, DAY_MS)
# Round and odd ones, from a second to weeks.
_durations_ms = st.sampled_from([SECOND_MS, 3 * SECOND_MS, MINUTE_MS, HOUR_MS, 12 * HOUR_MS, DAY_MS, 5 * DAY_MS]) | (
    st.integers(SECOND_MS, 20 * DAY_MS)
)
_words = st.text("abcxyz019.-_=:é✓", min_size=1, max_size=12).filter(lambda word: "-partition-" not in word)


@st.composite
def plans(draw: st.DrawFn, *kinds: str) -> Plan:
    """A valid plan of one of the kinds (``native tiered calendar wheel``; default all)."""
    guard_ms = draw(_guards_ms)
    kind = draw(st.sampled_from(kinds or ("native", "tiered", "calendar", "wheel")))
    scheme: Native | Tiered | Calendar | Wheel
    match kind:
        case "tiered":
            tiers_ms = tuple(sorted(draw(st.sets(_durations_ms, min_size=1, max_size=5))))
            window_ms = tiers_ms[0] + draw(st.sampled_from([0, 1, SECOND_MS]) | st.integers(0, 3 * tiers_ms[0]))
            scheme = Tiered(window_ms=window_ms, tiers_ms=tiers_ms, hold=draw(st.sampled_from(["relay", "broker"])))
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
    readers: Readers = draw(st.sampled_from(["timewheel", "any"]))
    return Plan(
        due_topic=f"persistent://acme/crm/{draw(_words)}",
        subscriptions=tuple(draw(st.lists(_words, min_size=1, max_size=3, unique=True))),
        scheme=scheme,
        revision=draw(st.integers(1, 2**31 - 1)),
        partitions=draw(st.integers(1 if kind == "calendar" else 0, 16)),
        holding_namespace=draw(st.sampled_from([None, "acme/crm", "acme/held"])),
        max_delay_ms=max_delay_ms,
        relay=draw(st.sampled_from(["embedded", "service"])),
        readers=readers,
        guard_ms=guard_ms,
        tick_ms=draw(st.sampled_from([SECOND_MS, 100, MINUTE_MS])),
        jitter_ms=draw(st.sampled_from([0, max_delay_ms // 2])),
        former_intervals_ms=draw(st.sampled_from([(), (DAY_MS,)])),
        former_namespaces=draw(st.sampled_from([(), ("acme/then",)])),
        cancel=draw(st.none() | _cancels) if readers == "timewheel" else None,
        retry=draw(st.booleans()),
    )


_cancels = st.builds(
    Cancel,
    keep_ms=st.integers(MINUTE_MS, 400 * DAY_MS),
    skew_ms=st.integers(0, DAY_MS),
    when_blind=st.sampled_from(["hold", "deliver"]),
)


@st.composite
def _rings(draw: st.DrawFn, guard_ms: int) -> tuple[Ring, ...]:
    """One to three rings whose geometry fits (broker-facts: slot-release-time)."""
    rings: list[Ring] = []
    slot_ms, least_ms = draw(st.integers(SECOND_MS, 2 * HOUR_MS)), 0
    for _ in range(draw(st.integers(1, 3))):
        by_guard = least_ms <= guard_ms <= slot_ms and draw(st.booleans())
        headstart_ms = guard_ms if by_guard else draw(st.integers(least_ms, slot_ms))
        if rings:
            fine = rings[-1]
            needed = -(-(slot_ms + headstart_ms) // fine.slot_ms) + 2
            rings[-1] = Ring(
                slot_ms=fine.slot_ms, slots=max(fine.slots, min(needed, 1_000)), headstart_ms=fine.headstart_ms
            )
        rings.append(
            Ring(slot_ms=slot_ms, slots=draw(st.integers(4, 40)), headstart_ms=None if by_guard else headstart_ms)
        )
        least_ms = headstart_ms
        slot_ms *= draw(st.integers(2, 30))
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
    remaining_ms = draw(st.sampled_from(near) | st.integers(-DAY_MS, plan.max_delay_ms))
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
