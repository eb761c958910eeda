"""Which columns of a history mean what, and in which units they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from timewheel.spark_planner.errors import BadColumnMapping, MissingColumn

__all__ = ["UNITS_PER_MS", "ColumnMapping", "DelayUnit", "Option", "TimeUnit"]

TimeUnit = Literal["auto", "ms", "s", "us", "ns", "timestamp"]
DelayUnit = Literal["auto", "ms", "s", "us", "ns", "m", "h", "d"]
Option = Literal["publish", "due", "delay", "size", "key", "topic"]

UNITS_PER_MS: dict[str, float] = {
    "ns": 1e6,
    "us": 1e3,
    "ms": 1.0,
    "s": 1 / 1e3,
    "m": 1 / 60e3,
    "h": 1 / 3_600e3,
    "d": 1 / 86_400e3,
}
"""How many of each unit are a millisecond."""

_USUAL: dict[Option, str] = {
    "publish": "publish_ms",
    "due": "due_ms",
    "delay": "delay_ms",
    "size": "size_bytes",
    "key": "key",
    "topic": "topic",
}
"""What a column is called where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """The columns of a history. What is None is looked for under its usual name.

    Args:
        publish: When a timer was sent; usually ``publish_ms``.
        due: When it was due; usually ``due_ms``. Give this or ``delay``, not both.
        delay: From its sending to its due time; usually ``delay_ms``, looked for where there is no due time.
        size: Payload bytes; usually ``size_bytes``; without it sizes are unknown.
        key: Partition key; usually ``key``; without it timers have none.
        topic: The due topic; usually ``topic``; without it all timers belong to one.
        time_unit: What numbers in ``publish`` and ``due`` count since 1970; ``auto``: numbers are milliseconds, also
            in text, timestamps speak for themselves, and other text is read as ISO 8601 (in the session's time zone
            where it names none).
        delay_unit: What numbers in ``delay`` count; ``auto``: milliseconds; intervals speak for themselves.
    """

    publish: str | None = None
    due: str | None = None
    delay: str | None = None
    size: str | None = None
    key: str | None = None
    topic: str | None = None
    time_unit: TimeUnit = "auto"
    delay_unit: DelayUnit = "auto"

    def __post_init__(self) -> None:
        if self.due is not None and self.delay is not None:
            raise BadColumnMapping("due", "give due or delay, not both: one of them follows from the other")
        for option, unit, known in (
            ("time-unit", self.time_unit, get_args(TimeUnit)),
            ("delay-unit", self.delay_unit, get_args(DelayUnit)),
        ):
            if unit not in known:
                raise BadColumnMapping(option, f"no unit {unit!r}: one of {', '.join(known)}")

    def resolved(self, existing: Sequence[str]) -> ColumnMapping:
        """The same mapping with every column named that the history has; ``due`` or ``delay`` stays None.

        Args:
            existing: The history's columns.

        Raises:
            MissingColumn: A named column, or the time of publishing, is not there.
            BadColumnMapping: Neither a due time nor a delay is there.
        """
        named: dict[Option, str | None] = {option: getattr(self, option) for option in _USUAL}
        for option, column in named.items():
            if column is not None and column not in existing:
                raise MissingColumn(column, option, existing)
        for option, usual in _USUAL.items():
            if named[option] is None and usual in existing:
                named[option] = usual
        if named["publish"] is None:
            raise MissingColumn(_USUAL["publish"], "publish", existing)
        if self.delay is not None:
            named["due"] = None
        elif named["due"] is not None:
            named["delay"] = None
        elif named["delay"] is None:
            names = ", ".join(map(repr, existing))
            raise BadColumnMapping(
                "due", f"name the column of the due time, or of the delay with delay, out of {names}"
            )
        return replace(self, **named)  # type: ignore[arg-type] # the keys are the fields of these types
