"""Errors of a consumer, and the checks of arguments that raise them."""

from __future__ import annotations

import datetime as dt

import pulsar

from timewheel.core.errors import TimewheelError, says

__all__ = ["ReceiveTimeout", "SubscribeRefused"]


@says("no timer was due within {timeout_ms} ms")
class ReceiveTimeout(TimewheelError, pulsar.Timeout, TimeoutError):  # type: ignore[misc]  # pulsar ships no types
    """No timer was due before the timeout.

    A subclass of pulsar-client's `pulsar.Timeout` and of Python's `TimeoutError`, so that code written for either
    continues to work.
    """

    timeout_ms: int


@says("{argument} = {value!r}: {reason}")
class SubscribeRefused(TimewheelError, ValueError):
    """The arguments of a consumer cannot be honoured; no subscription was made."""

    argument: str
    """Name of the argument."""
    value: object
    """The refused value."""
    reason: str


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
    """Refuse a number where a duration is needed: a bare number has no unit, so it may be seconds or milliseconds."""
    if not isinstance(value, dt.timedelta):
        also = f"; {otherwise}" if otherwise else ""
        raise TypeError(f"{argument} = {value!r}: a timedelta is needed, such as timedelta(seconds=5){also}")


def check_count(argument: str, value: object, most: int) -> None:
    """Refuse a value that is no whole number from 1 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SubscribeRefused(argument, value, f"a whole number from 1 to {most}")
