"""Which columns of a history mean what, and in which units they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from timewheel.spark_planner.errors import BadColumnMapping, MissingColumn
from timewheel.spark_planner.history.units import stem_of

__all__ = ["ColumnMapping", "Columns", "DelayUnit", "Option", "TimeUnit"]

TimeUnit = Literal["auto", "ms", "s", "us", "ns", "timestamp"]
DelayUnit = Literal["auto", "ms", "s", "us", "ns", "m", "h", "d"]
Option = Literal["publish", "due", "delay", "size", "key", "topic", "timer-id"]

_USUAL: dict[Option, str] = {
    "publish": "publish_ms",
    "due": "due_ms",
    "delay": "delay_ms",
    "size": "size_bytes",
    "key": "key",
    "topic": "topic",
    "timer-id": "timer_id",
}
"""What a column is called where nobody says otherwise."""
_STEMS: dict[Option, str] = {"publish": "publish", "due": "due", "delay": "delay"}
"""Columns of times may end with another unit, or with none: ``publish_s``, ``delay_minutes``, ``delay``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns that a history has.

    Args:
        publish: When a timer was sent.
        due: When it was due; None: `delay` tells.
        delay: From its sending to its due time. Beside a due time it is compared with that.
        size: Payload bytes.
        key: Partition key.
        topic: The due topic.
        timer_id: What all copies of one timer share.
    """

    publish: str
    due: str | None
    delay: str | None
    size: str | None
    key: str | None
    topic: str | None
    timer_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """The columns of a history, as far as a user names them. What is None is looked for under its usual name, and times
    also under that name with another unit's ending, or with none: ``publish_s``, ``delay_minutes``, ``due``.

    Args:
        publish: When a timer was sent; usually ``publish_ms``.
        due: When it was due; usually ``due_ms``. Give this or ``delay``, not both: what is given counts alone. Where
            neither is given and the history has both, the due time counts, and rows whose delay contradicts it are not
            used.
        delay: From its sending to its due time; usually ``delay_ms``.
        size: Payload bytes; usually ``size_bytes``; without it sizes are unknown.
        key: Partition key; usually ``key``; without it timers have none.
        topic: The due topic; usually ``topic``; without it all timers belong to one.
        timer_id: What all copies of one timer share, as a hop's copy does with the send (our ``tw-id``); usually
            ``timer_id``. Of rows with the same one only the first that was sent is used. Without it every row is a
            timer. It costs a shuffle of the history.
        time_unit: What numbers in ``publish`` and ``due`` count since 1970, also in text. ``auto``: what the column's
            name ends with, else the one unit in which they are times of this century; timestamps speak for themselves,
            and other text is read as ISO 8601 (in the session's time zone where it names none).
        delay_unit: What numbers in ``delay`` count. ``auto``: what the column's name ends with; intervals speak for
            themselves.
    """

    publish: str | None = None
    due: str | None = None
    delay: str | None = None
    size: str | None = None
    key: str | None = None
    topic: str | None = None
    timer_id: str | None = None
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

    def resolved(self, existing: Sequence[str]) -> Columns:
        """The columns that are meant.

        Args:
            existing: The history's columns.

        Raises:
            MissingColumn: A named column, or the time of publishing, is not there.
            BadColumnMapping: Neither a due time nor a delay is there, or two columns could be the same thing.
        """
        named: dict[Option, str | None] = {option: getattr(self, _field(option)) for option in _USUAL}
        for option, column in named.items():
            if column is not None and column not in existing:
                raise MissingColumn(column, option, existing)
        for option in _USUAL:
            if named[option] is None:
                named[option] = _usual(option, existing)
        if named["publish"] is None:
            raise MissingColumn(_USUAL["publish"], "publish", existing)
        if self.delay is not None:
            named["due"] = None
        elif self.due is not None:
            named["delay"] = None
        elif named["due"] is None and named["delay"] is None:
            names = ", ".join(map(repr, existing))
            raise BadColumnMapping(
                "due", f"name the column of the due time, or of the delay with delay, out of {names}"
            )
        fields = {_field(option): column for option, column in named.items()}
        return Columns(**fields)  # type: ignore[arg-type] # the keys are the fields, and publish is there


def _field(option: Option) -> str:
    return option.replace("-", "_")


def _usual(option: Option, existing: Sequence[str]) -> str | None:
    if _USUAL[option] in existing:
        return _USUAL[option]
    stem = _STEMS.get(option)
    found = [name for name in existing if stem is not None and stem_of(name) == stem]
    if len(found) > 1:
        raise BadColumnMapping(option, f"{' and '.join(map(repr, found))} could both be meant: name one of them")
    return found[0] if found else None
