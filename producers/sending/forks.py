"""Whether this process is a fork of the one in which something was made.

The client's threads and connections stay in the parent: whoever goes on in the child waits for ever. Asking the
system for the process id at every send costs more than routing it, so forks are counted instead.
"""

from __future__ import annotations

import os
import threading

__all__ = ["ForkGuard"]


class _Forks:
    """Counts this process's ancestors since the first guard was made; the hook is installed then, not at import."""

    count = 0
    _installed = False
    _lock = threading.Lock()

    @classmethod
    def watch(cls) -> None:
        with cls._lock:
            if not cls._installed:
                cls._installed = True
                os.register_at_fork(after_in_child=cls._forked)

    @classmethod
    def _forked(cls) -> None:
        cls.count += 1


class ForkGuard:
    """Knows whether the process was forked since it was made."""

    __slots__ = ("_made_at",)

    def __init__(self) -> None:
        _Forks.watch()
        self._made_at = _Forks.count

    @property
    def is_child(self) -> bool:
        """Whether this is a child of the process in which the guard was made."""
        return _Forks.count != self._made_at
