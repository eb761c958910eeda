"""Arguments of a consumer, looked at once."""

from __future__ import annotations

import datetime as dt

from timewheel.consumers.errors import SubscribeRefused

__all__ = ["check_count", "check_duration", "timeout_ms_of"]

_MILLISECOND = dt.timedelta(milliseconds=1)


def timeout_ms_of(timeout: dt.timedelta | None, timeout_millis: int | None) -> int | None:
    """A time-out under either of its names, in milliseconds; None: there is none."""
    if timeout is not None and timeout_millis is not None:
        raise TypeError("give timeout or timeout_millis, not both")
    if timeout is not None:
        check_duration("timeout", timeout, "a number of milliseconds is timeout_millis=")
        return max(round(timeout / _MILLISECOND), 0)
    if timeout_millis is not None and not isinstance(timeout_millis, int):
        raise TypeError(f"timeout_millis = {timeout_millis!r}: a whole number is needed; a timedelta is timeout=")
    return timeout_millis


def check_duration(argument: str, value: object, otherwise: str = "") -> None:
    """Refuse a number where a duration is needed: nothing says whether it is seconds or milliseconds.

    Args:
        argument: Its name.
        value: As given.
        otherwise: Where else it can be given, as a clause.

    Raises:
        TypeError: It is no timedelta.
    """
    if not isinstance(value, dt.timedelta):
        also = f"; {otherwise}" if otherwise else ""
        raise TypeError(f"{argument} = {value!r}: a timedelta is needed, such as timedelta(seconds=5){also}")


def check_count(argument: str, value: object, most: int) -> None:
    """Refuse what is no whole number from 1 to ``most``.

    Raises:
        SubscribeRefused: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SubscribeRefused(argument, value, f"a whole number from 1 to {most}")
