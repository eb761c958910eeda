"""Arguments of a consumer, looked at once."""

from __future__ import annotations

import datetime as dt

from timewheel.consumers.errors import SubscribeRefused

__all__ = ["check_count", "timeout_ms_of"]


def timeout_ms_of(timeout: dt.timedelta | None, timeout_millis: int | None) -> int | None:
    """A time-out under either of its names, in milliseconds; None: there is none."""
    if timeout is not None and timeout_millis is not None:
        raise TypeError("give timeout or timeout_millis, not both")
    if timeout is None:
        return timeout_millis
    return max(round(timeout / dt.timedelta(milliseconds=1)), 0)


def check_count(argument: str, value: object, most: int) -> None:
    """Refuse what is no whole number from 1 to ``most``.

    Raises:
        SubscribeRefused: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SubscribeRefused(argument, value, f"a whole number from 1 to {most}")
