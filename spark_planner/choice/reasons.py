"""Reasons for a recommendation, in sentences with the numbers that decide; the candidates as far as each is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timewheel.core import plurals
from timewheel.core.durations import DAY_MS, MINUTE_MS, format_duration
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered, Wheel

from ..pricing.evaluate import Evaluation
from .constraints import COUNTED_LIMITS, GAP_FRACTION, REDELIVERED, Constraints, Room, at_growth

if TYPE_CHECKING:
    from .choose import Assessed, Choice

COUNTED, ESTIMATED = "counted", "estimated"
QUICKLY = "quick count"  # without the ends of ledgers, and of keyless sends in turns alone: a full count may find more


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of a plan, and how it is known."""

    value: float
    known: str = ESTIMATED  # or `COUNTED`, or `QUICKLY`
    is_least: bool = False  # the count ended above the limit: there are more

    def __str__(self) -> str:
        return f"{'over ' if self.is_least else ''}{self.value:,.0f}"

    def said(self, noun: str, plural: str | None = None) -> str:
        """Return the figure with its noun and how it is known."""
        number = plurals.counted(round(self.value), noun, plural)
        about = "over " if self.is_least else "about " if self.known == ESTIMATED and round(self.value) else ""
        return f"{about}{number} ({self.known})"


def gaps_of(choice: Choice, evaluation: Evaluation, partitions: int | None = None) -> Amount:
    """Return the gaps of a plan's fullest partition at the planned volume: by its count, if it was counted."""
    plan = evaluation.plan if partitions is None else evaluation.plan.with_partitions(partitions)
    count = choice.known.get(plan)
    if count is None:
        return Amount(value=evaluation.peak_gaps_per_partition)
    allowed, growth = choice.allowance.gaps(plan), choice.allowance.growth
    # A quick count ends at the limit; what it refutes is refuted.
    is_least = count > allowed and plan not in choice.full
    count = allowed if is_least else count
    if growth == 1:
        return Amount(value=count, known=COUNTED if is_least or plan in choice.full else QUICKLY, is_least=is_least)
    return Amount(value=at_growth(count, growth), is_least=is_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A candidate, with the fewest partitions that a count found enough; without a count, those of its estimate."""

    plan: Plan
    evaluation: Evaluation  # of the same scheme, perhaps with other partitions
    gaps: Amount  # of the fullest partition
    cost: float  # entries a second, at the constraints' prices
    topics: int  # partition topics
    broken: tuple[str, ...]  # names of the constraints that it breaks


def alternatives(choice: Choice) -> tuple[Alternative, ...]:
    """Return all priced candidates as far as they are known, in their order."""
    counts: dict[Scheme, dict[int, int]] = {}
    for plan, gaps in choice.counted.items():
        counts.setdefault(plan.scheme, {})[plan.own_partitions] = gaps
    return tuple(_alternative(one, counts.get(one.evaluation.plan.scheme, {}), choice) for one in choice.candidates)


def _alternative(one: Assessed, counts: Mapping[int, int], choice: Choice) -> Alternative:
    constraints, evaluation = choice.allowance.constraints, one.evaluation
    chosen, own = choice.recommended, evaluation.plan.own_partitions
    partitions, cost = own, one.cost_writes_per_second
    broken = tuple(name for name in one.broken if name not in COUNTED_LIMITS)
    if one is chosen:
        broken = one.broken
    elif counts:
        # With fewer partitions than the estimate's, silence is at most in proportion.
        silence, silent = evaluation.silence_seconds * own, constraints.silence_seconds
        able = [number for number in counts if number >= own or silent is None or silence <= silent * number]
        broken_by = {number: choice.broken_by(evaluation.plan.with_partitions(number)) for number in counts}
        partitions = min((number for number in able if not broken_by[number]), default=max(counts))
        if partitions != own:
            cost = constraints.cost_with(evaluation, partitions)
        broken = (*broken, *(broken_by[partitions] or ()))
        if evaluation.plan.with_partitions(partitions) not in choice.full:
            broken = (*broken, *(name for name in one.broken if name == REDELIVERED))
    elif COUNTED_LIMITS.intersection(one.broken) or (chosen.broken and not broken):
        # If the counts refuted all that could be enough, an estimate does not say otherwise.
        broken = (*broken, *([name for name in one.broken if name in COUNTED_LIMITS] or [GAP_FRACTION]))
    if not broken and not chosen.broken:
        cost = max(cost, chosen.cost_writes_per_second)  # others are priced roughly, and none of them is cheaper
    return Alternative(
        plan=evaluation.plan.with_partitions(partitions),
        evaluation=evaluation,
        gaps=gaps_of(choice, evaluation, partitions),
        cost=cost,
        topics=evaluation.dead_letter_topics + evaluation.topics_of_a_partition * partitions,
        broken=broken,
    )


def front_of_alternatives(found: Sequence[Alternative], chosen: Plan) -> tuple[Alternative, ...]:
    """Return those that no other beats in both gaps and cost, the cheapest first, of those that break no constraint."""
    fitting = [one for one in found if not one.broken] or found
    front: list[Alternative] = []
    for one in sorted(fitting, key=lambda one: (one.cost, one.plan != chosen, one.gaps.value)):
        if not front or one.gaps.value < front[-1].gaps.value:
            front.append(one)
    return tuple(front)


TIE = 0.05
"""Tolerance, as a fraction of the recommended plan's cost: prices of topics and relays are estimates, no more exact."""
FEWER_GAPS = 0.8  # ratio of estimates below which they differ; closer estimates do not decide


def tied_with(choice: Choice) -> tuple[Alternative, ...]:
    """Return the candidates within `TIE` of the recommended plan's cost, those with the most advantages first."""
    found = alternatives(choice)
    chosen = next(one for one in found if one.plan == choice.recommended.evaluation.plan)
    if chosen.broken:
        return ()
    most = chosen.cost * (1 + TIE)
    rivals = [one for one in found if not one.broken and one is not chosen and one.cost <= most]

    def rank(one: Alternative) -> tuple[bool, int, float, str]:
        # A plan without a relay is the greatest advantage; equal candidates get a fixed order.
        spares_relay = chosen.evaluation.needs_relay and not one.evaluation.needs_relay
        return not spares_relay, -len(advantages(one, chosen)), one.cost, repr(one.plan.scheme)

    return tuple(sorted(rivals, key=rank))


def advantages(one: Alternative, other: Alternative) -> tuple[str, ...]:
    found = []
    if other.evaluation.needs_relay and not one.evaluation.needs_relay:
        found.append("no relay")
    if one.topics < other.topics:
        found.append("fewer topics")
    is_alike = (one.gaps.known == ESTIMATED) == (other.gaps.known == ESTIMATED)
    if is_alike and one.gaps.value < FEWER_GAPS * other.gaps.value:
        found.append("fewer gaps in a partition")
    if one.evaluation.hops_mean < FEWER_GAPS * other.evaluation.hops_mean:
        found.append("fewer hops")
    return tuple(found)


def drawbacks(one: Alternative, other: Alternative) -> tuple[str, ...]:
    found = advantages(other, one)
    return tuple(name.replace("fewer", "more").replace("no relay", "a relay to run") for name in found)


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


def reasons_for(choice: Choice) -> tuple[str, ...]:
    """Return at most `MOST` sentences for a choice, the most important first."""
    chosen, known, constraints = choice.recommended.evaluation, alternatives(choice), choice.allowance.constraints
    others = [one for one in sorted(known, key=lambda one: (one.cost, one.gaps.value)) if not one.broken]
    found = [
        _summary(choice, gaps_of(choice, chosen)),
        _tie(choice, known)
        or _longer(chosen, others)
        or _one_partition(chosen, others)
        or f"After an unload a partition is silent for about {chosen.silence_seconds:.1f} s, since up to "
        f"{chosen.peak_pending_per_partition:,.0f} entries wait in it (estimated).",
        _cost(chosen, others, choice.ties[:1], constraints),
    ]
    if choice.rooms:
        room = choice.rooms[0]
        unit, volume = volume_of(chosen, room)
        found.append(
            f"As the volume grows, the first limit to be reached is {room.limit}: at {room.times:,.2f} times what is "
            f"planned for, {volume} {unit}."
        )
    return tuple(sentence for sentence in found if sentence)[:MOST]


def _summary(choice: Choice, own: Amount) -> str:
    chosen, broken, considered = choice.recommended.evaluation, choice.recommended.broken, choice.considered
    count, growth = choice.known.get(chosen.plan), choice.allowance.growth
    at = "" if growth == 1 else f" at {growth:g} times the volume"
    at += "" if growth == 1 or count is None else f" of which {count:,} were counted"
    gaps = f"{own.said('gap')} in a partition at the peak{at}, of {chosen.gap_limit_ranges:,} that the broker keeps"
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


def _tie(choice: Choice, known: Sequence[Alternative]) -> str:
    if not choice.ties:
        return ""
    chosen, one = next(each for each in known if each.plan == choice.recommended.evaluation.plan), choice.ties[0]
    said = f"A tie: {describe(one.plan)} on {partitions_in_words(one.plan.partitions)} costs as much within {TIE:.0%} "
    said += f"({one.cost:,.1f} against {chosen.cost:,.1f} entries a second, estimated)"
    better, worse = advantages(one, chosen), drawbacks(one, chosen)
    if better:
        said += f" and has {_listed(better)}"
    if worse:
        said += f"{', but' if better else ' and has'} {_listed(worse)}"
    if not better and not worse:
        said += ", and differs in nothing else that was priced"
    return said + "."


def _longer(chosen: Evaluation, others: Sequence[Alternative]) -> str:
    """Describe the partitions that a longer step of the same scheme would need."""
    size_ms = _size_ms(chosen.plan)
    same: dict[int, Alternative] = {}
    for one in others:
        if type(one.plan.scheme) is type(chosen.plan.scheme):
            same.setdefault(_size_ms(one.plan), one)
    more = [same[size] for size in sorted(same) if size > size_ms and _needs(same[size].plan) > _needs(chosen.plan)]
    if not size_ms or not more:
        return ""
    said = (
        f"A {format_duration(size_ms)} {_size_word(chosen.plan)} fits {_partitions(chosen)}; "
        f"{format_duration(_size_ms(more[0].plan))} would need {_needs(more[0].plan)}"
    )
    if len(more) > 1:
        said += f", {format_duration(_size_ms(more[-1].plan))} {_needs(more[-1].plan)}"
    return said + _how_known(more[0], more[-1]) + "."


def _one_partition(chosen: Evaluation, others: Sequence[Alternative]) -> str:
    """Describe the best plan that needs a single partition, if the chosen plan needs more."""
    other = next((one for one in others if _needs(one.plan) == 1), None)
    if _needs(chosen.plan) == 1 or other is None:
        return ""
    mean = other.evaluation.hops_mean
    hops = f"{mean:.2f} hops a timer" if mean else "no hops"
    relay = " and a relay to run" if other.evaluation.needs_relay else ""
    topics = plurals.counted(other.topics, "partition topic")
    return f"One partition is enough for {describe(other.plan)}{_how_known(other)}, at {hops}, with {topics}{relay}."


def _how_known(*found: Alternative) -> str:
    every = {one.gaps.known for one in found}
    return f" ({next(known for known in (ESTIMATED, QUICKLY, COUNTED) if known in every)})"


def _cost(
    chosen: Evaluation, others: Sequence[Alternative], told: Sequence[Alternative], constraints: Constraints
) -> str:
    cost = constraints.cost_of(chosen)
    hops = (
        f" ({chosen.hops_mean:.2f} hops a timer, so {chosen.writes_per_timer - 1:.0%} more than without)"
        if chosen.hops_mean
        else ""
    )
    topics = plurals.counted(chosen.partition_topics, "partition topic")
    parts = [f"{cost.written:,.2f} are written{hops}", f"{cost.topics:,.1f} stand for its {topics}"]
    if cost.relay:
        parts.append(f"{cost.relay:,.1f} for the relay")
    said = (
        f"It costs as much as {cost.writes_per_second:,.1f} entries a second: {_listed(parts)} (the planner's own "
        "prices: --topic-cost, --relay-cost)"
    )
    other = next((one for one in others if type(one.plan.scheme) is not type(chosen.plan.scheme)), None)
    if other is not None and other not in told:
        where = partitions_in_words(other.plan.partitions)
        said += f"; the cheapest of another kind, {describe(other.plan)} on {where}, costs {other.cost:,.1f}"
    return said + "."


def volume_of(chosen: Evaluation, room: Room) -> tuple[str, str]:
    """Return (unit, number) of the volume at which a limit is reached; a history below a day has no volume a day."""
    if chosen.history_ms >= DAY_MS:
        return "timers a day", f"{room.timers_per_day:,.0f}"
    within_ms = max(math.ceil(chosen.history_ms / MINUTE_MS), 1) * MINUTE_MS
    return f"timers within {format_duration(within_ms)}", f"{chosen.timers * room.times:,.0f}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(parts[:-1])]), parts[-1]])


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


def _needs(plan: Plan) -> int:
    return plan.own_partitions


def _partitions(evaluation: Evaluation) -> str:
    return partitions_in_words(evaluation.plan.partitions)
