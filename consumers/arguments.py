"""Validation of a consumer's arguments."""

from __future__ import annotations

import datetime as dt

from timewheel.consumers.errors import SubscribeRefused

_MILLISECOND = dt.timedelta(milliseconds=1)


def timeout_ms_of(timeout: dt.timedelta | None, timeout_millis: int | None) -> int | None:
    """Return a timeout, given under either of its two names, in milliseconds; None if there is no timeout."""
    if timeout is not None and timeout_millis is not None:
        raise TypeError("give timeout or timeout_millis, not both")
    if timeout is not None:
        check_duration("timeout", timeout, "a number of milliseconds is timeout_millis=")
        return max(round(timeout / _MILLISECOND), 0)
    if timeout_millis is not None and not isinstance(timeout_millis, int):
        raise TypeError(f"timeout_millis = {timeout_millis!r}: a whole number is needed; a timedelta is timeout=")
    return timeout_millis


def check_duration(argument: str, value: object, otherwise: str = "") -> None:
    """Refuse a number where a duration is needed: a bare number has no unit, so it may be seconds or milliseconds.

    Args:
        argument: Name of the argument.
        value: The value as given.
        otherwise: A clause that names another way to give the value.

    Raises:
        TypeError: The value is no timedelta.
    """
    if not isinstance(value, dt.timedelta):
        also = f"; {otherwise}" if otherwise else ""
        raise TypeError(f"{argument} = {value!r}: a timedelta is needed, such as timedelta(seconds=5){also}")


def check_count(argument: str, value: object, most: int) -> None:
    """Refuse a value that is no whole number from 1 to ``most``.

    Raises:
        SubscribeRefused: The value is out of range or no whole number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SubscribeRefused(argument, value, f"a whole number from 1 to {most}")
