"""Slope of a line through some points, and its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_POINTS = 3  # two points always form a line, without any residual to estimate its error from
CERTAIN = 2.0  # standard errors by which a slope must differ from zero to count as real


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Slope by least squares."""

    value: float  # rise of y for each unit of x
    error: float  # standard error of the slope

    @property
    def is_up(self) -> bool:
        return self.value > CERTAIN * self.error


def slope_of(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Fit a line by least squares through at least `LEAST_POINTS` points, whose x are not all the same."""
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((own - middle) ** 2 for own in x)
    value = sum((own - middle) * (of - mean) for own, of in zip(x, y, strict=True)) / spread
    left = sum((of - mean - value * (own - middle)) ** 2 for own, of in zip(x, y, strict=True))
    return Slope(value=value, error=math.sqrt(left / (len(x) - 2) / spread))
