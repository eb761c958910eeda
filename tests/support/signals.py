"""Signals that reach whom they are sent to, however the tests themselves were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heeding"]


def _pass(number: int, frame: object) -> None:
    """Nothing; but what a process handles is at its default in its children, and what it ignores is ignored there."""
    del number, frame


@contextmanager
def heeding(*numbers: signal.Signals) -> Iterator[None]:
    """Have these signals work in this process and in those that it starts meanwhile; SIGINT as Ctrl-C does.

    A shell without job control starts what it puts into the background deaf to SIGINT, `nohup` deaf to SIGHUP, and a
    child is as deaf as its parent.
    """
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _pass)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
