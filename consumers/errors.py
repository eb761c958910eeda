"""Errors of a consumer: refused arguments, and a receive that found no timer."""

from __future__ import annotations

import pulsar

from timewheel.core.errors import TimewheelError

__all__ = ["ReceiveTimeout", "SubscribeRefused"]


class ReceiveTimeout(TimewheelError, pulsar.Timeout, TimeoutError):  # type: ignore[misc]  # pulsar ships no types
    """No timer was due before the timeout.

    A subclass of pulsar-client's `pulsar.Timeout` and of Python's `TimeoutError`, so that code written for either
    continues to work.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(f"no timer was due within {timeout_ms} ms")


class SubscribeRefused(TimewheelError, ValueError):
    """The arguments of a consumer cannot be honoured; no subscription was made.

    Attributes:
        argument: Name of the argument.
        value: The refused value.
    """

    def __init__(self, argument: str, value: object, reason: str) -> None:
        self.argument = argument
        self.value = value
        self.reason = reason
        super().__init__(f"{argument} = {value!r}: {reason}")
