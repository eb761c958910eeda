"""The planner's results as tables of texts: the terminal and the report show the same tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from timewheel._report.page import Table
from timewheel.core.durations import DAY_MS, MINUTE_MS, format_duration, spelled
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.steps import steps

from ..choice.candidates import thinned
from ..choice.constraints import Constraints, at_growth
from ..choice.reasons import COUNTED, ESTIMATED, TIE, Amount, describe, partitions_in_words, volume_of
from ..estimating import Estimated
from ..fleet import Fleet, NativeGaps
from ..history.read import REASONS, REMARKS
from ..job import Planned, Prediction
from ..pricing.evaluate import Evaluation
from ..summary.statistic import Statistic
from . import facts
from .facts import Prices

MAX_FRONT_ROWS = 12
"""More alternatives do not help; they are thinned evenly, and the cheapest and the one with fewest gaps stay."""
MAX_STEP_ROWS = 12
TIED = f"costs as much within {TIE:.0%}"  # label beside the name of a tied plan
_CONSTRAINTS = {
    "gap_fraction": "gaps",
    "redelivered": "redelivery",
    "silence_seconds": "silence",
    "hops_mean": "hops",
    "hops_max": "hops",
    "partition_topics": "topics",
    "lateness_seconds": "lateness",
    "storage_bytes": "storage",
    "cursor_frame": "cursor too large",
}


def _table(caption: str, columns: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Build a table; bars separate the names of its columns."""
    return Table(caption=caption, header=tuple(columns.split(" | ")), rows=list(rows))


def plan_label(plan: Plan) -> str:
    return f"{describe(plan)}, {counted(plan.partitions, 'partition') if plan.partitions else 'no partitions'}"


def prices(constraints: Constraints) -> str:
    return (
        f"entries written a second, and the planner's own prices: {constraints.topic_writes_per_second:g} for each "
        f"partition topic and {constraints.relay_writes_per_second:g} for a relay (--topic-cost, --relay-cost)."
    )


GAPS_AND_OTHERS = "Gaps: the most in any partition. All other figures are estimated"


def plans_table(planned: Planned | Estimated) -> Table:
    chosen = planned.choice.recommended
    rows = [
        _row_of(planned, "today: native", planned.choice.native, facts.native_of(planned).broken),
        _row_of(planned, "recommended", chosen.evaluation, chosen.broken),
    ]
    return _table(f"Plans. {GAPS_AND_OTHERS}{at_volume(planned.growth)}", _PLAN_COLUMNS, rows)


def rules_table(planned: Planned) -> Table:
    plans = [("recommended", planned.choice.recommended), *planned.choice.article]
    rows = [_row_of(planned, name, one.evaluation, one.broken) for name, one in plans]
    caption = f"Simple rules for comparison, each with the partitions that it is estimated to need. {GAPS_AND_OTHERS}"
    return _table(caption + at_volume(planned.growth), _PLAN_COLUMNS, rows)


def evaluations_table(
    evaluations: Mapping[str, Evaluation], growth: float = 1.0, replayed: Mapping[str, Prediction] | None = None
) -> Table:
    rows = []
    for name, one in evaluations.items():
        prediction = None if replayed is None else replayed[name]
        figure = replayed_gaps(one, growth, prediction)
        again = facts.again_of(one, figure, None if prediction is None else prediction.redelivered)
        rows.append(_plan_row(name, one, figure, again, ["gap_fraction"] * (figure.value > one.gap_limit_ranges)))
    return _table(f"Plans. {GAPS_AND_OTHERS}{at_volume(growth)}", _PLAN_COLUMNS, rows)


def replayed_gaps(evaluation: Evaluation, growth: float, prediction: Prediction | None) -> Amount:
    """Return the gaps of a plan's fullest partition at a volume; without a prediction those of its estimate."""
    if prediction is None:
        return Amount(value=evaluation.peak_gaps_per_partition)
    count = prediction.replay.peak_per_partition.gap_count
    return Amount(value=at_growth(count, growth), known=COUNTED if growth == 1 else ESTIMATED)


def front_table(planned: Planned | Estimated) -> Table:
    best, tied = facts.front(planned), {one.plan.scheme for one in planned.choice.ties}
    rows = []
    for one in thinned(best, MAX_FRONT_ROWS):
        name, cost = plan_label(one.plan) + f" ({TIED})" * (one.plan.scheme in tied), f"{one.cost:,.1f}"
        rows.append((name, cost, str(one.gaps), one.gaps.known, f"{one.evaluation.hops_mean:.2f}"))
    shown = f" ({len(rows)} shown)" if len(rows) < len(best) else ""
    return _table(
        f"Alternatives: of {len(planned.choice.candidates)} candidates, the {len(best)}{shown} that no other beats in "
        f"both cost and gaps (the most in any partition). Cost: {prices(planned.constraints)}",
        "plan | cost, entries/s | gaps | known | hops mean",
        rows,
    )


def room_table(answer: Planned | Estimated) -> Table:
    trend = None if isinstance(answer, Estimated) else facts.trend_in(answer)
    grows = trend is not None and trend.weekly_growth > 0
    rows, unit = [], "timers a day"
    for room in facts.rooms_of(answer):
        unit, volume = volume_of(answer.choice.recommended.evaluation, room)
        row = [room.limit, f"{room.times:,.2f}", volume]
        if grows and trend is not None and not isinstance(answer, Estimated):
            row.append(facts.reached_on(answer, room, trend) or "not within ten years")
        rows.append(row)
    return Table(
        caption="Growth: when the recommended plan reaches each limit (estimated)",
        header=("limit", "times the volume planned for", unit, *(["about"] if grows else [])),
        rows=rows,
    )


def quarantine_table(statistic: Statistic) -> Table | None:
    said = {**statistic.quarantined, **statistic.remarked}
    if not said:
        return None
    rows = []
    for name, count in said.items():
        meaning = REASONS.get(name) or REMARKS.get(name, "") + "; used without it"
        rows.append((name, meaning, f"{count:,}", next(iter(statistic.samples.get(name, ())), "")))
    left_out = sum(statistic.quarantined.values())
    caption = f"Quarantine: {left_out:,} of {counted(statistic.rows, 'row')} could not be used"
    return _table(caption, "reason | meaning | rows | such as", rows)


def prediction_table(predictions: Mapping[str, Prediction]) -> Table:
    rows = []
    for name, one in predictions.items():
        evaluation, replay = one.evaluation, one.replay
        fullest = replay.peak_per_partition.gap_count
        rows.append(
            (
                name,
                str(evaluation.plan.partitions),
                f"{evaluation.peak_gaps:,.0f}",
                f"{replay.peak_of_total.gap_count:,}",
                f"{one.peak_gaps_error:+.1%}",
                f"{fullest:,}",
                f"{fullest / max(evaluation.gap_limit_ranges, 1):.0%}",
                f"{evaluation.hops_mean:.2f}",
                f"{replay.hop_count / max(evaluation.timers, 1):.2f}",
            )
        )
    return _table(
        "Peak gaps and hops at this volume: predicted from the statistic, and counted by replaying every timer",
        "plan | partitions | gaps predicted | gaps counted | error | fullest partition | of its limit | "
        "hops predicted | hops counted",
        rows,
    )


def both(planned: Planned) -> dict[str, Prediction]:
    """Return the predictions of today's and of the recommended plan, by label; a single item for equal plans."""
    if planned.recommended is planned.native:
        return {"today and recommended": planned.native}
    return {"today": planned.native, "recommended": planned.recommended}


def hop_table(evaluation: Evaluation) -> Table | None:
    holding = steps(evaluation.plan)[:-1]
    if not 0 < len(holding) <= MAX_STEP_ROWS:
        return None
    rows = []
    for step, received in zip(holding, evaluation.step_entries, strict=True):
        ring = f"ring of {step.slots} x {format_duration(step.slot_ms)}"
        name = f"tier of {format_duration(step.stay_ms)}" if step.kind == "tier" else ring
        rows.append((name, f"{received:,.0f}", f"{received / max(evaluation.timers, 1):.2f}"))
    hops = f"mean {evaluation.hops_mean:.2f}, 99 % at most {evaluation.hops_p99}, most {evaluation.hops_max}"
    everything = "all hops" if evaluation.shadow is None else "moves and all hops"
    written = f"{evaluation.written_entries:,.0f}", f"{evaluation.writes_per_timer:.2f}"
    rows.append((everything, f"{evaluation.republished_entries:,.0f}", hops))
    rows.append(("entries written by sends and hops", *written))
    return _table("Hops on this history", "step | timers | for each timer", rows)


_PLAN_COLUMNS = (
    "plan | partitions | gaps | known | of its limit | again after unload | silence | hops mean | hops 99 % | topics | "
    "breaks"
)


def _row_of(planned: Planned | Estimated, name: str, one: Evaluation, broken: Sequence[str]) -> tuple[str, ...]:
    return _plan_row(name, one, facts.gaps(planned, one), facts.again(planned, one), broken)


def _plan_row(name: str, one: Evaluation, gaps: Amount, again: Amount, broken: Sequence[str]) -> tuple[str, ...]:
    return (
        name,
        str(one.plan.partitions),
        str(gaps),
        gaps.known,
        f"{'over ' if gaps.is_least else ''}{gaps.value / max(one.gap_limit_ranges, 1):.0%}",
        str(again),
        f"{one.silence_seconds:.1f} s",
        f"{one.hops_mean:.2f}",
        str(one.hops_p99),
        str(one.partition_topics),
        ", ".join(dict.fromkeys(_CONSTRAINTS[name] for name in broken)) or "-",
    )


def at_volume(growth: float) -> str:
    """Name the volume, to follow "estimated"."""
    return " at this volume" if growth == 1 else f" at {growth:g} times this volume"


MIB_BYTES = 1 << 20


def cost_table(planned: Planned, prices: Prices | None = None) -> Table:
    cost = planned.constraints.cost_of
    rows: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("entries written a second", lambda one: f"{cost(one).written:,.2f}"),
        ("entries written for each timer", lambda one: f"{one.writes_per_timer:.2f}"),
        (
            "written a day, all copies, MiB",
            lambda one: f"{one.written_bytes * DAY_MS / max(one.history_ms, MINUTE_MS) / MIB_BYTES:,.1f}",
        ),
        ("on disk at the peak, all copies, MiB", lambda one: f"{one.storage_bytes / MIB_BYTES:,.1f}"),
        ("partition topics", lambda one: f"{one.partition_topics}"),
        ("relay to run", lambda one: "yes" if one.needs_relay else "no"),
        ("the planner's price of the topics (--topic-cost), entries/s", lambda one: f"{cost(one).topics:,.1f}"),
        ("the planner's price of a relay (--relay-cost), entries/s", lambda one: f"{cost(one).relay:,.1f}"),
        ("what plans are compared by, entries/s", lambda one: f"{cost(one).writes_per_second:,.1f}"),
    ]
    return _side_by_side("Estimated costs", planned, rows, _money_rows(planned, prices))


def needs_table(planned: Planned) -> Table:
    rows: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("written in all, all copies, MiB", lambda one: f"{one.written_bytes / MIB_BYTES:,.1f}"),
        ("of that by hops, MiB", lambda one: f"{one.republished_bytes / MIB_BYTES:,.1f}"),
        ("ledgers at the peak", lambda one: f"{one.ledgers:,.0f}"),
        ("persisted cursor of a partition, kB", lambda one: f"{one.cursor_bytes / 1_000:,.1f}"),
        ("delayed index in broker memory, at least, kB", lambda one: f"{one.delayed_index_bytes / 1_000:,.1f}"),
        ("waiting in the due topic's fullest partition", lambda one: f"{one.peak_pending_per_partition:,.0f}"),
        ("silence of it after an unload, s", lambda one: f"{one.silence_seconds:.1f}"),
        ("again after the worst unload, messages", lambda one: str(facts.again(planned, one))),
        ("relay at the peak, hops/s", lambda one: f"{one.relay_hops_per_second:,.1f}"),
        ("topics (partitions in all)", lambda one: f"{one.topics} ({one.partition_topics})"),
        ("consumers to run", lambda one: f"{one.consumers}"),
    ]
    return _side_by_side("Estimated needs", planned, rows)


def _side_by_side(
    caption: str,
    planned: Planned,
    figures: Sequence[tuple[str, Callable[[Evaluation], str]]],
    money: Iterable[tuple[str, ...]] = (),
) -> Table:
    pair = (planned.choice.native, planned.choice.recommended.evaluation)
    rows = [(name, *(said(one) for one in pair)) for name, said in figures]
    return _table(caption + at_volume(planned.growth), " | today | recommended", [*rows, *money])


def _money_rows(planned: Planned, prices: Prices | None) -> list[tuple[str, ...]]:
    bills = [facts.monthly(one, prices) for one in (planned.choice.native, planned.choice.recommended.evaluation)]
    found = [bill for bill in bills if bill is not None]
    if len(found) < len(bills):
        return []
    parts = [
        (f"{name}, a month", *(bill.said(bill.parts[number][1]) for bill in found))
        for number, (name, _) in enumerate(found[0].parts)
    ]
    return [*parts, ("money a month, at your prices", *(bill.said(bill.total) for bill in found))]


def shadow_table(evaluation: Evaluation) -> Table | None:
    shadow = evaluation.shadow
    if shadow is None:
        return None
    far = spelled(shadow.far_ms)
    share = shadow.moved / max(evaluation.timers, 1.0)
    pending, stale = f"{evaluation.peak_pending_per_partition:,.0f}", f"{shadow.peak_stale_entries:,.0f}"
    writes, reads = f"{shadow.extra_writes_per_moved:.2f}", f"{shadow.extra_reads_per_timer:.2f}"
    rows = [
        ("moved, timers", f"{shadow.moved:,.0f} ({share:.0%})", f"sent {far} or more before they are due"),
        ("entries into the intake", f"{shadow.intake_entries:,.0f}", "moves of 20 ms go as one entry"),
        ("more entries written, for each moved timer", writes, "into the intake, hops, into the due topic"),
        ("messages read besides by consumers, for each timer", reads, "all by the mover, copies by relays"),
        ("waiting in the due topic's fullest partition", pending, "near timers, and copies in their last stretch"),
        ("originals in the broker's index at the peak", stale, "moved and not due yet"),
        ("memory of these, kB", f"{shadow.stale_index_bytes / 1_000:,.1f}", "until due, or an unload"),
        ("late by at most, plain clients", format_duration(shadow.lateness_ms), "the broker's tick"),
    ]
    return _table("The shadow, estimated: producers and consumers stay as they are", " |  | derived from", rows)


def estimated_tables(found: Estimated) -> list[Table]:
    return [plans_table(found), front_table(found), room_table(found)]


def fleet_table(fleet: Fleet, topics: Sequence[NativeGaps], caption: str) -> Table:
    rows = []
    for one in topics:
        own = fleet.planned.get(one.topic)
        then = [facts.SAID[one.native_fit], "-", "-"] if own is None else _then(own)
        rows.append(
            (
                one.topic.removeprefix("persistent://") or "(no topic)",
                f"{one.timers_per_day:,.0f}",
                f"{one.peak.gap_count:,}",
                f"{one.gap_fraction:.0%}",
                str(facts.fleet_again(one)),
                *then,
            )
        )
    return _table(caption, "topic | timers a day | gaps now | of limit | again | what | gaps then | cost", rows)


def _then(planned: Planned) -> list[str]:
    plan, choice = planned.plan, planned.choice
    broken = "" if planned.keeps_limits else ", NOT within every limit"
    now = planned.constraints.cost_of(choice.native).writes_per_second
    return [
        f"{describe(plan)}, {partitions_in_words(plan.partitions)}{broken}",
        str(facts.peaks_of(planned)[1]),
        f"{now:,.1f} -> {choice.recommended.cost_writes_per_second:,.1f}",
    ]
