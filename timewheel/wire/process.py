"""The process in which something runs: whether its threads are threads, whether it was forked, how it ends.

The client's threads and connections stay in the parent of a fork: whoever goes on in the child waits for ever. Asking
the system for the process id at every send costs more than routing it, so forks are counted instead.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from timewheel.core.errors import ClientMisuse

__all__ = ["EXIT_MS", "ProcessGuard", "end_at_exit", "has_ended"]

T = TypeVar("T")

EXIT_MS = 3_000
"""For what is under way in something that was left open, when the interpreter ends."""
PATCHED = ("threading", "thread", "queue")
"""What timewheel's threads are made of, by the names that gevent and eventlet have for it."""
PATCHERS = (
    ("gevent.monkey", "is_module_patched", "gevent.monkey.patch_all(thread=False, queue=False)"),
    ("eventlet.patcher", "is_monkey_patched", "eventlet.monkey_patch(thread=False)"),
)
"""The module that replaces threads, its function that knows, and the call that leaves threads alone."""


class _Process:
    """Forks of this process and its ancestors, and what is open in it. Its hooks are installed at the first use."""

    forks = 0
    open: ClassVar[WeakKeyDictionary[Any, Callable[[Any], object]]] = WeakKeyDictionary()
    kept: ClassVar[set[Any]] = set()
    _installed = False
    _lock = threading.Lock()

    @classmethod
    def watch(cls) -> None:
        with cls._lock:
            if not cls._installed:
                cls._installed = True
                os.register_at_fork(after_in_child=cls._forked)
                atexit.register(cls._end)

    @classmethod
    def _forked(cls) -> None:
        cls.forks += 1
        cls.open.clear()  # the parent's
        cls.kept.clear()

    @classmethod
    def _end(cls) -> None:
        for owner, end in reversed([*cls.open.items()]):
            with suppress(Exception):  # its client may be closed already, and there is no caller to raise it to
                end(owner)


class ProcessGuard:
    """Made in the constructor of all that leans on threads, its own and the client's.

    Raises:
        ClientMisuse: gevent or eventlet has replaced threads or queues. The client's threads are not theirs, cannot
            wake what waits there, and a call would hang.
    """

    __slots__ = ("_made_at",)

    def __init__(self) -> None:
        for module, function, without_threads in PATCHERS:
            patcher = sys.modules.get(module)
            if patcher is not None and any(map(getattr(patcher, function), PATCHED)):
                raise ClientMisuse(
                    f"{module.partition('.')[0]} has replaced this process's threads, on which timewheel would hang: "
                    f"patch without them, by {without_threads}, or run in a process with Python's own threads "
                    "(gunicorn: --worker-class gthread)"
                )
        _Process.watch()
        self._made_at = _Process.forks

    @property
    def is_child(self) -> bool:
        """Whether this is a child of the process in which the guard was made."""
        return _Process.forks != self._made_at

    def check(self, name: str) -> None:
        """Refuse to go on in a child.

        Args:
            name: Of what was made in the parent, for the message.

        Raises:
            ClientMisuse: This is a child.
        """
        if self.is_child:
            raise ClientMisuse(
                f"this {name} was made before a fork: its client's threads stayed in the parent process, and a call "
                f"would hang; make client and {name} in the child"
            )


def end_at_exit(owner: T, end: Callable[[T], object], *, keep: bool = False) -> None:
    """Have something ended before the interpreter ends. A thread that comes back from the client's own code into an
    interpreter that has gone aborts the process (broker-facts: ends-without-close).

    Args:
        owner: What is open, and has made a `ProcessGuard`, or belongs to what has.
        end: Ends it in some seconds; does no harm where it has ended.
        keep: Keep it until `has_ended`, since its threads live on without it. Else it is forgotten with its last
            reference, and may be: none of its threads holds it.
    """
    _Process.open[owner] = end
    if keep:
        _Process.kept.add(owner)


def has_ended(owner: object) -> None:
    """Forget what was to be ended at exit."""
    _Process.open.pop(owner, None)
    _Process.kept.discard(owner)
