"""The three figures below the verdict: gaps now, gaps then, and the cost."""

from __future__ import annotations

from timewheel._report.page import Headline
from timewheel.core.durations import MINUTE_MS
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results.money import Prices, monthly
from timewheel.spark_planner.results.peaks import peaks_of

__all__ = ["headlines"]

CERTAINTY = "with 95% confidence"


def headlines(planned: Planned, prices: Prices | None = None) -> list[Headline]:
    """Build all three, each marked as counted or estimated."""
    peaks = peaks_of(planned)
    partitions = planned.plan.own_partitions
    where = "one partition" if partitions == 1 else f"the fullest of {partitions} partitions"
    now, then = peaks.describe_band(peaks.now), peaks.describe_band(peaks.then)
    return [
        _gaps("Gaps now", peaks.now, "native delays, one partition", planned, peaks.known, f"{now} {CERTAINTY}"),
        _gaps("Gaps then", peaks.then, f"this plan, {where}", planned, peaks.known, f"{then}, in the same ratio"),
        _cost(planned, prices),
    ]


def _gaps(name: str, gaps: float, where: str, planned: Planned, known: str, confidence: str) -> Headline:
    limit = planned.profile.gap_limit_ranges
    lines = [f"{where}: {gaps / max(limit, 1):.0%} of the {limit:,} that the broker keeps"]
    if planned.traffic.confidence is not None:
        lines.append(confidence)
    # Gaps above the requested fraction, but within the broker's limit, are neither good nor bad.
    good = True if gaps <= planned.constraints.gap_fraction * limit else False if gaps > limit else None
    return Headline(name=name, value=f"{gaps:,.0f}", unit="gaps at the peak", known=known, lines=lines, good=good)


def _cost(planned: Planned, prices: Prices | None) -> Headline:
    choice, limits = planned.choice, planned.constraints
    plan, native = (limits.cost_of(one) for one in (choice.recommended.evaluation, choice.native))
    times = plan.written / native.written if native.written else 1.0
    lines = [
        f"{times:.2f} times the {native.written:,.2f} of native delays",
        f"with topics and relay as much as {plan.writes_per_second:,.1f}, native {native.writes_per_second:,.1f}",
    ]
    if choice.native.history_ms < MINUTE_MS:
        lines.append("the mean of a minute, though this history is shorter")
    bill, today = monthly(choice.recommended.evaluation, prices), monthly(choice.native, prices)
    if bill is not None and today is not None:
        lines.insert(0, f"{bill.said(bill.total)} a month, native {today.said(today.total)}")
    return Headline(
        name="What it costs",
        value=f"{plan.written:,.2f}",
        unit="entries written a second",
        known="estimated",
        lines=lines,
    )
