"""Clocks that tests move: no code waits for real time to pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

from timewheel.testing import eventually

T = TypeVar("T")

LOOK_S = 0.001
"""Interval at which a wait on a queue or a thread checks whether the clock was moved: neither can be notified."""


class ManualClock:
    """Stands still until `advance`; for code that waits on its own threads.

    Attributes:
        waits_ms: Timeout of each wait, in the order in which the waits began.
        ahead_ms: How far the wall clock is ahead of the monotonic clock: change it, and the wall clock jumps.
    """

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, threading.Condition | None]] = []
        self.waits_ms: list[int] = []
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._now_ms + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def idle_ms(self, left_ms: int | None, look_ms: int) -> int:
        return look_ms if left_ms is None else min(left_ms, look_ms)

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        with self._registered(timeout_ms, condition) as deadline_ms:
            # `advance` notifies under the condition's lock, which this thread holds until its wait releases it.
            if self._now_ms < deadline_ms:
                condition.wait()
            return self._now_ms < deadline_ms

    def get(self, queue: SimpleQueue[T], timeout_ms: int) -> T:
        with self._registered(timeout_ms) as deadline_ms:
            while self._now_ms < deadline_ms:
                try:
                    return queue.get(timeout=LOOK_S)
                except Empty:
                    continue
        return queue.get_nowait()

    def join(self, thread: threading.Thread, timeout_ms: int) -> bool:
        with self._registered(timeout_ms) as deadline_ms:
            while thread.is_alive() and self._now_ms < deadline_ms:
                thread.join(LOOK_S)
        return not thread.is_alive()

    def advance(self, duration_ms: int) -> None:
        """Let time pass, and end the waits whose deadline is reached. Call it without holding a condition."""
        with self._lock:
            self._now_ms += duration_ms
            over = [condition for deadline_ms, condition in self._waiting if deadline_ms <= self._now_ms]
        for condition in over:
            if condition is not None:
                with condition:
                    condition.notify_all()

    def await_wait(self, left_ms: int) -> None:
        """Return once a thread waits for exactly this time from now: an `advance` before that would be missed."""
        eventually(lambda: left_ms in self.left_ms, poll=LOOK_S, message=f"a wait of {left_ms} ms in {self.left_ms}")

    @property
    def left_ms(self) -> list[int]:
        """Remaining time of each current wait."""
        with self._lock:
            return [deadline_ms - self._now_ms for deadline_ms, _ in self._waiting]

    @contextmanager
    def _registered(self, timeout_ms: int, condition: threading.Condition | None = None) -> Iterator[int]:
        with self._lock:
            deadline_ms = self._now_ms + timeout_ms
            entry = (deadline_ms, condition)
            self._waiting.append(entry)
            self.waits_ms.append(timeout_ms)
        try:
            yield deadline_ms
        finally:
            with self._lock:
                self._waiting.remove(entry)


class LeapingClock(ManualClock):
    """Leaps to the end of every wait at once, as if no event ever happened in between; for code on one thread."""

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:  # noqa: ARG002 - no thread notifies
        self.waits_ms.append(timeout_ms)
        self.advance(timeout_ms)
        return False
