"""Brings timers from the receiving thread to an event loop: a bounded hand-over, with at most one wake-up under way."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.receiving.receiver import SLICE_MS, Receiver
from timewheel.core.clock import Clock

MAX_WAITING = 256
"""Due timers that the loop has not taken yet; more wait in the engine and in the broker."""
JOIN_TIMEOUT_MS = 5_000


class Feed:
    """A queue from the receiving thread to the coroutines of a loop.

    A waiter takes a timer only when it resumes, so that a cancelled waiter takes no timer along.

    Args:
        receiver: Source of due timers.
        loop: The loop whose coroutines take the timers.
        clock: The consumer's clock.
        is_stopping: Whether the feed shall end.
    """

    def __init__(
        self, receiver: Receiver, loop: asyncio.AbstractEventLoop, clock: Clock, is_stopping: Callable[[], bool]
    ) -> None:
        self._receiver = receiver
        self._loop = loop
        self._clock = clock
        self._is_stopping = is_stopping
        self._waiting: deque[InFlight] = deque()
        self._room = threading.Condition()
        self._arrived = asyncio.Event()
        self._waiters: set[asyncio.Event] = set()
        self._is_called = self._is_abandoned = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="timewheel-feed", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    async def next(self) -> InFlight | None:
        """Return the next due timer; None once the feed shall end.

        Raises:
            Exception: The error that ended receiving.
        """
        while not self._is_stopping():
            if self._waiting:
                return self._take()
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        return None

    async def until(self, reached: Callable[[], bool], changed: asyncio.Event) -> bool:
        """Wait until a condition is reached; return False once the feed has ended.

        Args:
            reached: The condition, checked each time the event is set.
            changed: The waiter's own event; also set here when the feed has ended.
        """
        self._waiters.add(changed)
        try:
            while not self._is_stopping():
                if reached():
                    return True
                changed.clear()
                await changed.wait()
        finally:
            self._waiters.discard(changed)
        return False

    def end(self) -> list[InFlight]:
        """Wait for the thread, which ends by itself; return the timers not taken. Blocks, so never on the loop."""
        if self._thread.ident is not None:
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _take(self) -> InFlight:
        timer = self._waiting.popleft()
        if len(self._waiting) == MAX_WAITING - 1:
            with self._room:
                self._room.notify()
        return timer

    def _run(self) -> None:
        try:
            while not self._is_stopping() and not self._is_abandoned:
                if len(self._waiting) >= MAX_WAITING:
                    with self._room:
                        self._clock.wait(self._room, SLICE_MS)
                    continue
                timer = self._receiver.next(SLICE_MS)
                if timer is not None:
                    self._waiting.append(timer)
                    self._call()
        except Exception as error:  # noqa: BLE001 - raised again where timers are taken
            self._failure = error
        self._call()

    def _call(self) -> None:
        """Wake the loop, unless a wake-up is under way: so that a burst costs a single wake-up."""
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._is_abandoned = True  # the loop is closed: the timers here go to others when the process ends

    def _wake(self) -> None:
        self._is_called = False
        self._arrived.set()
        for waiter in self._waiters:
            waiter.set()
