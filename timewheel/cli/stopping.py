"""Ctrl-C and SIGTERM as an exception that leaves the `with` blocks of a command."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Stopped", "stop_on"]


class Stopped(KeyboardInterrupt):
    """The command was asked to end.

    A kind of its own, since Python marks the process as interrupted when a plain KeyboardInterrupt passes through code
    that was compiled from a string (as the making of a dataclass is), and then ends with -SIGINT though it was caught.
    """


def stop_on(*numbers: signal.Signals, told: Callable[[], None] = lambda: None) -> None:
    """Raise `Stopped` in the main thread at each of these signals, after calling `told`."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        told()
        raise Stopped

    for number in numbers:
        signal.signal(number, end)
