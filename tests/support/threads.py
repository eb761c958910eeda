"""The threads that a test starts, apart from those that other tests of its process have left."""

from __future__ import annotations

import threading


class StartedThreads:
    """The living threads that were started since this was made."""

    def __init__(self, prefix: str = "timewheel") -> None:
        self._prefix = prefix
        self._before = frozenset(threading.enumerate())

    def names(self) -> list[str]:
        """Return the sorted names of those that live."""
        alive = frozenset(threading.enumerate()) - self._before
        return sorted(one.name for one in alive if one.name.startswith(self._prefix))
