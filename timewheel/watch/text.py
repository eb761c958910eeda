"""A check as text, for a terminal or a mail from cron, and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from timewheel._report.page import Table
from timewheel.core.durations import span
from timewheel.core.escapes import timewheel_command
from timewheel.watch.checking import Checked, Level
from timewheel.watch.comparison import GapComparison
from timewheel.watch.sends import SHARES

if TYPE_CHECKING:
    from timewheel.watch.change import Change

HOW_TO_CHANGE = "docs/how-to/change-a-plan.md"
MAX_PARTITIONS = 8  # number of the fullest partitions shown; the JSON lists all


def headline(checked: Checked) -> str:
    """Return the verdict in a line."""
    worst, limit = checked.worst, checked.profile.gap_limit_ranges
    share = worst.counted / max(limit, 1)
    said = {
        Level.FINE: "The plan holds",
        Level.ATTENTION: "The plan needs attention",
        Level.BROKEN: "A limit is broken",
    }[checked.level]
    return (
        f"{said}: {worst.counted:,} gaps in the fullest partition, {share:.0%} of the {limit:,} that the broker keeps."
    )


def comparison_table(checked: Checked) -> Table:
    """Return predicted and counted gaps for each subscription and its fullest partitions."""
    rows = []
    for whole in checked.wholes:
        rows.append(_row(f"{whole.subscription}, all partitions", whole))
        parts = [part for part in checked.parts if part.subscription == whole.subscription]
        if len(parts) > 1:
            parts.sort(key=lambda part: -part.counted)
            rows += [_row(part.name.rsplit("/", 1)[1], part) for part in parts[:MAX_PARTITIONS]]
    return Table(
        caption="Gaps computed from the entries of the due topics, beside the broker's count",
        header=("", "predicted", "from", "to", "counted", "agree", "not due yet", "backlog"),
        rows=rows,
    )


def describe_sends(checked: Checked) -> Iterator[tuple[str, str]]:
    """Yield (name, text) pairs about the sample, the sends, and their expected peak."""
    sample, sends, seen = checked.sample, checked.sends, checked.expected
    due, holding = sample.in_due, sample.in_holding
    held = f", {holding.inspected:,} of {holding.population:,} in holding topics" if holding.population else ""
    yield "looked", f"at {due.inspected:,} of {due.population:,} entries in due topics{held}"
    if seen is None:
        return
    first = f"{datetime.fromtimestamp(sends.from_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"
    yield (
        "sent",
        f"{sends.per_second:,.3g} +- {sends.per_second_error:,.2g} timers a second since {first} UTC "
        f"({span(sends.window_ms)}), from {len(sends.timers):,} sampled timers",
    )
    quantiles = zip(SHARES, sends.quantiles_ms(), strict=True)
    yield "delay", ", ".join(f"{share:.0%} up to {span(delay_ms)}" for share, delay_ms in quantiles)
    if seen.is_short:
        return
    evaluation = seen.evaluation
    yield (
        "peak",
        f"{evaluation.peak_gaps_per_partition:,.0f} gaps in the fullest partition if sends go on like this "
        f"({evaluation.gap_fraction:.0%} of the broker's limit)",
    )
    if seen.rooms:
        nearest = seen.rooms[0]
        yield "room", f"{nearest.times:,.3g} times this volume until {nearest.limit} is reached"


def describe_change(change: Change, path: str, new: str, write: str, reached_by: Sequence[str]) -> Iterator[str]:
    """Yield the lines that describe a change and how to roll it out; ``write`` is empty if the new file is written."""
    at = "at the present volume" if change.times == 1 else f"at {change.times:.3g} times the present volume"
    if not change.is_one:
        kept = "it keeps every limit" if change.keeps_limits else "and no other breaks fewer limits"
        yield f"The planner finds no better plan {at}: by its count of these sends {kept}."
        return
    if change.keeps_limits:
        yield f"This change keeps every limit {at}:"
    else:
        yield f"No plan keeps every limit {at}. This change breaks fewest:"
    yield from change.diff(path).splitlines()
    yield f"To write it: {write}" if write else f"Written: {new}"
    if change.after.partitions > change.before.partitions:
        yield f"Then raise the partitions: {timewheel_command('topics', 'ensure', new, '--grow', *reached_by)}"
    yield f"How to roll it out while timers wait: {HOW_TO_CHANGE}."


def _row(name: str, one: GapComparison) -> tuple[str, ...]:
    return (
        name,
        f"{one.predicted:,.0f}",
        f"{one.low:,.0f}",
        f"{one.high:,.0f}",
        f"{one.counted:,}",
        "yes" if one.agrees else "NO",
        f"{one.pending:,.0f}",
        f"{one.backlog:,}",
    )


def checked_facts(checked: Checked) -> dict[str, Any]:
    """Return everything that a check found; times in UTC milliseconds, null for unknown values."""
    sample, sends, seen, outlook = checked.sample, checked.sends, checked.expected, checked.outlook
    return {
        "level": checked.level.value,
        "findings": [asdict(finding) for finding in checked.findings],
        "at_ms": sample.at_ms,
        "due_topic": checked.plan.due_topic,
        "revision": checked.plan.revision,
        "broker": {"name": checked.profile.name, "gap_limit": checked.profile.gap_limit_ranges},
        "sampled": {
            "due": {"entries": sample.in_due.population, "inspected": sample.in_due.inspected},
            "holding": {"entries": sample.in_holding.population, "inspected": sample.in_holding.inspected},
        },
        "subscriptions": [_comparison_facts(whole) for whole in checked.wholes],
        "partitions": [_comparison_facts(part) for part in checked.parts],
        "sends": {
            "from_ms": sends.from_ms,
            "until_ms": sends.until_ms,
            "sampled": len(sends.timers),
            "per_second": sends.per_second if seen is not None else None,
            "per_second_error": sends.per_second_error if seen is not None else None,
            "delays_ms": _quantiles(sends.quantiles_ms()) if seen is not None else None,
        },
        "expected": None
        if seen is None
        else {
            "peak_gaps_per_partition": seen.evaluation.peak_gaps_per_partition,
            "peak_gaps": seen.evaluation.peak_gaps,
            "broken": list(seen.broken),
            "rooms": [asdict(room) for room in seen.rooms],
        },
        "drift": None
        if checked.drift is None
        else {
            "reference": checked.drift.reference.name,
            "rate": checked.drift.rate,
            "rate_error": checked.drift.rate_error,
            "moved": checked.drift.moved,
            "moved_error": checked.drift.moved_error,
            "per_second_then": checked.drift.reference.per_second,
            "delays_ms_then": _quantiles(checked.drift.reference.quantiles_ms),
            "is_drift": checked.drift.is_rate or checked.drift.is_delay,
        },
        "growth": {
            "volume": outlook.volume and asdict(outlook.volume),
            "gaps": outlook.gaps and asdict(outlook.gaps),
            "reached": None
            if outlook.reached is None
            else {"limit": outlook.reached.limit, "at_ms": outlook.reached.at_ms, "basis": outlook.reached.basis},
            "horizon_ms": outlook.until_ms,
            "times_at_horizon": outlook.times,
        },
    }


def change_facts(change: Change, path: str) -> dict[str, Any]:
    """Return a change of the plan as JSON values."""
    return {
        "keeps_limits": change.keeps_limits,
        "is_one": change.is_one,
        "times": change.times,
        "diff": change.diff(path),
    }


def _comparison_facts(comparison: GapComparison) -> dict[str, Any]:
    return {**asdict(comparison), "low": comparison.low, "high": comparison.high, "agrees": comparison.agrees}


def _quantiles(delays_ms: tuple[int, ...]) -> dict[str, int]:
    return {f"{share:g}": delay_ms for share, delay_ms in zip(SHARES, delays_ms, strict=True)}
