"""SIGTERM and SIGINT end a run in order, unless the service has handlers of its own for them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)
NOBODYS = (signal.SIG_DFL, signal.default_int_handler)
"""The default handlers of a process."""


def _is_nobodys(handler: Any) -> bool:
    # Nor has a service its own handler in `asyncio.run`, which handles SIGINT by cancelling.
    is_asyncios = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
    return handler in NOBODYS or is_asyncios


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within this context, the first SIGTERM or SIGINT calls ``stop``, and a second has its previous effect.

    Only on the main thread, as Python demands; and only for a signal without a handler of the service's own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def give_back() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        give_back()
        stop()

    for number in ASKED_TO_END:
        handler = signal.getsignal(number)
        if _is_nobodys(handler):
            before[number] = handler
            signal.signal(number, end)
    try:
        yield
    finally:
        give_back()
