"""Dispatcher: the thread on which finished sends are handled and users' callbacks run.

A Python callback that raises on the client's own thread ends the process, and a slow callback there stops every send of
the client. So the client's thread only puts finished sends on a queue, and this thread does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.events import ProducerDispatcherFailed

T = TypeVar("T")

LINGER_MS = 3
"""Pause between two reads of a busy queue: it fills meanwhile, instead of waking this thread for each item."""
MAX_AT_ONCE = 256
"""Items handled together: work that is done once for all of them waits for the slowest."""
BUSY_MS = 6
"""Time within which two non-empty reads of a queue make it busy."""


class Dispatcher(Generic[T]):
    """Passes queued items to ``handle``, in order, on a thread of its own.

    Args:
        handle: Called with queued items, at most `MAX_AT_ONCE`; its exceptions are reported and stop nothing.
        housekeeping: Called about every ``housekeeping_ms`` on the same thread.
        housekeeping_ms: Milliseconds.
        clock: Clock for waits.
        hooks: Called with exceptions, as events.
    """

    __slots__ = (
        "_clock",
        "_handle",
        "_hooks",
        "_housekeeping",
        "_housekeeping_ms",
        "_hurry",
        "_queue",
        "_stopping",
        "_thread",
        "put",
    )

    def __init__(
        self,
        handle: Callable[[list[T]], None],
        housekeeping: Callable[[], None],
        housekeeping_ms: int,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self._handle = handle
        self._housekeeping = housekeeping
        self._housekeeping_ms = housekeeping_ms
        self._clock = clock
        self._hooks = hooks
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._hurry: SimpleQueue[None] = SimpleQueue()
        self.put: Callable[[T], None] = self._queue.put
        """Queue an item; never blocks, never raises."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="timewheel-producer", daemon=True)

    def put_urgent(self, item: T) -> None:
        """Queue an item for which a caller waits; never blocks, never raises."""
        self._queue.put(item)
        self._hurry.put(None)

    def start(self) -> None:
        """Start the thread; call this once."""
        self._thread.start()

    def is_current_thread(self) -> bool:
        """Return whether the caller runs on this dispatcher's thread, inside a user's callback for instance."""
        return threading.current_thread() is self._thread

    def stop(self, timeout_ms: int) -> bool:
        """Handle the queued items, then end the thread.

        Returns:
            False if the thread still runs after ``timeout_ms``; it ends by itself after the last item.
        """
        self._stopping = True
        self._queue.put(None)
        self._hurry.put(None)
        return self._clock.join(self._thread, timeout_ms)

    def _run(self) -> None:
        clock = self._clock
        before_ms = clock.monotonic_ms()
        next_round_ms = before_ms + self._housekeeping_ms
        while True:
            self._forget_hurry()
            self._handle_all(next_round_ms - before_ms)
            if self._stopping and self._queue.empty():
                return
            now_ms = clock.monotonic_ms()
            if now_ms >= next_round_ms:
                self._guarded(self._housekeeping)
                next_round_ms = now_ms + self._housekeeping_ms
            if now_ms - before_ms < BUSY_MS:
                with suppress(Empty):
                    clock.get(self._hurry, LINGER_MS)
            before_ms = now_ms

    def _handle_all(self, timeout_ms: int) -> None:
        """Wait for the first item, then handle all queued items."""
        items: list[T] = []
        with suppress(Empty):
            item = self._clock.get(self._queue, timeout_ms)
            while True:
                if item is not None:
                    items.append(item)
                if len(items) >= MAX_AT_ONCE:
                    break
                item = self._queue.get_nowait()
        if items:
            self._guarded(self._handle, items)

    def _forget_hurry(self) -> None:
        # Urgent items are queued before their hurry mark, so the next read of the queue finds them.
        with suppress(Empty):
            while True:
                self._hurry.get_nowait()

    def _guarded(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - one failure must not end the thread that finishes all sends
            self._hooks.emit(ProducerDispatcherFailed(error=repr(error)))
