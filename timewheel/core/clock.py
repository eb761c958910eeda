"""Time as a parameter.

timewheel reads the system's clock, and waits for time to pass, only through a `Clock` that the caller passes in:
tests and simulations pass a clock that moves only by command. A clock has two readings, because they fail differently:
``now_ms`` may jump (an operator sets the clock); ``monotonic_ms`` never goes back and has no meaning by itself. It has
three waits, because three things end a wait: a notice, an item on a queue, the end of a thread. All other waits are
built from these. A thread that also looks around at intervals, for what nobody announces, says so by `Clock.idle_ms`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Clock(Protocol):
    """Source of time, with the ways to wait for it."""

    def now_ms(self) -> int:
        """Return UTC milliseconds since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back; for durations and deadlines only."""
        ...

    def idle_ms(self, left_ms: int | None, look_ms: int) -> int:
        """Return a time-out of a wait for ``left_ms`` (None: for ever) that looks around after ``look_ms``: the lesser.

        A virtual clock keeps both: a look alone lets no time pass.
        """
        ...

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        """Wait on a condition that the caller holds, for at most ``timeout_ms`` of this clock's time.

        Returns:
            False if the time passed before a notice. Spurious wake-ups are allowed.
        """
        ...

    def get(self, queue: SimpleQueue[T], timeout_ms: int) -> T:
        """Take the first item of a queue, waiting for at most ``timeout_ms`` of this clock's time.

        The queue is faster than a condition on paths that every message takes: `SimpleQueue` runs no Python code.

        Raises:
            queue.Empty: The time passed before an item came.
        """
        ...

    def join(self, thread: threading.Thread, timeout_ms: int) -> bool:
        """Wait for the end of a started thread, for at most ``timeout_ms`` of this clock's time.

        Returns:
            False if the thread still runs.
        """
        ...


class SystemClock:
    """The operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def idle_ms(self, left_ms: int | None, look_ms: int) -> int:
        return look_ms if left_ms is None or look_ms < left_ms else left_ms

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        return condition.wait(max(timeout_ms, 0) / 1000)

    def get(self, queue: SimpleQueue[T], timeout_ms: int) -> T:
        return queue.get(timeout=max(timeout_ms, 0) / 1000)

    def join(self, thread: threading.Thread, timeout_ms: int) -> bool:
        thread.join(max(timeout_ms, 0) / 1000)
        return not thread.is_alive()


def wait_until(clock: Clock, condition: threading.Condition, reached: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait on a condition that the caller holds until ``reached()``; False: ``timeout_ms`` passed before."""
    if reached():
        return True
    deadline_ms, left_ms = clock.monotonic_ms() + timeout_ms, timeout_ms
    while left_ms > 0:
        clock.wait(condition, left_ms)
        if reached():
            return True
        left_ms = deadline_ms - clock.monotonic_ms()
    return False


def pause(clock: Clock, duration_ms: int) -> None:
    """Wait until this much of the clock's time has passed."""
    nothing = threading.Condition()
    with nothing:
        wait_until(clock, nothing, lambda: False, duration_ms)
