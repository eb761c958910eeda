"""Time as a parameter.

Nothing in timewheel reads the system's clock but through a `Clock` that was handed in: tests and simulations hand
in one that moves only when told to. Two readings, because they fail differently: ``now_ms`` may jump (an operator
sets the clock), ``monotonic_ms`` never goes back and means nothing by itself.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol, runtime_checkable

__all__ = ["Clock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """Where the shells get time from, and how they wait for it."""

    def now_ms(self) -> int:
        """UTC milliseconds since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; for durations and deadlines only."""
        ...

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        """Wait on a condition that the caller holds, for at most ``timeout_ms`` of this clock's time.

        Returns:
            False if the time passed first. Spurious wake-ups are allowed.
        """
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        return condition.wait(max(timeout_ms, 0) / 1000)
