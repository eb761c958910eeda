"""What is dear to start and shared by the tests of one lane: it ends with the lane, and not with the run.

A broker that nobody uses any more still takes a fortieth of a core, and a run has a dozen of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

__all__ = ["Kept"]

T = TypeVar("T")


class Kept:
    """Starts what it is asked for, once, and ends all of it together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """What has this name, started by ``make`` if it is not there yet."""
        if name not in self._started:
            self._started[name] = self._stack.enter_context(make())
        found: T = self._started[name]
        return found

    def close(self) -> None:
        """End all; what is asked for afterwards is started anew."""
        self._started.clear()
        self._stack.close()
