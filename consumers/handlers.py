"""Calling a user's handler, plain or ``async def``, from a worker thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from timewheel.consumers.message import DelayedMessage
from timewheel.core.clock import Clock

Handler = Callable[[DelayedMessage], Any] | Callable[[DelayedMessage], Awaitable[Any]]
"""Handles a timer: returning acknowledges the timer, raising has it delivered again."""

JOIN_TIMEOUT_MS = 5_000


class HandlerCalls:
    """Calls a handler and waits for it. All awaitables that it returns run on one event loop, in its own thread."""

    def __init__(self, handler: Handler, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock
        self._starting = threading.Lock()
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._has_ended = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        # Only handlers that missed the drain's deadline still run.
        asyncio.run_coroutine_threadsafe(_cancel_others_and_stop(), loop)
        # A handler that swallows its cancellation is left behind, with the thread, which is a daemon.
        self._clock.join(thread, JOIN_TIMEOUT_MS)

    def __call__(self, message: DelayedMessage) -> None:
        """Run the handler to its end, and raise the handler's exception."""
        result = self._handler(message)
        # By the result, not by the handler: a decorator or a lambda around an async def looks like a plain function.
        if inspect.isawaitable(result):
            loop = self._running_loop()
            asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._has_ended:
                raise RuntimeError("the run has ended: a handler that begins now is not waited for")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_to_its_end, args=(self._loop,), name="timewheel-handlers", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_to_its_end(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _awaited(result: Awaitable[Any]) -> None:
    await result


async def _cancel_others_and_stop() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    asyncio.get_running_loop().stop()
