"""Makes signals work in child processes, regardless of how the tests were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def _pass(number: int, frame: object) -> None:
    """Do nothing. Children reset a handled signal to its default, but inherit an ignored signal."""
    del number, frame


@contextmanager
def heeding(*numbers: signal.Signals) -> Iterator[None]:
    """Enable these signals in this process and in its new child processes; SIGINT acts like Ctrl-C.

    A shell without job control starts background processes with SIGINT ignored, `nohup` with SIGHUP ignored, and a
    child inherits this from its parent.
    """
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _pass)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
