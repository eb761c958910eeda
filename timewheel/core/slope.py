"""The slope of a line through some points, and how far chance may have made it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CERTAIN", "LEAST_POINTS", "Slope", "slope_of"]

LEAST_POINTS = 3
"""Through two points there is always a line, and nothing to tell its error by."""
CERTAIN = 2.0
"""Standard errors that a slope must be off none to be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A slope by least squares.

    Args:
        value: What y rises by where x rises by one.
        error: Its standard error.
    """

    value: float
    error: float

    @property
    def is_up(self) -> bool:
        """It rises, and not by chance."""
        return self.value > CERTAIN * self.error


def slope_of(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Fit a line.

    Args:
        x: At least `LEAST_POINTS`, not all the same.
        y: As many.
    """
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((own - middle) ** 2 for own in x)
    value = sum((own - middle) * (of - mean) for own, of in zip(x, y, strict=True)) / spread
    left = sum((of - mean - value * (own - middle)) ** 2 for own, of in zip(x, y, strict=True))
    return Slope(value=value, error=math.sqrt(left / (len(x) - 2) / spread))
