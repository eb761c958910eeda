"""HandoffQueue: hands messages over to the client together, while the client is busy.

Every call into the client releases Python's interpreter lock, and while sends are pending the client's own thread waits
for that lock to report results. If messages are prepared and handed over individually, the lock changes hands twice per
message, which costs more than the rest of a send in Python. If messages are handed over together, the lock changes
hands a few times for many messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from timewheel.core.clock import Clock

TOGETHER = 128
"""Messages handed over together; preparing that many takes about a millisecond."""
BUSY_FROM = 2 * TOGETHER
"""Pending sends from which on messages wait for each other. With fewer, each message is handed over at once."""
MAX_WAIT_MS = 5
"""Longest wait of a message for other messages while the broker answers: a slow stream of sends over a slow broker."""


class Starts(Protocol):
    """Send that is ready to be handed over."""

    def start(self) -> None:
        """Hand the message over."""
        ...


S = TypeVar("S", bound=Starts)


class HandoffQueue(Generic[S]):
    """Holds ready messages back while the client is busy. Thread-safe.

    No message is ever stuck: `put` keeps a message back only while `BUSY_FROM` sends are pending. Fewer than `TOGETHER`
    of them are in the outbox, so other sends are with the client, and the thread that ends them calls `some_ended`.

    Args:
        under_way: Returns the number of pending sends, including those in the outbox.
        refused: Called with a send that the client's code refused, and with the exception.
        clock: Clock for the time that messages have waited.
    """

    __slots__ = ("_handing_over", "_monotonic_ms", "_ready", "_refused", "_since_ms", "_under_way")

    def __init__(self, under_way: Callable[[], int], refused: Callable[[S, Exception], None], clock: Clock) -> None:
        self._under_way = under_way
        self._refused = refused
        self._monotonic_ms = clock.monotonic_ms  # bound once: called for every few messages
        self._ready: deque[S] = deque()
        self._handing_over = threading.Lock()
        self._since_ms = 0

    def put(self, send: S) -> None:
        """Hand a message over soon: together with others if the client is busy, otherwise now."""
        if not self._ready:
            self._since_ms = self._monotonic_ms()
        self._ready.append(send)
        # In this order: sends that end after the check find every message that was put before it.
        if len(self._ready) >= TOGETHER or self._under_way() < BUSY_FROM:
            self.hand_over()

    def some_ended(self) -> None:
        """Hand over ready messages, unless more sends will end, and soon. Call this after sends have ended."""
        if self._ready and (self._under_way() < BUSY_FROM or self._monotonic_ms() - self._since_ms > MAX_WAIT_MS):
            self.hand_over()

    def hand_over(self) -> None:
        """Hand over all ready messages, in the order in which they were put.

        A single thread does it at a time, else a thread could overtake another between taking a message and handing it
        over. A second thread leaves at once: the first thread checks for new messages before it ends.
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
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; the sender gets them
                self._refused(send, error)
            except BaseException:
                # Interrupted, perhaps after the handover: twice under one timer id is safe, never is not.
                ready.appendleft(send)
                raise
