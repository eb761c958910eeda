"""Waiting for something that can only be asked for: a bounded poll, instead of a sleep that hopes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_POLL_S = 0.05


def eventually(
    fn: Callable[[], T],
    timeout: float = DEFAULT_TIMEOUT_S,
    *,
    poll: float = DEFAULT_POLL_S,
    message: str | None = None,
) -> T:
    """Call `fn` until it returns something true without an `AssertionError`, and return that.

    `fn` may check with `assert`; a function that only asserts and returns None counts as true. After `timeout` seconds
    its last AssertionError is raised, or a new one with the last value and `message`. Other exceptions pass through.
    """
    deadline = time.monotonic() + timeout
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            value = fn()
            if value or value is None:
                return value
        except AssertionError as error:
            failure = error
        if time.monotonic() >= deadline:
            if failure is not None:
                raise failure
            raise AssertionError(f"still {value!r} after {timeout} s" + (f": {message}" if message else ""))
        time.sleep(poll)
