"""Render a check as text, for a terminal or a mail from cron."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from timewheel._report.page import Table
from timewheel.core.durations import span
from timewheel.core.escapes import timewheel_command
from timewheel.watch.change import Change
from timewheel.watch.checking import Checked
from timewheel.watch.comparison import GapComparison
from timewheel.watch.sends import SHARES
from timewheel.watch.verdict import Level

HOW_TO_CHANGE = "docs/how-to/change-a-plan.md"
MAX_PARTITIONS = 8
"""Number of the fullest partitions shown; the JSON lists all."""


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
    """Yield the lines that describe a change of the plan and how to roll it out.

    Args:
        change: Change of the plan.
        path: Path of the present plan file.
        new: Path of the new plan file.
        write: Command that writes it; empty: it is written.
        reached_by: Options by which a command reaches the cluster.
    """
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
