"""Starts expensive resources that the tests of a lane share, and ends them with the lane, not with the run.

An idle broker still uses a fortieth of a core, and a run has a dozen brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

T = TypeVar("T")


class Kept:
    """Starts each resource once, and ends all of them together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """Return the resource of this name, started by ``make`` on the first call."""
        if name not in self._started:
            self._started[name] = self._stack.enter_context(make())
        found: T = self._started[name]
        return found

    def close(self) -> None:
        """End all resources; later calls of `get` start new ones."""
        self._started.clear()
        self._stack.close()
