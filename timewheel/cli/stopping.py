"""Signal handlers of commands: Ctrl-C, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Stopped", "call_at_end", "call_at_hangup", "stop_at_end"]

ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A request to end the command.

    It is a separate class because Python marks the process as interrupted when a plain KeyboardInterrupt passes through
    code that was compiled from a string (as when a dataclass is made), and then ends with -SIGINT although the
    exception was caught.
    """


def call_at_end(told: Callable[[], None]) -> None:
    """Call a function at SIGINT and SIGTERM, in the main thread, between any two bytecode instructions."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        told()

    for number in ASKED_TO_END:
        signal.signal(number, end)


def call_at_hangup(told: Callable[[], None] = lambda: None) -> None:
    """Call a function at SIGHUP, in the main thread; by default SIGHUP ends a process.

    Args:
        told: Does nothing by default, until there are files to read again.
    """

    def hang_up(number: int, frame: FrameType | None) -> None:
        del number, frame
        told()

    signal.signal(signal.SIGHUP, hang_up)


def stop_at_end(told: Callable[[], None] = lambda: None) -> None:
    """Call a function and raise `Stopped` at SIGINT and SIGTERM, which leaves the `with` blocks of the command."""

    def stop() -> NoReturn:
        told()
        raise Stopped

    call_at_end(stop)
