"""Durations as people write them (``"90s"``, ``"12h"``, ``"5d"``) and as code counts them: whole milliseconds; and
numbers in untrusted text.
"""

from __future__ import annotations

import re
from itertools import pairwise

from timewheel.core.errors import DurationError

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

MAX_DURATION_MS = 10 * 365 * DAY_MS  # ten years: longer than any ledger should be pinned, and far from every overflow

ROUND_MS = (
    *(seconds * SECOND_MS for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 5, 10, 20, 30, 60, 90, 180, 365)),
)
"""Usual durations, from which windows, tiers and the longest delay of a plan are chosen."""

_UNITS_MS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
_PATTERN = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> int:
    """Read a whole number and a unit of ``ms s m h d`` (no sign, fraction or spaces) as milliseconds. `DurationError`:
    the text is something else, or longer than ten years.
    """
    if not isinstance(text, str):
        raise DurationError(text, f"expected text, not {type(text).__name__}")
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise DurationError(text, "expected one whole number and one unit of ms, s, m, h, d")
    duration_ms = int(match[1]) * _UNITS_MS[match[2]]
    if duration_ms > MAX_DURATION_MS:
        raise DurationError(text, "longer than ten years")
    return duration_ms


def format_duration(duration_ms: int) -> str:
    """Write milliseconds in the largest unit that divides them; `parse_duration` reads it back unchanged."""
    if duration_ms == 0:
        return "0s"
    for unit, unit_ms in _UNITS_MS.items():
        if duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms}{unit}"
    raise AssertionError("every whole number is a multiple of 1 ms")


def round_duration(duration_ms: int) -> int:
    """Return the shortest of `ROUND_MS` that is at least as long; the duration itself if none is."""
    return next((round_ms for round_ms in ROUND_MS if round_ms >= duration_ms), duration_ms)


def rounded_up(duration_ms: int) -> str:
    """Write milliseconds rounded up: as a whole number of the largest unit that the duration holds at least twice."""
    unit_ms = next((unit_ms for unit_ms in _UNITS_MS.values() if duration_ms >= 2 * unit_ms), 1)
    return format_duration(-(-duration_ms // unit_ms) * unit_ms)


def span(span_ms: float) -> str:
    """Write a length of time for quick reading: in the largest unit that it reaches, with three digits."""
    units = (("ms", 1), ("s", SECOND_MS), ("min", MINUTE_MS), ("h", HOUR_MS), ("d", DAY_MS))
    for (unit, unit_ms), (_, next_ms) in pairwise(units):
        # Compared as rounded: never 60 s, never 1,000 ms.
        if float(f"{abs(span_ms) / unit_ms:.3g}") * unit_ms < next_ms:
            return f"{span_ms / unit_ms:.3g} {unit}"
    days = span_ms / DAY_MS
    return f"{days:,.0f} d" if abs(days) >= 1_000 else f"{days:.3g} d"


def spelled(duration_ms: int) -> str:
    """Write milliseconds for people, exact to the millisecond, in as many units as needed: ``2d 5m``."""
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        whole, duration_ms = divmod(duration_ms, unit_ms)
        parts += [f"{whole}{unit}"] if whole else []
    return " ".join(parts) or format_duration(0)


MAX_DIGITS = 18
"""Every number with at most this many digits fits into 64 bits, and Python parses it without an error of its own."""


def whole_number(text: str, max_digits: int = MAX_DIGITS) -> int | None:
    """Parse decimal ASCII digits; None: the text is anything else, or too long."""
    return int(text) if len(text) <= max_digits and text.isascii() and text.isdecimal() else None
