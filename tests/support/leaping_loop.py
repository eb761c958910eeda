"""An event loop whose time leaps to the next scheduled call, instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from typing import Any

OPENING = "timewheel-producer-open"  # the threads on which producers are opened for an asyncio producer
LOOK_S = 0.001  # interval of checks whether a thread of the loop has finished; meanwhile the loop's time stands still


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its `time` is the sum of all waits that it skipped."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._on_threads = 0
        super().__init__(_LeapingSelector(self))

    def time(self) -> float:
        return self._time_s

    def leap(self, duration_s: float) -> None:
        """Skip a wait, unless a thread is at work for the loop."""
        if not self._on_threads and not any(thread.name == OPENING for thread in threading.enumerate()):
            self._time_s += duration_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._on_threads += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object) -> None:
        self._on_threads -= 1


class _LeapingSelector(selectors.DefaultSelector):
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self._leaping_loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(LOOK_S)
        if not ready:
            self._leaping_loop.leap(timeout)
        return ready
