"""Waiting for a condition that can only be polled: a bounded poll, instead of a sleep of a guessed length."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_POLL_S = 0.05


def eventually(
    fn: Callable[[], T | None],
    timeout: float | dt.timedelta = DEFAULT_TIMEOUT_S,
    *,
    poll: float = DEFAULT_POLL_S,
    message: str = "",
) -> T:
    """Call `fn` until it returns a true value, and return that value.

    `fn` may also check with `assert`: an AssertionError means "not yet", any other exception passes through at once.
    None means "not yet" too, so a function that only asserts ends with `return True`.

    Args:
        fn: The condition; called at least once, and once more after the time is up.
        timeout: Until then it must be true; a number is seconds.
        poll: Seconds between two calls.
        message: Description of the condition, for the error.

    Raises:
        AssertionError: It did not become true; the last AssertionError of `fn` if it raised any.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else timeout
    deadline = time.monotonic() + seconds
    while True:
        last_call = time.monotonic() >= deadline
        try:
            value = fn()
        except AssertionError:
            if last_call:
                raise
        else:
            if value:
                return value
            if last_call:
                raise AssertionError(f"still {value!r} after {seconds} s" + (f": {message}" if message else ""))
        time.sleep(poll)
