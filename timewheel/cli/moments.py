"""Points in time, in options and in output."""

from __future__ import annotations

import datetime as dt
import re

import typer

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.envelope import unit_mistake

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIME = re.compile(r".+[T ]\d\d(:?\d\d)?(:?\d\d)?(?:[.,](\d+))?(?:Z|[+-][\d:.]+)?", re.ASCII)
_NUMBER = re.compile(r"\d{9,30}", re.ASCII)


def moment_ms(text: str | None, option: str) -> int | None:
    """Parse UTC milliseconds, or ISO 8601, which is UTC if it has no offset, to UTC milliseconds. None stays None."""
    if text is None:
        return None
    try:
        at_ms = int(text) if _NUMBER.fullmatch(text) else _iso_ms(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither like 2026-11-23T08:00:00Z nor milliseconds since 1970", param_hint=option
        ) from None
    if (mistake := unit_mistake(at_ms)) is not None:
        raise typer.BadParameter(f"{text!r} is {mistake}", param_hint=option)
    return at_ms


def _iso_ms(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def precision_ms(text: str | None) -> int:
    """Return the length of time that a point in time as `moment_ms` parses it stands for: ``...T08:00Z`` is a minute."""
    if text is None or _NUMBER.fullmatch(text):
        return 1
    if (time := _TIME.fullmatch(text)) is None:
        return DAY_MS
    minutes, seconds, fraction = time.groups(default="")
    if fraction:
        return int(SECOND_MS // 10 ** min(len(fraction), 3))
    return SECOND_MS if seconds else MINUTE_MS if minutes else HOUR_MS


def at_second(at_ms: int) -> str:
    """Format a point in time for people, in UTC."""
    return f"{_EPOCH + dt.timedelta(milliseconds=at_ms):%Y-%m-%d %H:%M:%S}"


def at(at_ms: int) -> str:
    """Format a point in time to the millisecond, in a form that options accept."""
    moment = _EPOCH + dt.timedelta(milliseconds=at_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03d}Z"
