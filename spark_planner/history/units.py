"""Units of a column's numbers: by the option, else by the column's name, else by the plausible range.

A number without a unit must not be guessed: delays in seconds that are taken for milliseconds make a plan that looks
sound and is wrong by a factor of a thousand. Send times and due times are the exception: only in one unit are they
times of this century.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from timewheel.core.durations import MAX_DURATION_MS, rounded_up
from timewheel.spark_planner.errors import UnitUnknown

__all__ = ["EARLIEST_MS", "LATEST_MS", "TIME_UNITS", "UNITS_PER_MS", "stem_of", "unit_of_name", "unit_of_times"]

UNITS_PER_MS: dict[str, float] = {
    "ns": 1e6,
    "us": 1e3,
    "ms": 1.0,
    "s": 1 / 1e3,
    "m": 1 / 60e3,
    "h": 1 / 3_600e3,
    "d": 1 / 86_400e3,
}
"""Number of each unit in a millisecond."""
TIME_UNITS = ("s", "ms", "us", "ns")
"""Units of times since 1970."""

EARLIEST_MS = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1_000)
LATEST_MS = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1_000)
"""Range of send times in a history: 4.1 thousand million seconds are fewer than 946 thousand million milliseconds, so a
number is a time of this century in at most one unit.
"""

_ENDINGS = {
    "ns": ("ns", "nanos", "nanoseconds"),
    "us": ("us", "micros", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millis", "milliseconds"),
    "s": ("s", "sec", "secs", "seconds"),
    # No "m": in a name it may stand for minutes, months or milliseconds.
    "m": ("min", "mins", "minutes"),
    "h": ("h", "hr", "hrs", "hours"),
    "d": ("d", "days"),
}
_UNIT_OF_ENDING = {ending: unit for unit, endings in _ENDINGS.items() for ending in endings}
# delay_ms, delay-ms, delayMs, delay.ms
_ENDING = re.compile(r"(?:[^A-Za-z0-9]|(?<=[a-z0-9])(?=[A-Z]))([A-Za-z]+)$")
_SHOWN = 3
"""Most values in an error."""


def unit_of_name(name: str) -> str | None:
    """Return the unit at the end of a column's name, such as ``delay_ms``, ``delay_minutes`` and ``delaySeconds``."""
    found = _ENDING.search(name)
    return None if found is None else _UNIT_OF_ENDING.get(found[1].lower())


def stem_of(name: str) -> str:
    """Return a column's name without the unit, in lower case."""
    found = _ENDING.search(name)
    return (name if found is None or found[1].lower() not in _UNIT_OF_ENDING else name[: found.start()]).lower()


def unit_of_times(column: str, option: str, values: Sequence[float]) -> str:
    """Return the unit in which most of the values are times of this century.

    Args:
        column: The column's name, for the error.
        option: The option for the unit.
        values: The first numbers of the column; empty: the unit does not matter, and ``ms`` is returned.

    Raises:
        UnitUnknown: No value is a time of this century in any unit.
    """
    if not values:
        return "ms"
    sound = {unit: sum(_is_time(value, unit) for value in values) for unit in TIME_UNITS}
    best = max(TIME_UNITS, key=lambda unit: sound[unit])
    if not sound[best]:
        readings = {unit: [_time_text(value, unit) for value in values[:_SHOWN]] for unit in TIME_UNITS}
        raise UnitUnknown(column, option, list(values[:_SHOWN]), readings)
    return best


def refuse_delays(column: str, option: str, values: Sequence[float]) -> None:
    """Reject delays of unknown unit.

    Raises:
        UnitUnknown: Always, with the first values in each unit.
    """
    readings = {unit: [_delay_text(value, unit) for value in values[:_SHOWN]] for unit in UNITS_PER_MS}
    raise UnitUnknown(column, option, list(values[:_SHOWN]), readings)


def _is_time(value: float, unit: str) -> bool:
    return EARLIEST_MS <= value / UNITS_PER_MS[unit] < LATEST_MS


def _time_text(value: float, unit: str) -> str:
    try:
        return datetime.fromtimestamp(value / UNITS_PER_MS[unit] / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "no time"


def _delay_text(value: float, unit: str) -> str:
    delay_ms = value / UNITS_PER_MS[unit]
    if not 0 <= delay_ms <= MAX_DURATION_MS:
        return "no delay" if not delay_ms > MAX_DURATION_MS else "over ten years"
    return f"{delay_ms:g}ms" if delay_ms < 1 else rounded_up(int(delay_ms))
