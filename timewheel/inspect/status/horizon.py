"""Stretches of due times that grow with their distance: pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of timers.

    Args:
        count: The number; an estimate if `error` is not 0.
        error: Error of `count` at 95 %; 0 if exact.
    """

    count: float = 0.0
    error: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        """Add an amount that was sampled independently."""
        return Amount(self.count + other.count, (self.error**2 + other.error**2) ** 0.5)

    @property
    def text(self) -> str:
        """The amount as "2,937", or "2,937 +- 12"."""
        return f"{self.count:,.0f}" + (f" +- {self.error:,.0f}" if self.error else "")

    def counted(self, noun: str, several: str | None = None) -> str:
        """Return the amount with its noun, as `timewheel.core.plurals.counted` does; an estimate takes the plural."""
        return f"{self.text} {noun if self.text == '1' else several or f'{noun}s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of due times.

    Args:
        name: ``overdue``, ``next minute``, ``next hour``, ``next day``, ``day 2`` (the second from now), ...
        from_ms: First due time, UTC milliseconds; None if unbounded.
        until_ms: End of the stretch, exclusive.
    """

    name: str
    from_ms: int | None
    until_ms: int


class Horizon:
    """The stretches from a moment on.

    Args:
        now_ms: The moment, UTC milliseconds.
        longest_ms: Longest time ahead at which timers can be due.
    """

    def __init__(self, now_ms: int, longest_ms: int) -> None:
        days = max(-(-longest_ms // DAY_MS), 1)
        ends = [0, MINUTE_MS, HOUR_MS, *(day * DAY_MS for day in range(1, days + 1))]
        names = ["overdue", "next minute", "next hour", "next day", *(f"day {day}" for day in range(2, days + 1))]
        self._ends = [now_ms + end for end in ends]
        self.buckets = tuple(
            Bucket(name=name, from_ms=None if not number else self._ends[number - 1], until_ms=self._ends[number])
            for number, name in enumerate(names)
        )

    def number_of(self, due_ms: int) -> int:
        """Return the number of a due time's stretch; later due times count to the last stretch."""
        return min(bisect_right(self._ends, due_ms), len(self._ends) - 1)

    def numbers_of(self, first_ms: int, until_ms: int) -> range:
        """Return the numbers of the stretches that due times from the first to before the second moment are in."""
        return range(self.number_of(first_ms), self.number_of(until_ms - 1) + 1)
