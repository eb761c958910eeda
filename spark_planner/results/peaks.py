"""Peaks: the two counts of gaps in a result, with their confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.spark_planner.exact.replay_result import Peak
from timewheel.spark_planner.job import Planned

__all__ = ["Peaks", "peaks_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Gaps at the peak, native and under the plan: counted by the exact replay, or estimated for a larger volume.

    Args:
        now: Gaps of a single partition under native delays.
        then: Gaps of the plan's fullest partition.
        known: "counted" or "estimated"; for a long history "counted at moments", with the upper bound between them.
        confidence: 95 % confidence interval of the native gaps, as multiples of the value; the plan's upper end is
            compared with the limit. None: the interval is unknown, or the history is complete.
    """

    now: float
    then: float
    known: str
    confidence: tuple[float, float] | None

    def describe_band(self, gaps: float) -> str:
        """Describe the confidence interval of either peak, in words; empty without a band."""
        if self.confidence is None:
            return ""
        low, high = (times * gaps for times in self.confidence)
        return f"between {low:,.0f} and {high:,.0f}"


def peaks_of(planned: Planned) -> Peaks:
    """Return the peaks of a plan, at the planned volume."""
    confidence = planned.traffic.confidence
    is_counted = planned.growth == 1
    native, recommended = planned.choice.native, planned.choice.recommended.evaluation
    return Peaks(
        now=planned.native.replay.peak_of_total.gap_count if is_counted else native.peak_gaps,
        then=planned.recommended.replay.peak_per_partition.gap_count
        if is_counted
        else recommended.peak_gaps_per_partition,
        known=_known([planned.native.replay.peak_of_total, planned.recommended.replay.peak_per_partition])
        if is_counted
        else "estimated",
        confidence=None if confidence is None else (confidence.low, confidence.high),
    )


def _known(peaks: Sequence[Peak]) -> str:
    if all(peak.is_exact for peak in peaks):
        return "counted"
    return f"counted at moments, between them at most {', '.join(f'{peak.gap_count_limit:,}' for peak in peaks)}"
