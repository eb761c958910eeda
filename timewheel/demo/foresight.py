"""The planner's predictions from a run's own ledger, beside the broker's measurements. Pure values and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timewheel.demo.settings import SchemeName
from timewheel.demo.table import LABELS

HEADER = ("scheme", "peak gaps: predicted", "measured", "difference", "again: predicted", "measured")

NOTE = (
    "Predicted from send and due times in the ledger, the plans and the broker's own settings alone. Peak gaps: of all "
    "due topics at one moment; predicted is the mean for a relay that is on time, and the highest of many moments lies "
    "some roots above it. Again: delivered to business again by the unload; acknowledgements that were under way come "
    "on top."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """A scheme's peak of gaps in its due topics at one moment, and its redeliveries to business by the run's unload."""

    scheme: SchemeName
    predicted_peak: float
    measured_peak: int
    predicted_redelivered: float
    measured_redelivered: int

    @property
    def peak_error(self) -> float:
        """The prediction less the measurement, as a part of the measurement."""
        return (self.predicted_peak - self.measured_peak) / max(self.measured_peak, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The planner's output for a run: of so many candidates, in seconds that include Spark's start."""

    rows: Sequence[Foreseen]
    verdict: str
    plan: str
    candidates: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "schemes": {row.scheme: {**asdict(row), "peak_error": row.peak_error} for row in self.rows},
            "verdict": self.verdict,
            "plan": self.plan,
            "candidates": self.candidates,
            "seconds": round(self.seconds, 1),
        }


def row_texts(row: Foreseen) -> tuple[str, ...]:
    return (
        LABELS[row.scheme],
        f"{row.predicted_peak:,.0f}",
        f"{row.measured_peak:,}",
        f"{row.peak_error:+.1%}",
        f"{row.predicted_redelivered:,.0f}",
        f"{row.measured_redelivered:,}",
    )
