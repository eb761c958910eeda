"""The planner's results in sentences, and as JSON with every number under a name with its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration, rounded_up, spelled
from timewheel.core.gap_law import WATCH_SHARE, describe_span
from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel
from timewheel.core.planfile import dump_plan
from timewheel.core.plurals import counted

from ..choice.choose import Assessed
from ..choice.constraints import GAP_FRACTION, REDELIVERED, SILENCE_SECONDS, TWICE, Room, at_growth
from ..choice.reasons import (
    COUNTED,
    ESTIMATED,
    Alternative,
    Amount,
    alternatives,
    describe,
    front_of_alternatives,
    gaps_of,
    partitions_in_words,
    stays,
)
from ..estimating import Estimated
from ..exact.unload import Redelivery
from ..extrapolation import LEAST_DAYS, MAX_TIMERS, Continued, Days, Trend, trend_of
from ..fleet import Fleet, NativeFit, NativeGaps
from ..history.sampled import sample_note
from ..job import MOSTLY, Hindrance, History, Planned, Prediction
from ..pricing.evaluate import Evaluation, Redelivered, Shadowed
from ..summary.cells import Cells

EDGES_MS = (
    *(0, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS),
    *(days * DAY_MS for days in (1, 2, 5, 10, 20, 30, 60, 90, 180, 365)),
)


def delay_spans(cells: Cells) -> dict[str, float]:
    """Return the timers by round span of delays, such as ``1h to 6h``, from the first with a timer to the last.

    Timers are uniform within a cell, which may lie across a border: numbers are fractional.
    """
    # Both ends of a cell's span are timers of it: n whole milliseconds from the least to the greatest.
    span_ms = cells.delay_max_ms - cells.delay_min_ms + 1
    shares = [np.clip((edge_ms - cells.delay_min_ms) / span_ms, 0.0, 1.0) for edge_ms in EDGES_MS]
    counts = np.diff([*(float((share * cells.count).sum()) for share in shares), float(cells.timers)])
    between = (f"{format_duration(low)} to {format_duration(high)}" for low, high in pairwise(EDGES_MS[1:]))
    names = ["under 1m", *between, "1 year up"]
    used = np.flatnonzero(counts > 0)
    within = slice(used[0], used[-1] + 1) if len(used) else slice(0)
    return dict(zip(names[within], counts[within].tolist(), strict=True))


def reading(cells: Cells) -> str:
    """Describe the history in a sentence that shows a reader whether columns and units were interpreted correctly."""
    first, last = _utc(int(cells.publish_min_ms.min())), _utc(int(cells.publish_max_ms.max()))
    half, most = (rounded_up(delay_quantile_ms(cells, share)) for share in (0.5, 0.99))
    return (
        f"As read: {counted(cells.timers, 'timer')} sent from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC; "
        f"half of the delays are within {half}, 99 % within {most}, "
        f"the longest is {rounded_up(int(cells.delay_max_ms.max()))}."
    )


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def delay_quantile_ms(cells: Cells, share: float) -> int:
    """Return the quantile of delays for a share from 0 to 1; exact to a cell's bucket, 3 to 13 percent."""
    order = np.argsort(cells.delay_max_ms)
    reached = np.cumsum(cells.count[order])
    return int(cells.delay_max_ms[order[min(int(np.searchsorted(reached, share * reached[-1])), len(order) - 1)]])


def gaps(answer: Planned | Estimated, evaluation: Evaluation) -> Amount:
    """Return the gaps of a plan's fullest partition at the planned volume: the figure of every text and table."""
    if not isinstance(answer, Estimated):
        return gaps_of(answer.choice, evaluation)
    if not isinstance(evaluation.plan.scheme, Native):
        return Amount(value=evaluation.peak_gaps_per_partition)
    partitions = evaluation.plan.own_partitions
    is_count = answer.growth == 1 and partitions == 1 and answer.continued.continuation is None
    peak = at_growth(answer.native.peak * answer.keys.fullest(partitions), answer.growth)
    return Amount(value=peak, known=COUNTED if is_count else ESTIMATED)


def peaks_of(planned: Planned) -> tuple[Amount, Amount]:
    """Return the gaps of native delays on one partition, and those of the plan."""
    return gaps(planned, planned.choice.native), gaps(planned, planned.choice.recommended.evaluation)


def describe_band(planned: Planned, plan: Plan, gaps: Amount) -> str:
    """Describe the confidence interval of a plan's peak, in words; empty without an interval."""
    found = planned.traffic.band(plan)
    return "" if found is None else f"between {found.low * gaps.value:,.0f} and {found.high * gaps.value:,.0f}"


def again_of(evaluation: Evaluation, gaps: Amount, counted: Redelivery | None = None) -> Amount:
    """Return the handled messages that an unload at the worst moment delivers again; no other code reads that figure.

    Args:
        evaluation: The plan, at the planned volume.
        gaps: Its gaps.
        counted: The count by a full replay; None: the plan was not replayed in full at this volume.
    """
    if counted is not None:
        return Amount(value=counted.entries, known=COUNTED)
    # A cursor keeps one range more than its limit.
    by_law, beyond = evaluation.redelivered.worst_entries, gaps.value - evaluation.gap_limit_ranges - 1
    if evaluation.redelivered != evaluation.redelivered_as_ranges or gaps.is_least:
        return Amount(value=by_law)
    # While the broker keeps every range nothing comes again; each range beyond has at least one message.
    return Amount(value=0, known=gaps.known) if beyond <= 0 else Amount(value=max(by_law, beyond))


def again(answer: Planned | Estimated, evaluation: Evaluation) -> Amount:
    """Return `again_of` a plan of an answer."""
    counted = None
    if not isinstance(answer, Estimated) and answer.growth == 1:
        predictions = {one.evaluation.plan: one for one in (answer.native, answer.recommended)}
        found = predictions.get(evaluation.plan)
        counted = None if found is None else found.redelivered
    return again_of(evaluation, gaps(answer, evaluation), counted)


def native_of(answer: Planned | Estimated) -> Assessed:
    """Assess native delays on one partition by the figure that is shown for them."""
    choice, plan = answer.choice, answer.choice.native.plan
    found, broken = Assessed.of(choice.native, answer.constraints), choice.broken_by(plan)
    if broken is None and isinstance(answer, Estimated):
        by_law = [name for name in found.broken if name == REDELIVERED]
        broken = (*choice.allowance.broken_by(plan, math.ceil(answer.native.peak)), *by_law)
    return found.judged(broken)


def alternatives_of(answer: Planned | Estimated) -> tuple[Alternative, ...]:
    """Return all priced candidates as far as they are known."""
    found = alternatives(answer.choice)
    if not isinstance(answer, Estimated):
        return found
    return tuple(replace(one, gaps=gaps(answer, one.evaluation)) for one in found)


def front(answer: Planned | Estimated) -> tuple[Alternative, ...]:
    """Return the alternatives that no other beats in both gaps and cost, the cheapest first."""
    return front_of_alternatives(alternatives_of(answer), answer.plan)


def rooms_of(answer: Planned | Estimated) -> tuple[Room, ...]:
    """Return the volumes at which limits are reached, from the figure that is shown for the plan."""
    chosen = answer.choice.recommended.evaluation
    if not isinstance(answer, Estimated) or not isinstance(chosen.plan.scheme, Native):
        return answer.choice.rooms
    peak = math.ceil(answer.native.peak * answer.keys.fullest(chosen.plan.own_partitions))
    limits = answer.choice.allowance.constraints_for(chosen.plan)
    return limits.rooms(chosen, answer.profile, peak, answer.growth)


REPORTED_REPEATS = 0.01


def describe_copies(planned: Planned) -> str:
    """Describe the repeated rows in a sentence; empty if there are few."""
    timers = planned.history.cells(planned.topic).timers
    if planned.repeated < max(REPORTED_REPEATS * timers, 1):
        return ""
    return (
        f"{planned.repeated:,} of {counted(timers, 'row')} ({planned.repeated / timers:.0%}) "
        f"{'repeats' if planned.repeated == 1 else 'repeat'} another one in send time, due time and key. "
        "If they are copies, the volume, the costs and perhaps the gaps are too high: name the column of timer ids "
        "(--timer-id), or remove the copies. If they are separate timers, nothing is wrong."
    )


def trend_in(planned: Planned) -> Trend | None:
    """Return the trend of the history alone; None: it is too short, or a sample."""
    # A sample has only the messages that the broker still stores: of older days only timers of long delay, which looks
    # like growth.
    if sample_note(planned.history.source) is not None:
        return None
    return trend_of(planned.history.cells(planned.topic))


def reached_on(planned: Planned, room: Room, trend: Trend) -> str:
    """Return the day on which a limit is reached, such as ``2027-03-14``; empty: not within ten years."""
    at_ms = trend.reached_ms(room.times * planned.growth)
    return "" if at_ms is None else f"{_utc(at_ms):%Y-%m-%d}"


def describe_growth(planned: Planned) -> str:
    """Describe when the nearest limit is reached, with the evidence for the growth; empty: unknown."""
    trend = trend_in(planned)
    if trend is None or not planned.choice.rooms:
        return ""
    if not trend.weekly_growth:
        return (
            f"No growth is seen in this history: of its {trend.weeks} full weeks the last has "
            f"{trend.last_timers:,.0f} timers, the first {trend.first_timers:,.0f} (on the same days of the week)."
        )
    room = planned.choice.rooms[0]
    basis = (
        f"This history grows by {trend.weekly_growth:.1%} a week (the last of {trend.weeks} full weeks against the "
        "first)"
    )
    day = reached_on(planned, room, trend)
    if not day:
        return f"{basis}: at this growth no limit is reached within ten years."
    if room.times * planned.growth <= 1:
        return f"{basis}, and by the estimate it has reached {room.limit}."
    return f"{basis}: at this growth {room.limit} is reached about {day} (estimated)."


def growth_facts(planned: Planned) -> dict[str, Any] | None:
    trend = trend_in(planned)
    if trend is None:
        return None
    return {
        "full_weeks": trend.weeks,
        "first_week_timers": trend.first_timers,
        "last_week_timers": trend.last_timers,
        "weekly_growth": trend.weekly_growth,
        "limits_reached_on": {room.limit: reached_on(planned, room, trend) or None for room in planned.choice.rooms},
    }


REPORTED_SHARE = 0.1  # least share of all timers for a notice, or
REPORTED_TIMES = 1.25  # least ratio of the fullest partition to its even share


def describe_keys(planned: Planned | Estimated) -> str:
    """Describe the heaviest key in one or two sentences; empty if no key matters."""
    heaviest, partitions = planned.keys.heaviest, planned.plan.own_partitions
    if heaviest is None:
        return ""
    key, share = heaviest
    fullest = planned.keys.fullest(partitions)
    if share < REPORTED_SHARE and fullest * partitions < REPORTED_TIMES:
        return ""
    said = f"Key {key!r} has {share:.0%} of all timers, and a key's timers are all in one partition"
    if partitions > 1:
        said += f": the fullest of {partitions} gets {fullest:.0%} of them, not {1 / partitions:.0%}"
    alone = gaps(planned, planned.choice.native).value * share
    if alone > planned.choice.allowance.gaps(planned.choice.native.plan):
        said += (
            ". No number of partitions makes native delays right for it: "
            f"that key alone leaves about {alone:,.0f} gaps (estimated)"
        )
    return said + "."


def key_facts(planned: Planned | Estimated) -> dict[str, Any]:
    heaviest = planned.keys.heaviest
    return {
        "heaviest_key": None if heaviest is None else heaviest[0],
        "heaviest_share": None if heaviest is None else heaviest[1],
        "fullest_partition_share": planned.keys.fullest(planned.plan.own_partitions),
    }


def describe_traffic(traffic: Continued) -> list[str]:
    """Describe a history that is too short, and its continuation; empty if it is long enough."""
    found = traffic.warm_up
    if found is None:
        return []
    said = describe_span(found.history_ms, found.warm_up_ms)
    if traffic.continuation is None:
        return [f"{said} {_alone(traffic)}"]
    further, days = len(traffic.continuation.sources), len(traffic.continuation.days.drawn)
    how = "a Monday for a Monday" if traffic.continuation.days.by_weekday else "in random order"
    said += (
        f" So it was continued by {counted(further, 'day')}, drawn from {days} of its own ({how}); a history of "
        f"{rounded_up(found.warm_up_ms)} would be long enough, and --as-is plans for the history alone."
    )
    left_out = traffic.continuation.days
    sentences = [said]
    if left_out.campaigns:
        named = ", ".join(f"{_utc(at_ms):%Y-%m-%d}" for at_ms in _campaign_days_ms(left_out))
        sentences.append(
            f"Not continued: the campaign of {named}, when far more was sent than in the same hours of other days. If "
            "campaigns recur, give a history with several of them."
        )
    if left_out.weekly_growth:
        sentences.append(
            f"Its volume changes by {left_out.weekly_growth:+.0%} a week. It was continued like its last week; "
            "--growth plans for a larger volume."
        )
    return sentences


def describe_native(planned: Planned) -> list[str]:
    """Describe the gaps of native delays in the history alone and continued; empty if both are the same."""
    continued, confidence = planned.traffic.continuation, planned.traffic.confidence
    if continued is None or planned.native_alone is None:
        return []
    gaps = planned.native.replay.peak_of_total.gap_count
    said = (
        f"Native delays on one partition leave at most {counted(planned.native_alone.peak_of_total.gap_count, 'gap')} "
        f"in the history alone, and {gaps:,} when it is continued (both counted)"
    )
    if confidence is not None:
        low, high = confidence.low * gaps, confidence.high * gaps
        said += f": between {low:,.0f} and {high:,.0f} with 95 % confidence. "
        own = describe_band(planned, planned.plan, peaks_of(planned)[1])
        if own and not stays(planned.plan):
            return [f"{said}This plan leaves {own} in a partition, and was chosen for the upper end."]
        return [f"{said}The plan was chosen for the upper end."]
    if gaps and len(continued.days.drawn) < LEAST_DAYS:
        return [f"{said}; no confidence interval from fewer than {LEAST_DAYS} days."]
    return [said + "."]


def extrapolation_facts(traffic: Continued) -> dict[str, Any] | None:
    """Return the steady state as JSON; None: the history is long enough."""
    found, continued, confidence = traffic.warm_up, traffic.continuation, traffic.confidence
    if found is None:
        return None
    days = None if continued is None else continued.days
    return {
        "history_ms": found.history_ms,
        "warm_up_ms": found.warm_up_ms,
        "estimated_pending": found.pending if found.has_rate else None,
        "estimated_native_gaps": found.gaps if found.has_rate else None,
        "continued_days": 0 if continued is None else len(continued.sources),
        "not_continued": traffic.unfit or None,
        "days_drawn_from": 0 if days is None else len(days.drawn),
        "campaign_days_ms": [] if days is None else _campaign_days_ms(days),
        "weekly_growth": 0.0 if days is None else days.weekly_growth,
        "native_gaps_times_low": None if confidence is None else confidence.low,
        "native_gaps_times_high": None if confidence is None else confidence.high,
    }


def _alone(traffic: Continued) -> str:
    found = traffic.warm_up
    assert found is not None
    said = "All figures here are of the history alone"
    if found.has_rate:
        said = (
            f"If timers go on being sent like this, about {found.pending:,.0f} will wait, and native delays on one "
            f"partition will leave about {counted(round(found.gaps), 'gap')} (estimated). {said}"
        )
    return said + _UNFIT[traffic.unfit]


_UNFIT = {
    "burst": ". Plan from a history of a day or more; best, longer than its delays.",
    "days": ": its delays are too long to continue it. Plan from a longer history.",
    "timers": f": continued it would have more than {MAX_TIMERS:,} timers. Plan from a longer history, or from every "
    "tenth timer with --growth 10.",
    "as_is": " (--as-is).",
    "": " (--as-is).",
}


def _campaign_days_ms(days: Days) -> list[int]:
    # The middle: days are counted back from the last send, and usually begin on the previous calendar day.
    return [days.begins_ms[day] + DAY_MS // 2 for day in days.campaigns]


MONTH_DAYS = 365.25 / 12
BYTES_PER_GB = 1e9
AMOUNTS = ("million_writes", "gb_month", "topic_month", "relay_month")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A user's prices; None: unknown, and left out. Prices do not affect the choice of a plan.

    Args:
        currency: Currency of all prices, as written after an amount.
        million_writes: Price of a million entries written; each entry counts once for any number of copies.
        gb_month: Price of 10^9 bytes on disk for a month, for each copy.
        topic_month: Price of a partition topic for a month.
        relay_month: Price of a running relay for a month, for plans that need a relay.
    """

    currency: str = "EUR"
    million_writes: float | None = None
    gb_month: float | None = None
    topic_month: float | None = None
    relay_month: float | None = None

    def __post_init__(self) -> None:
        for name in AMOUNTS:
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise ValueError(f"{name} = {price}: 0 or more, or None where it is not known")

    @property
    def is_given(self) -> bool:
        return any(getattr(self, name) is not None for name in AMOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The monthly cost of a plan, at the mean volume of the history."""

    currency: str  # currency of the amounts
    parts: tuple[tuple[str, float], ...]  # (item, amount), for every known price

    @property
    def total(self) -> float:
        return math.fsum(amount for _, amount in self.parts)

    def said(self, amount: float) -> str:
        return f"{amount:,.2f} {self.currency}"


def monthly(evaluation: Evaluation, prices: Prices | None) -> Bill | None:
    """Compute the monthly cost of a plan; None: no price is known."""
    # The mean volume is taken as that of a month, the peak of bytes on disk as that of the whole month.
    if prices is None or not prices.is_given:
        return None
    entries = evaluation.timers_per_day * evaluation.writes_per_timer * MONTH_DAYS
    amounts: tuple[tuple[str, float | None, float], ...] = (
        ("entries written", prices.million_writes, entries / 1e6),
        ("bytes on disk", prices.gb_month, evaluation.storage_bytes / BYTES_PER_GB),
        ("partition topics", prices.topic_month, evaluation.partition_topics),
        ("relay", prices.relay_month, float(evaluation.needs_relay)),
    )
    parts = tuple((name, price * number) for name, price, number in amounts if price is not None)
    return Bill(currency=prices.currency, parts=parts)


WITHOUT_SLIDERS = (
    "For a shadow there are no sliders: its moves depend on the window in a way that sliders do not compute. Plan "
    "again with --growth, --gap-fraction or --topic-cost."
)


def describe_limit(planned: Planned) -> str:
    """Describe the treatment of delays longer than those of the history."""
    longest_ms = int(planned.history.cells(planned.topic).delay_max_ms.max())
    limit = format_duration(planned.plan.max_delay_ms)
    what = f"of more than {limit} will be refused"
    if planned.plan.intake:
        what = f"of more than {limit} stay in the due topic and make gaps there"
    return f"Sends {what} (max_delay, --max-delay); the longest of this history is of {rounded_up(longest_ms)}."


_LEFT_OUT = ("plan", "gaps_at_ms", "gaps")  # the curve is arrays of thousands of numbers, for charts


def planned_facts(planned: Planned, prices: Prices | None = None) -> dict[str, Any]:
    """Return the output of `timewheel plan` as JSON, without the curves.

    Args:
        planned: The result of the planner.
        prices: Prices for a month's cost; None: the cost is left out.
    """
    choice, alone, shared = planned.choice, planned.native_alone, _answer_facts(planned)
    return {
        "history": history_facts(planned.history),
        **shared,
        "gap_room": planned.gap_room,
        "verdict": verdict(planned),
        "recommended": {**shared["recommended"], "on_this_traffic": prediction_facts(planned.recommended)},
        "native": {**shared["native"], "on_this_traffic": prediction_facts(planned.native)},
        "native_alone": None if alone is None else {"peak_gaps": asdict(alone.peak_of_total)},
        "steady_state": extrapolation_facts(planned.traffic),
        "copies": {"repeated_rows": planned.repeated},
        "article_rules": {name: assessed_facts(one, planned) for name, one in choice.article},
        "growth_seen": growth_facts(planned),
        "ties": [alternative_facts(one, planned) for one in choice.ties],
        "money_a_month": None
        if prices is None or not prices.is_given
        else {
            "prices": asdict(prices),
            "native": _bill(choice.native, prices),
            "recommended": _bill(choice.recommended.evaluation, prices),
        },
    }


def _answer_facts(answer: Planned | Estimated) -> dict[str, Any]:
    choice = answer.choice
    return {
        "topic": answer.topic,
        "profile": asdict(answer.profile),
        "constraints": asdict(answer.constraints),
        "growth": answer.growth,
        "keeps_limits": answer.keeps_limits,
        "is_short_of_room": answer.is_short_of_room,
        "plan": dump_plan(answer.plan),
        "consequence": consequence(answer),
        "plan_in_words": in_words(answer.plan),
        "reasons": list(choice.reasons),
        "recommended": assessed_facts(choice.recommended, answer),
        "native": assessed_facts(native_of(answer), answer),
        "keys": key_facts(answer),
        "candidate_count": choice.considered,
        "priced_count": len(choice.candidates),
        "front": [alternative_facts(one, answer) for one in front(answer)],
        "rooms": [asdict(room) for room in rooms_of(answer)],
    }


def history_facts(history: History) -> dict[str, Any]:
    statistic = history.statistic
    return {
        "source": history.source,
        "rows": statistic.rows,
        "timers": statistic.timers,
        "timers_by_topic": {topic: cells.timers for topic, cells in statistic.cells.items()},
        "quarantined_by_reason": dict(statistic.quarantined),
        "is_enough": not statistic.too_few,
        "remarked_by_remark": dict(statistic.remarked),
        "quarantine_samples": {reason: list(texts) for reason, texts in statistic.samples.items()},
        "first_publish_ms": statistic.first_publish_ms,
        "last_publish_ms": statistic.last_publish_ms,
        "cell_count": len(statistic),
        "cell_slot_ms": statistic.slot_ms,
    }


def prediction_facts(prediction: Prediction) -> dict[str, Any]:
    replay, interval = prediction.replay, prediction.traffic.band(prediction.evaluation.plan)
    return {
        "predicted": evaluation_facts(prediction.evaluation),
        "counted": {
            **{name: getattr(replay, name) for name in ("entries", "hop_count", "hop_count_max")},
            "peak_gaps": asdict(replay.peak_of_total),
            "peak_gaps_per_partition": asdict(replay.peak_per_partition),
            "redelivered": {name: asdict(found) for name, found in replay.redelivered.items()},
            "keyless_at_random": replay.at_random,
        },
        "confidence_interval": None if interval is None else asdict(interval),
        "peak_gaps_error": prediction.peak_gaps_error,
    }


def _bill(evaluation: Evaluation, prices: Prices) -> dict[str, float]:
    bill = monthly(evaluation, prices)
    parts = [] if bill is None else [*bill.parts, ("total", bill.total)]
    return {name.replace(" ", "_"): amount for name, amount in parts}


def assessed_facts(one: Assessed, answer: Planned | Estimated) -> dict[str, Any]:
    """Return a plan's figures: ``gaps`` and ``delivered_again`` as they are told, all others estimated."""
    return {
        **evaluation_facts(one.evaluation),
        "gaps": asdict(gaps(answer, one.evaluation)),
        "allowed_gaps": answer.choice.allowance.gaps(one.evaluation.plan),
        "delivered_again": asdict(again(answer, one.evaluation)),
        "cost_writes_per_second": one.cost.writes_per_second,
        "entries_written_per_second": one.cost.written,
        "cost_of_topics_writes_per_second": one.cost.topics,
        "cost_of_relay_writes_per_second": one.cost.relay,
        "broken_constraints": list(one.broken),
    }


def alternative_facts(one: Alternative, answer: Planned | Estimated) -> dict[str, Any]:
    return {
        "scheme": describe(one.plan),
        "partitions": one.plan.partitions,
        "gaps": asdict(one.gaps),
        "allowed_gaps": answer.choice.allowance.gaps(one.plan),
        "cost_writes_per_second": one.cost,
        "hops_mean": one.evaluation.hops_mean,
        "partition_topics": one.topics,
        "broken_constraints": list(one.broken),
    }


def evaluation_facts(evaluation: Evaluation) -> dict[str, Any]:
    names = [field.name for field in fields(evaluation) if field.name not in _LEFT_OUT]
    values = {
        name: getattr(evaluation, name) for name in (*names, "gap_fraction", "timers_per_day", "writes_per_timer")
    }
    return {
        "scheme": describe(evaluation.plan),
        "partitions": evaluation.plan.partitions,
        **{name: asdict(one) if isinstance(one, Redelivered | Shadowed) else one for name, one in values.items()},
    }


SETTING = "managedLedgerMaxUnackedRangesToPersist; gap_limit_ranges in a file for --profile"


def consequence(answer: Planned | Estimated) -> str:
    """Describe the effect of an unload today, and with the plan."""
    now, then = again(answer, answer.choice.native), again(answer, answer.choice.recommended.evaluation)
    leaves, limit = gaps(answer, answer.choice.native).said("gap"), answer.profile.gap_limit_ranges
    at = " today" if answer.growth == 1 else f" at {answer.growth:g} times this volume"
    again_now = f"up to {counted(round(now.value), 'handled message')}" if round(now.value) else "no handled message"
    with_plan = "" if stays(answer.plan) else f"; with this plan {then.value:,.0f} ({then.known})"
    said = f"An unload{at} (a broker's restart, load balancing) delivers {again_now} again ({now.known}){with_plan}."
    breaks = "" if round(now.value) else _native_breaks(answer)
    if REDELIVERED in native_of(answer).broken:
        breaks = f". {_bitmaps(answer)}"
    return f"{said} Native delays on one partition leave {leaves} in a cursor, and the broker keeps {limit:,}{breaks}."


def _native_breaks(answer: Planned | Estimated) -> str:
    """Name the limits that native delays break although the broker keeps their gaps; empty: none."""
    found, said = native_of(answer), ""
    if GAP_FRACTION in found.broken:
        said += f"; at most {answer.constraints.gap_fraction:.0%} of them were allowed"
    if SILENCE_SECONDS in found.broken:
        said += f"; afterwards a partition is silent for {found.evaluation.silence_seconds:,.0f} s (estimated)"
    return said


def _bitmaps(answer: Planned | Estimated) -> str:
    profile, most = answer.profile, answer.profile.metadata_store_limit_ranges
    return (
        f"This broker writes bitmaps: of a cursor with more than {counted(most, 'gap')} it keeps "
        f"whole ledgers, the oldest first, until these have {profile.gap_limit_ranges:,} handled messages"
    )


_UNITS = ((DAY_MS, "day"), (HOUR_MS, "hour"), (MINUTE_MS, "minute"), (1_000, "second"))


def _length(duration_ms: int) -> str:
    """Return a duration in words, such as ``20 days``."""
    fits = (counted(duration_ms // ms, unit) for ms, unit in _UNITS if duration_ms % ms == 0)
    return next(fits, format_duration(duration_ms))


def in_words(plan: Plan) -> str:
    """Describe where timers wait under a plan."""
    own = plan.own_partitions
    topic = "your topic" if own == 1 else f"your topic of {own} partitions"
    moved = "so that no gaps arise; a relay moves them on"
    who = " The relay is a shadow's: producers and consumers stay as they are." if plan.intake else ""
    match plan.scheme:
        case Native():
            return f"Timers wait in {topic}, under the broker's own delay, as today."
        case Calendar(interval_ms=interval_ms):
            parts = "" if own == 1 else f" of {own} partitions"
            return (
                f"For every {_length(interval_ms)} there is a topic{parts}; a timer waits in that of its due time, "
                "under the broker's own delay. No relay runs."
            )
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms):
            each, window = [_length(tier_ms) for tier_ms in reversed(tiers_ms)], _length(window_ms)
            topics = f"a topic of {each[0]}" if len(each) == 1 else f"topics of {listed(each)}"
            return (
                f"Timers due in more than {window} wait in {topics}, once or more, where all stay equally long, "
                f"{moved}. For the last {window} they wait in {topic}, under the broker's own delay.{who}"
            )
        case Wheel(rings=rings):
            slots = [f"{ring.slots} topics of {_length(ring.slot_ms)}" for ring in rings]
            return (
                f"Timers wait in {listed(slots)}, each for the timers that are due in its time, {moved}. For the last "
                f"stretch they wait in {topic}, under the broker's own delay.{who}"
            )


def next_steps(
    plan: Plan, plan_file: str, reached_by: Sequence[str] = (), partitions: int | None = None
) -> list[tuple[str, list[str]]]:
    """Return what to do next with a plan's file: at most three pairs of a purpose and the words of a command.

    Args:
        plan: The plan.
        plan_file: Its file.
        reached_by: Options by which commands reach the cluster.
        partitions: Partitions that the due topic has; None: unknown.
    """
    if plan.intake:
        start = ["shadow", "start", plan_file]
        return [
            ("See what it would do", [*start, "--dry-run", *reached_by]),
            ("Start the shadow", [*start, *reached_by]),
            ("Run its movers and relays", ["shadow", "run", plan_file, *reached_by]),
        ]
    if isinstance(plan.scheme, Native) and plan.own_partitions == (partitions or 1):
        return [
            ("See the gaps of today", ["gaps", plan.due_topic, *reached_by]),
            ("Check brokers, topics and clients", ["doctor", plan_file, *reached_by]),
        ]
    grow = partitions is not None and plan.own_partitions > partitions
    ensure = ["topics", "ensure", plan_file, *(["--grow"] if grow else [])]
    return [
        ("See which topics it needs", [*ensure, "--dry-run", *reached_by]),
        ("Make them", [*ensure, *reached_by]),
        ("Check brokers, topics and clients", ["doctor", plan_file, *reached_by]),
    ]


def listed(words: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def verdict(planned: Planned) -> str:
    """State the recommendation, with the gaps that decide: counted by the exact replay, and if volume grows, from that.

    If no plan keeps the gap limit, the verdict names the cause and the remedies.
    """
    said = planned.history.statistic.too_few + _recommendation(planned) + _hindrance(planned)
    return said + _room(planned, planned.counted_gaps) if planned.keeps_limits else said


def _room(planned: Planned | Estimated, gaps: float) -> str:
    """Describe the remedies of little room, with a space before each sentence; empty: there is room."""
    said = ""
    if gaps > WATCH_SHARE * planned.profile.gap_limit_ranges + 1e-6:
        said += (
            f" That fits the limit, but is above the {WATCH_SHARE:.0%} of it from which gaps are a warning: for more "
            f"room plan again with --gap-fraction {WATCH_SHARE:g}."
        )
    if planned.is_short_of_room:
        said += (
            f" This history is SHORT, and shows one burst: {planned.gap_room:.2g} times as many timers at a time, or a "
            f"second burst while the first waits, reach the limit. Plan again with --growth {TWICE:g} to have room, or "
            "from a longer history."
        )
    return said


def _hindrance(planned: Planned) -> str:
    """Describe the cause that no plan keeps the gap limit, and the remedies; empty: this plan keeps it."""
    found = planned.hindrance
    if found is None:
        return ""
    if GAP_FRACTION not in planned.choice.recommended.broken:
        return f" {_bitmaps(planned)}, and no plan tried stays within that. {_helps(planned, found)}"
    said = f" At most {counted(found.allowed, 'gap goes', 'gaps go')} with the given limits"
    if planned.growth != 1:
        peak = planned.recommended.replay.peak_per_partition.gap_count
        said += f" ({counted(peak, 'was', 'were')} counted at this volume)"
    said += ", and no plan tried keeps that"
    if found.never_held_gaps > found.allowed and planned.plan.own_partitions == 1:
        timers = counted(found.never_held_timers, "timer")
        said += (
            f": none holds back {timers} due within {spelled(found.never_held_ms)} of being sent, which leave "
            f"{counted(found.never_held_gaps, 'gap')} by themselves (counted)"
        )
    elif planned.plan.intake:
        said += (
            ": while timers wait that are due soon, originals between them that a shadow has moved and acknowledged "
            "make gaps"
        )
    said += (
        f". This plan leaves more for {spelled(found.lasts_ms)} at most, and for {MOSTLY:.0%} of the time "
        f"{counted(found.mostly_gaps, 'gap')} at most (counted)"
    )
    return f"{said}. {_helps(planned, found)}"


def _helps(planned: Planned, found: Hindrance) -> str:
    limit = planned.profile.gap_limit_ranges
    helps = [f"a broker that keeps {found.gap_limit_ranges:,} ranges where this one keeps {limit:,} ({SETTING})"]
    if found.partitions is not None:
        # A sample's topic is not partitioned, regardless of the options, and cannot become so.
        is_sample = sample_note(planned.history.source) is not None
        how = "plan again with --due-topic and its name" if is_sample else "plan without --unpartitioned"
        helps.insert(0, f"a new due topic with {partitions_in_words(found.partitions)} ({how})")
    if found.gap_fraction is not None:
        helps.append(f"this plan, with less room (--gap-fraction {found.gap_fraction:g})")
    return f"What helps: {', or '.join(helps)}."


def _recommendation(planned: Planned) -> str:
    plan, limit = planned.plan, planned.profile.gap_limit_ranges
    _, then = peaks_of(planned)
    number, how = counted(round(then.value), "gap"), then.known
    if planned.growth == 1:
        continued = "" if planned.traffic.continuation is None else ", continued,"
        when, leaves = "", f"this history{continued} leaves"
    else:
        when, leaves = f" for {planned.growth:g} times this volume", "it would leave"
        how = f"estimated from {planned.recommended.replay.peak_per_partition.gap_count:,} that were counted"
    broken = "" if planned.keeps_limits else " (NOT within every limit)"
    on = partitions_in_words(plan.partitions)
    said, where = f"Use {describe(plan)} on {on}", " in a partition"
    if stays(plan):
        said, where = f"Stay with native delays on {on}", ""
    return f"{said}{when}{broken}: {leaves} at most {number}{where} ({how}), of {limit:,} that the broker keeps."


SAID = {
    NativeFit.FINE: "stays as it is",
    NativeFit.SHORT: "history too short to stay",
    NativeFit.OVER: "too many gaps",
    NativeFit.OTHER: "another limit is broken",
}


def fleet_verdict(fleet: Fleet) -> str:
    """State the recommendation in one or two sentences."""
    topics = len(fleet.topics)
    stay = sum(one.native_fit == NativeFit.FINE for one in fleet.topics)
    moving = [planned for planned in fleet.planned.values() if not stays(planned.plan)]
    said = f"Of {counted(topics, 'topic')} {stay:,} can stay on native delays with one partition"
    if fleet.planned:
        said += f"; {len(fleet.planned):,} were planned for, and of these {len(moving):,} change"
    broken = sum(not planned.keeps_limits for planned in fleet.planned.values())
    if broken:
        said += f" ({broken:,} of them keep NOT every limit)"
    if fleet.waiting:
        said += f". {len(fleet.waiting):,} more need a plan and have none yet"
    if fleet.unfit:
        topic, reason = next(iter(fleet.unfit.items()))
        said += f". No plan can name {counted(len(fleet.unfit), 'topic')}, such as {topic!r} ({reason})"
    return f"{fleet.history.statistic.too_few}{said}."


def fleet_again(one: NativeGaps) -> Amount:
    """Return `again_of` native delays of a topic."""
    return again_of(one.evaluation, Amount(value=one.peak.gap_count, known=COUNTED))


def fleet_facts(fleet: Fleet, files: Mapping[str, str], prices: Prices | None = None) -> dict[str, Any]:
    return {
        "history": history_facts(fleet.history),
        "profile": asdict(fleet.profile),
        "constraints": asdict(fleet.constraints),
        "growth": fleet.growth,
        "keeps_limits": fleet.keeps_limits,
        "verdict": fleet_verdict(fleet),
        "topics": [
            {
                "topic": one.topic,
                "native_fit": one.native_fit.value,
                "timers": one.timers,
                "timers_per_day": one.timers_per_day,
                "native_gaps_counted": one.peak.gap_count,
                "native_gaps_at_most": one.peak.gap_count_limit,
                "gap_limit_ranges": one.evaluation.gap_limit_ranges,
                "native_delivered_again": asdict(fleet_again(one)),
                "plan_file": files.get(one.topic),
            }
            for one in fleet.topics
        ],
        "planned": {topic: planned_facts(planned, prices) for topic, planned in fleet.planned.items()},
        "waiting": list(fleet.waiting),
        "unfit": dict(fleet.unfit),
    }


def estimated_verdict(found: Estimated) -> str:
    """State the recommendation, its certainty, and the remedies if it has little room."""
    said = found.survey.statistic.too_few + _estimated_recommendation(found)
    return said + _room(found, gaps(found, found.choice.recommended.evaluation).value) if found.keeps_limits else said


def _estimated_recommendation(found: Estimated) -> str:
    plan, limit = found.plan, found.profile.gap_limit_ranges
    when = "" if found.growth == 1 else f" for {found.growth:g} times this volume"
    if stays(plan):
        broken = "" if found.keeps_limits else " (NOT within every limit)"
        said = f"Stay with native delays on {partitions_in_words(plan.partitions)}{when}{broken}"
        return f"{said}: {_native(found)}, of {limit:,} that the broker keeps."
    chosen = found.choice.recommended
    said = (
        f"{describe(plan)} on {partitions_in_words(plan.partitions)}{when}: about "
        f"{counted(round(gaps(found, chosen.evaluation).value), 'gap')} in a partition (estimated), of {limit:,} that "
        f"the broker keeps; {_native(found)}."
    )
    if not found.is_certain:
        return (
            "NOT DECIDED. Neighbouring delays depend on each other here: native gaps are "
            f"{found.native.ratio:.2g} times what independent ones would leave, and estimates of other plans may be as "
            f"wrong. Count them: timewheel plan with the history itself. By the estimates it would be {said}"
        )
    return f"Use {said}" if not chosen.broken else f"Use (NOT within every limit) {said}"


def _native(found: Estimated) -> str:
    native = found.native
    how = f"counted, at moments {rounded_up(native.apart_ms)} apart"
    if found.growth == 1 and found.continued.continuation is None:
        return f"native delays on one partition leave at most {counted(native.counted, 'gap')} ({how})"
    peak = counted(round(gaps(found, found.choice.native).value), "gap")
    return (
        f"native delays on one partition leave about {peak} (estimated; {native.counted:,} in the history alone, {how})"
    )


def estimated_facts(found: Estimated) -> dict[str, Any]:
    """Return the estimate as JSON, without the curves."""
    statistic = found.survey.statistic
    return {
        "survey": {
            "timers": statistic.timers,
            "topics": len(statistic.cells),
            "days": len(found.survey.days),
            "first_publish_ms": statistic.first_publish_ms,
            "last_publish_ms": statistic.last_publish_ms,
            "quarantined": dict(statistic.quarantined),
        },
        **_answer_facts(found),
        "verdict": estimated_verdict(found),
        "is_certain": found.is_certain,
        "native_gaps": asdict(found.native),
        "steady_state": extrapolation_facts(found.continued),
    }
