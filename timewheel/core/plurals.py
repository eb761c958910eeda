"""A number with its noun, for sentences that people read."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, several: str | None = None) -> str:
    """The number and the noun that fits it: "1 timer", "2,000 timers".

    Args:
        number: How many.
        noun: For one; a verb may follow it, "entry waits".
        several: For any other number, none included; None: the noun with an "s".
    """
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
