"""Convert a check to JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from timewheel.watch.sends import SHARES

if TYPE_CHECKING:
    from timewheel.watch.change import Change
    from timewheel.watch.checking import Checked
    from timewheel.watch.comparison import GapComparison
    from timewheel.watch.growth import Growth


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
            "volume": _growth_facts(outlook.volume),
            "gaps": _growth_facts(outlook.gaps),
            "reached": None
            if outlook.reached is None
            else {"limit": outlook.reached.limit, "at_ms": outlook.reached.at_ms, "basis": outlook.reached.basis},
            "horizon_ms": outlook.until_ms,
            "times_at_horizon": outlook.times,
        },
    }


def change_facts(change: Change, path: str) -> dict[str, Any]:
    """Return a change of the plan as JSON values.

    Args:
        change: The change.
        path: Path of the present plan file.
    """
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


def _growth_facts(growth: Growth | None) -> dict[str, Any] | None:
    return None if growth is None else asdict(growth)
