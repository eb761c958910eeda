"""Randomness as a parameter.

Code that draws random numbers takes their source as an argument: tests and simulations pass ``random.Random(seed)``,
which draws the same numbers in every run.
"""

from __future__ import annotations

import random
from typing import Protocol


class Random(Protocol):
    """Source of random numbers. ``random.Random`` satisfies the protocol."""

    def random(self) -> float:
        """Return the next number: at least 0, below 1."""
        ...


def system_random() -> Random:
    """Return the operating system's source, without a seed: no two processes draw the same numbers, even after fork."""
    return random.SystemRandom()
