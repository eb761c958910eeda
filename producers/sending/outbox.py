"""Handing messages to the client several at a time, while it is busy.

Every call into the client lets go of Python's interpreter lock, and while sends are under way the client's own thread
waits for that lock to report results. If each message is prepared, then handed over, then the next prepared, the lock
changes hands twice per message, which costs more than all that a send does in Python. Prepared one by one and handed
over together, it changes hands a few times for many.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from timewheel.core.clock import Clock

__all__ = ["BUSY_FROM", "TOGETHER", "Outbox"]

TOGETHER = 128
"""Messages handed over together; prepared one after another that is about a millisecond."""
BUSY_FROM = 2 * TOGETHER
"""Sends under way from which on messages wait for each other. Fewer, and each is handed over at once."""
MAX_WAIT_MS = 5
"""Longer than this no message waits for others while the broker answers: a slow stream of sends over a slow broker."""


class Starts(Protocol):
    """What stands for one send that is ready to be handed over."""

    def start(self) -> None:
        """Hand it over."""
        ...


S = TypeVar("S", bound=Starts)


class Outbox(Generic[S]):
    """Holds ready messages back while the client is busy; safe to use from several threads.

    Nothing is ever stuck in it: `put` keeps a message back only while `BUSY_FROM` sends have not ended. Fewer than
    `TOGETHER` of them can be in here, so others are under way, and whoever ends those says so by `some_ended`.

    Args:
        under_way: How many sends have begun and not ended, those in here included.
        refused: Told of a send that the client's own code would not take, with what it raised.
        clock: Tells how long messages have waited.
    """

    __slots__ = ("_handing_over", "_monotonic_ms", "_ready", "_refused", "_since_ms", "_under_way")

    def __init__(self, under_way: Callable[[], int], refused: Callable[[S, Exception], None], clock: Clock) -> None:
        self._under_way = under_way
        self._refused = refused
        self._monotonic_ms = clock.monotonic_ms  # bound once: asked for on the way of every few messages
        self._ready: deque[S] = deque()
        self._handing_over = threading.Lock()
        self._since_ms = 0

    def put(self, send: S) -> None:
        """Hand it over soon: with others if the client is busy, else now."""
        if not self._ready:
            self._since_ms = self._monotonic_ms()
        self._ready.append(send)
        # In this order: what ends after this look finds what was put before it.
        if len(self._ready) >= TOGETHER or self._under_way() < BUSY_FROM:
            self.hand_over()

    def some_ended(self) -> None:
        """Call after sends have ended: what is ready is handed over, unless more will end, and soon."""
        if self._ready and (self._under_way() < BUSY_FROM or self._monotonic_ms() - self._since_ms > MAX_WAIT_MS):
            self.hand_over()

    def hand_over(self) -> None:
        """Hand over all that is ready, in the order in which it was put.

        One thread does it at a time, else two could overtake each other between taking a message and handing it over.
        Whoever finds another one at it leaves: that one looks again before it goes.
        """
        while self._ready and self._handing_over.acquire(blocking=False):
            try:
                self._hand_over_ready()
            finally:
                self._handing_over.release()

    def _hand_over_ready(self) -> None:
        ready = self._ready
        while ready:
            send = ready.popleft()
            try:
                send.start()
            except Exception as error:  # noqa: BLE001 - the client has kinds of its own; the sender is told
                self._refused(send, error)
            except BaseException:
                # Interrupted, perhaps after it was taken: twice under one timer id is safe, never is not.
                ready.appendleft(send)
                raise
