"""What a command does at Ctrl-C, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Stopped", "call_at_end", "call_at_hangup", "stop_at_end"]

ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The command was asked to end.

    A kind of its own, since Python marks the process as interrupted when a plain KeyboardInterrupt passes through code
    that was compiled from a string (as the making of a dataclass is), and then ends with -SIGINT though it was caught.
    """


def call_at_end(told: Callable[[], None]) -> None:
    """Call this in the main thread, between any two of its steps, when the process is asked to end."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        told()

    for number in ASKED_TO_END:
        signal.signal(number, end)


def call_at_hangup(told: Callable[[], None] = lambda: None) -> None:
    """Call this in the main thread at SIGHUP, which by itself ends a process.

    Args:
        told: By itself nothing: until there is something to read again.
    """

    def hang_up(number: int, frame: FrameType | None) -> None:
        del number, frame
        told()

    signal.signal(signal.SIGHUP, hang_up)


def stop_at_end(told: Callable[[], None] = lambda: None) -> None:
    """Call this and raise `Stopped`, which leaves the `with` blocks of the command."""

    def stop() -> NoReturn:
        told()
        raise Stopped

    call_at_end(stop)
