"""What a consumer refuses, and how a receive that found nothing ends."""

from __future__ import annotations

import pulsar

from timewheel.core.errors import TimewheelError

__all__ = ["ReceiveTimeout", "SubscribeRefused"]


class ReceiveTimeout(TimewheelError, pulsar.Timeout, TimeoutError):  # type: ignore[misc]  # pulsar ships no types
    """Nothing was due before the time-out.

    It is what pulsar-client raises (`pulsar.Timeout`) and what Python raises (`TimeoutError`), so that code written for
    either goes on working.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(f"no timer was due within {timeout_ms} ms")


class SubscribeRefused(TimewheelError, ValueError):
    """The arguments of a consumer cannot be honoured; nothing was subscribed.

    Attributes:
        argument: Its name.
        value: What was given.
    """

    def __init__(self, argument: str, value: object, reason: str) -> None:
        self.argument = argument
        self.value = value
        self.reason = reason
        super().__init__(f"{argument} = {value!r}: {reason}")
