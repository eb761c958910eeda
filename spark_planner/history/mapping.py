"""Column mapping: the meaning of a history's columns, and their units."""

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
"""Default names of the columns."""
_STEMS: dict[Option, str] = {"publish": "publish", "due": "due", "delay": "delay"}
"""Columns of times may end with another unit, or without a unit: ``publish_s``, ``delay_minutes``, ``delay``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a history.

    Args:
        publish: Send time.
        due: Due time; None: the due time follows from `delay`.
        delay: Time from the send to the due time. If there is a due time as well, the two are compared.
        size: Payload bytes.
        key: Partition key.
        topic: The due topic.
        timer_id: Identifier shared by all copies of a timer.
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
    """The columns of a history that a user names. A column that is None is looked up under its usual name; times also
    under that name with another unit's ending, or without an ending: ``publish_s``, ``delay_minutes``, ``due``.

    Args:
        publish: Send time; usually ``publish_ms``.
        due: Due time; usually ``due_ms``. Give this or ``delay``, not both: only the given column is used. If neither
            is given and the history has both, the due time is used, and rows with a contradicting delay are rejected.
        delay: Time from the send to the due time; usually ``delay_ms``.
        size: Payload bytes; usually ``size_bytes``; without it sizes are unknown.
        key: Partition key; usually ``key``; without it timers have no key.
        topic: The due topic; usually ``topic``; without it all timers belong to a single topic.
        timer_id: Identifier shared by all copies of a timer, such as the copies that hops publish (our ``tw-id``);
            usually ``timer_id``. Of rows with the same identifier only the first sent is used. Without it every row is
            a timer. It costs a shuffle of the history.
        time_unit: Unit of numbers in ``publish`` and ``due`` since 1970, also in text. ``auto``: the unit at the end of
            the column's name, else the only unit in which the numbers are times of this century; timestamps need no
            unit, and other text is parsed as ISO 8601 (in the session's time zone if it has no zone).
        delay_unit: Unit of numbers in ``delay``. ``auto``: the unit at the end of the column's name; intervals need no
            unit.
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
        """Resolve the mapping against a history's columns.

        Args:
            existing: The history's columns.

        Raises:
            MissingColumn: A named column, or the publish time, is missing.
            BadColumnMapping: Both the due time and the delay are missing, or two columns have the same meaning.
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
