"""Event loops of asyncio in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any

from timewheel.testing.virtual.clock import IdleSeconds
from timewheel.testing.virtual.scheduler import S, Scheduler


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose calls at a later time are of virtual time; of those that only look around it knows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._looks: set[asyncio.TimerHandle] = set()
        super().__init__(_VirtualSelector(self, scheduler))

    def call_later(  # type: ignore[override] # mypy has no name for the types of *args
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_later(delay, callback, *args, context=context)
        if isinstance(delay, IdleSeconds):
            self._looks = {look for look in self._looks if not look.cancelled() and look.when() > self.time()}
            self._looks.add(handle)
        return handle

    def waits_ns(self) -> tuple[int | None, int | None]:
        """Return the times until the next call, and until the next that only looks around; None: there is none."""
        now_s = self.time()
        waiting = [handle for handle in vars(self)["_scheduled"] if not handle.cancelled()]
        calls = [handle.when() for handle in waiting if handle not in self._looks]
        looks = [handle.when() for handle in waiting if handle in self._looks]
        return _left_ns(calls, now_s), _left_ns(looks, now_s)


def _left_ns(at_s: list[float], now_s: float) -> int | None:
    return max(round((min(at_s) - now_s) * S), 0) if at_s else None


class _VirtualSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop, scheduler: Scheduler) -> None:
        super().__init__()
        self._loop = loop
        self._scheduler = scheduler

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or not self._scheduler.is_mine:
            return ready or super().select(timeout)
        if timeout is not None and timeout <= 0:
            self._scheduler.yield_turn()
        else:
            self._scheduler.wait(self._goes_on, *self._loop.waits_ns())
        return super().select(0)

    def _goes_on(self) -> bool:
        return not super().select(0)
