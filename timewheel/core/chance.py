"""Randomness as a parameter.

Whoever needs a number by chance is handed where to get it from: tests and simulations hand in ``random.Random(seed)``,
which draws the same numbers again.
"""

from __future__ import annotations

import random
from typing import Protocol

__all__ = ["Chance", "system_chance"]


class Chance(Protocol):
    """Draws numbers; every ``random.Random`` is one."""

    def random(self) -> float:
        """The next number: at least 0, below 1."""
        ...


def system_chance() -> Chance:
    """The machine's own, without a seed: two processes never draw alike, not even after a fork."""
    return random.SystemRandom()
