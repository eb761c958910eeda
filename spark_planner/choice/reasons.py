"""Reasons for a recommendation, in sentences with the numbers that decide; ties with other candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from timewheel.core import plurals
from timewheel.core.durations import DAY_MS, MINUTE_MS, format_duration
from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel

from ..pricing.evaluate import Evaluation
from .constraints import Constraints, Room

if TYPE_CHECKING:
    from .choose import Choice

TIE = 0.05
"""Tolerance, as a fraction of the recommended plan's cost: prices of topics and relays are estimates, no more exact."""
FEWER_GAPS = 0.8  # ratio of estimates below which they differ; closer estimates do not decide


def tied_with(
    chosen: Evaluation,
    fitting: Sequence[Evaluation],
    constraints: Constraints,
    counted: Mapping[Plan, int],
    allowed: float,
) -> tuple[Evaluation, ...]:
    """Return the candidates within `TIE` of the recommended plan's cost, those with the most advantages first."""
    most = constraints.cost_of(chosen).writes_per_second * (1 + TIE)
    rivals = [
        one
        for one in fitting
        if one.plan.scheme != chosen.plan.scheme
        and constraints.cost_of(one).writes_per_second <= most
        and counted.get(one.plan, 0) <= allowed
    ]

    def rank(one: Evaluation) -> tuple[bool, int, float, str]:
        # A plan without a relay is the greatest advantage; equal candidates get a fixed order.
        spares_relay = chosen.needs_relay and not one.needs_relay
        cost = constraints.cost_of(one).writes_per_second
        return not spares_relay, -len(advantages(one, chosen)), cost, repr(one.plan.scheme)

    return tuple(sorted(rivals, key=rank))


def advantages(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    found = []
    if other.needs_relay and not one.needs_relay:
        found.append("no relay")
    if one.partition_topics < other.partition_topics:
        found.append("fewer topics")
    if one.peak_gaps_per_partition < FEWER_GAPS * other.peak_gaps_per_partition:
        found.append("fewer gaps in a partition")
    if one.hops_mean < FEWER_GAPS * other.hops_mean:
        found.append("fewer hops")
    return tuple(found)


def drawbacks(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    return tuple(name.replace("fewer", "more").replace("no relay", "a relay to run") for name in advantages(other, one))


MOST = 5  # most sentences; all further figures are in the tables


def describe(plan: Plan) -> str:
    return f"a shadow with {_scheme(plan)}" if plan.intake else _scheme(plan)


def _scheme(plan: Plan) -> str:
    match plan.scheme:
        case Native():
            return "native delays"
        case Calendar(interval_ms=interval_ms):
            return f"a topic per {format_duration(interval_ms)}"
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms):
            tiers = ", ".join(format_duration(tier_ms) for tier_ms in tiers_ms)
            return f"a {format_duration(window_ms)} window over tiers of {tiers}"
        case Wheel(rings=rings):
            return "rings of " + ", ".join(f"{ring.slots} x {format_duration(ring.slot_ms)}" for ring in rings)


def partitions_in_words(number: int) -> str:
    if not number:
        return "a topic without partitions"
    return "one partition" if number == 1 else f"{number} partitions"


def stays(plan: Plan) -> bool:
    """Return whether a plan is the user's plan of today: native delays on one partition."""
    return isinstance(plan.scheme, Native) and plan.own_partitions == 1


def reasons_for(
    choice: Choice, candidates: Sequence[Evaluation], fitting: int, constraints: Constraints, growth: float
) -> tuple[str, ...]:
    """Return at most `MOST` sentences for a choice, the most important first."""
    chosen, native, known = choice.recommended.evaluation, choice.native, choice.known
    fit = candidates[:fitting]
    now = known if growth == 1 else {}
    found = [
        _summary(choice, known.get(chosen.plan), growth),
        "" if stays(chosen.plan) else _against_native(chosen, native, now.get(chosen.plan), now.get(native.plan)),
        _tie(chosen, choice.ties, constraints)
        or _longer(chosen, candidates)
        or _one_partition(chosen, fit)
        or _shorter(chosen, candidates)
        or f"After an unload a partition is silent for about {chosen.silence_seconds:.1f} s, since up to "
        f"{chosen.peak_pending_per_partition:,.0f} entries wait in it.",
        _cost(chosen, fit, choice.ties[:1], constraints),
    ]
    if choice.rooms:
        room = choice.rooms[0]
        unit, volume = volume_of(chosen, room)
        found.append(
            f"As the volume grows, the first limit to be reached is {room.limit}: at {room.times:,.2f} times what is "
            f"planned for, {volume} {unit}."
        )
    return tuple(sentence for sentence in found if sentence)[:MOST]


def _summary(choice: Choice, own: int | None, growth: float) -> str:
    chosen, broken, considered = choice.recommended.evaluation, choice.recommended.broken, choice.considered
    estimated = f"about {chosen.peak_gaps_per_partition:,.0f}"
    limit = f"of {chosen.gap_limit_ranges:,} that the broker keeps"
    if own is None:
        gaps = f"{estimated} gaps in a partition at the peak (estimated), {chosen.gap_fraction:.0%} {limit}"
    elif growth == 1:
        gaps = f"{plurals.counted(own, 'gap')} in a partition at the peak (counted; estimated {estimated}), {limit}"
    else:
        at = f"at {growth:g} times the volume of which {own:,} were counted"
        gaps = f"{estimated} gaps in a partition at the peak (estimated, {at}), {limit}"
    what = f"{describe(chosen.plan)} on {_partitions(chosen)}"
    schemes = len({plan.scheme for plan in choice.counted})
    how = (
        " (all counted)" if schemes == considered else f" ({schemes} counted, the others estimated)" if schemes else ""
    )
    if broken:
        limits = ", ".join(broken)
        return f"No candidate keeps every limit: of {considered}{how}, {what} breaks fewest ({limits}), with {gaps}."
    if stays(chosen.plan):
        return f"Stay with {what}: {gaps}; none of the other {considered - 1} candidates{how} is cheaper."
    return f"Of {considered} candidates{how}, {what} is the cheapest that fits: {gaps}."


def _against_native(chosen: Evaluation, native: Evaluation, own: int | None, counted: int | None) -> str:
    again = native.redelivered.worst_entries
    if counted is None:
        gaps, share = f"about {plurals.counted(round(native.peak_gaps), 'gap')} (estimated)", native.gap_fraction
    else:
        gaps = f"{plurals.counted(counted, 'gap')} (counted)"
        share = counted / max(native.gap_limit_ranges, 1)
    said = f"Native delays on one partition peak at {gaps}, {_times(share)} the limit"
    if again >= 1:
        said += f"; an unload at the worst moment delivers {plurals.counted(round(again), 'message')} again"
        said += f", with this plan {chosen.redelivered.worst_entries:,.0f}"
        if own is not None and own > native.gap_limit_ranges and chosen.gap_fraction <= 1:
            said += " but for its peak, which the estimate does not see"
    return said + "."


def _tie(chosen: Evaluation, ties: Sequence[Evaluation], constraints: Constraints) -> str:
    if not ties:
        return ""
    one = ties[0]
    own, cost = (constraints.cost_of(each).writes_per_second for each in (chosen, one))
    said = f"A tie: {describe(one.plan)} on {_partitions(one)} costs as much within {TIE:.0%} "
    said += f"({cost:,.1f} against {own:,.1f} entries a second, estimated)"
    better, worse = advantages(one, chosen), drawbacks(one, chosen)
    if better:
        said += f" and has {_listed(better)}"
    if worse:
        said += f"{', but' if better else ' and has'} {_listed(worse)}"
    if not better and not worse:
        said += ", and differs in nothing else that was priced"
    return said + "."


def _longer(chosen: Evaluation, candidates: Sequence[Evaluation]) -> str:
    """Describe the partitions that a longer step of the same scheme would need."""
    size_ms, others = _size_ms(chosen.plan), _by_size(chosen, candidates)
    needs_more = [size for size in sorted(others) if size > size_ms and _needs(others[size]) > _needs(chosen)]
    if not needs_more:
        return ""
    fewest, most = others[needs_more[0]], others[needs_more[-1]]
    said = (
        f"A {format_duration(size_ms)} {_size_word(chosen.plan)} fits {_partitions(chosen)}; "
        f"{format_duration(needs_more[0])} would need {_needs(fewest)}"
    )
    if most is not fewest:
        said += f", {format_duration(needs_more[-1])} {_needs(most)}"
    return said + "."


def _shorter(chosen: Evaluation, candidates: Sequence[Evaluation]) -> str:
    """Describe the gain of a shorter step. Steps with more than half of the gaps are left out: their gain is small."""
    size_ms, others = _size_ms(chosen.plan), _by_size(chosen, candidates)
    shorter = [size for size in sorted(others) if size < size_ms and 2 * others[size].peak_gaps <= chosen.peak_gaps]
    if not shorter or not chosen.hops_mean:
        return ""
    other = others[shorter[-1]]
    return (
        f"A {format_duration(shorter[-1])} {_size_word(chosen.plan)} would bring {other.peak_gaps:,.0f} gaps instead "
        f"of {chosen.peak_gaps:,.0f} (estimated), for {other.hops_mean:.2f} hops a timer instead of "
        f"{chosen.hops_mean:.2f}."
    )


def _by_size(chosen: Evaluation, candidates: Sequence[Evaluation]) -> dict[int, Evaluation]:
    found: dict[int, Evaluation] = {}
    for one in candidates:
        if _size_ms(chosen.plan) and type(one.plan.scheme) is type(chosen.plan.scheme):
            found.setdefault(_size_ms(one.plan), one)
    return found


def _one_partition(chosen: Evaluation, fitting: Sequence[Evaluation]) -> str:
    """Describe the best plan that needs a single partition, if the chosen plan needs more."""
    if _needs(chosen) == 1:
        return ""
    other = next((one for one in fitting if _needs(one) == 1), None)
    if other is None:
        return ""
    hops = f"{other.hops_mean:.2f} hops a timer" if other.hops_mean else "no hops"
    relay = " and a relay to run" if other.needs_relay else ""
    return f"One partition is enough for {describe(other.plan)}, at {hops}, with {_topics(other)}{relay}."


def _cost(
    chosen: Evaluation, fitting: Sequence[Evaluation], told: Sequence[Evaluation], constraints: Constraints
) -> str:
    cost = constraints.cost_of(chosen)
    hops = (
        f" ({chosen.hops_mean:.2f} hops a timer, so {chosen.writes_per_timer - 1:.0%} more than without)"
        if chosen.hops_mean
        else ""
    )
    parts = [f"{cost.written:,.1f} are written{hops}", f"{cost.topics:,.1f} stand for its {_topics(chosen)}"]
    if cost.relay:
        parts.append(f"{cost.relay:,.1f} for the relay")
    said = f"It costs as much as {cost.writes_per_second:,.1f} entries a second: {_listed(parts)}"
    kind = type(chosen.plan.scheme)
    other = next((one for one in fitting if type(one.plan.scheme) is not kind), None)
    if other is not None and other not in told:
        dearer = constraints.cost_of(other).writes_per_second
        said += f"; the cheapest of another kind, {describe(other.plan)} on {_partitions(other)}, costs {dearer:,.1f}"
    return said + "."


def volume_of(chosen: Evaluation, room: Room) -> tuple[str, str]:
    """Return (unit, number) of the volume at which a limit is reached; a history below a day has no volume a day."""
    if chosen.history_ms >= DAY_MS:
        return "timers a day", f"{room.timers_per_day:,.0f}"
    within_ms = max(math.ceil(chosen.history_ms / MINUTE_MS), 1) * MINUTE_MS
    return f"timers within {format_duration(within_ms)}", f"{chosen.timers * room.times:,.0f}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(parts[:-1])]), parts[-1]])


def _topics(evaluation: Evaluation) -> str:
    return plurals.counted(evaluation.partition_topics, "partition topic")


def _times(times: float) -> str:
    return f"{times:,.1f} times" if times >= 2 else f"{times:.0%} of"


def _size_ms(plan: Plan) -> int:
    match plan.scheme:
        case Tiered(window_ms=window_ms):
            return window_ms
        case Calendar(interval_ms=interval_ms):
            return interval_ms
        case Wheel(rings=rings):
            return rings[0].slot_ms
        case Native():
            return 0


def _size_word(plan: Plan) -> str:
    return {Tiered: "window", Calendar: "interval", Wheel: "slot"}.get(type(plan.scheme), "")


def _needs(evaluation: Evaluation) -> int:
    return evaluation.plan.own_partitions


def _partitions(evaluation: Evaluation) -> str:
    return partitions_in_words(evaluation.plan.partitions)
