"""The thread on which finished sends are handled and users' callbacks run.

A Python callback that raises inside the client's own thread ends the process, and one that is slow there stops every
send of the client. So the client's thread only puts what is finished on a queue, and this thread does the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from timewheel.events import ProducerDispatcherFailed
from timewheel.wire.hooks import Hooks

__all__ = ["Dispatcher"]

T = TypeVar("T")

LINGER_S = 0.003
"""Pause between two looks at a busy queue: it fills meanwhile, instead of waking this thread for each item."""
MAX_AT_ONCE = 256
"""Items handled in one go: what is done once for all of them waits for the slowest."""
BUSY_S = 0.006
"""A queue is busy if something was on it twice within this time."""


class Dispatcher(Generic[T]):
    """Hands what is put to ``handle``, in order, on a thread of its own.

    Args:
        handle: Takes what is on the queue, at most `MAX_AT_ONCE`; an exception of it is reported and stops nothing.
        housekeeping: Called about every ``housekeeping_s`` seconds on the same thread.
        housekeeping_s: Seconds.
        hooks: Told of exceptions.
    """

    __slots__ = (
        "_handle",
        "_hooks",
        "_housekeeping",
        "_housekeeping_s",
        "_hurry",
        "_queue",
        "_stopping",
        "_thread",
        "put",
    )

    def __init__(
        self, handle: Callable[[list[T]], None], housekeeping: Callable[[], None], housekeeping_s: float, hooks: Hooks
    ) -> None:
        self._handle = handle
        self._housekeeping = housekeeping
        self._housekeeping_s = housekeeping_s
        self._hooks = hooks
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._hurry: SimpleQueue[None] = SimpleQueue()
        self.put: Callable[[T], None] = self._queue.put
        """Hand one over; never blocks, never raises."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="timewheel-producer", daemon=True)

    def put_urgent(self, item: T) -> None:
        """Hand one over for which a caller waits; never blocks, never raises."""
        self._queue.put(item)
        self._hurry.put(None)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def is_current_thread(self) -> bool:
        """Whether the caller runs on this dispatcher's thread, inside a user's callback for instance."""
        return threading.current_thread() is self._thread

    def stop(self, timeout_s: float) -> bool:
        """Handle what is on the queue, then end the thread.

        Returns:
            False if it still runs after ``timeout_s`` seconds; it ends by itself when it is through.
        """
        self._stopping = True
        self._queue.put(None)
        self._hurry.put(None)
        self._thread.join(max(timeout_s, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        before_s = time.monotonic()
        next_round_s = before_s + self._housekeeping_s
        while True:
            self._forget_hurry()
            self._handle_all(max(next_round_s - before_s, 0))
            if self._stopping and self._queue.empty():
                return
            now_s = time.monotonic()
            if now_s >= next_round_s:
                self._guarded(self._housekeeping)
                next_round_s = now_s + self._housekeeping_s
            if now_s - before_s < BUSY_S:
                with suppress(Empty):
                    self._hurry.get(timeout=LINGER_S)
            before_s = now_s

    def _handle_all(self, timeout_s: float) -> None:
        """Wait for the first, then take what is there."""
        items: list[T] = []
        with suppress(Empty):
            item = self._queue.get(timeout=timeout_s)
            while True:
                if item is not None:
                    items.append(item)
                if len(items) >= MAX_AT_ONCE:
                    break
                item = self._queue.get_nowait()
        if items:
            self._guarded(self._handle, items)

    def _forget_hurry(self) -> None:
        # Whoever is in a hurry put its item on the queue first, so the next look at the queue finds it.
        with suppress(Empty):
            while True:
                self._hurry.get_nowait()

    def _guarded(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - one failure must not end the thread that finishes all sends
            self._hooks.emit(ProducerDispatcherFailed(error=repr(error)))
