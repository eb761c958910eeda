"""Threads of the present process, and its hazards: replaced threads, forks, and the end of the interpreter.

The client's threads and connections stay in the parent of a fork: a call in the child would wait for ever. Asking the
system for the process id at every send costs more than routing it, so forks are counted instead.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from timewheel.core.errors import ClientMisuse

T = TypeVar("T")

EXIT_MS = 3_000  # time for work in progress in objects that were left open, when the interpreter ends
PATCHED = ("threading", "thread", "queue")
"""Modules on which timewheel's threads are built, by gevent's and eventlet's names."""
PATCHERS = (
    ("gevent.monkey", "is_module_patched", "gevent.monkey.patch_all(thread=False, queue=False)"),
    ("eventlet.patcher", "is_monkey_patched", "eventlet.monkey_patch(thread=False)"),
)
"""Module that replaces threads, its function that reports it, and the call that leaves threads unchanged."""


class _Process:
    """Forks of this process and its ancestors, and its open objects. The hooks are installed at the first use."""

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
        cls.open.clear()  # these are the parent's
        cls.kept.clear()

    @classmethod
    def _end(cls) -> None:
        for owner, end in reversed([*cls.open.items()]):
            with suppress(Exception):  # its client may be closed already, and no caller could get the error
                end(owner)


class ProcessGuard:
    """Detects forks; created in the constructor of every object that relies on threads, its own or the client's.

    gevent and eventlet are refused: the client's threads are not among the replaced ones and cannot wake waiters of the
    replacements, so a call would hang.
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
        """True in a child of the process in which the guard was created."""
        return _Process.forks != self._made_at

    def check(self, name: str) -> None:
        """Raise an error in a child."""
        if self.is_child:
            raise ClientMisuse(
                f"this {name} was made before a fork: its client's threads stayed in the parent process, and a call "
                f"would hang; make client and {name} in the child"
            )


def end_at_exit(owner: T, end: Callable[[T], object], *, keep: bool = False) -> None:
    """Register an open object that ``end``, harmless if it has ended, ends before the interpreter ends, within seconds.

    A thread that returns from the client's own code into an interpreter that no longer exists aborts the process
    (broker-facts: ends-without-close). ``keep`` keeps the object until `has_ended`, since its threads go on without it.
    Otherwise it is forgotten with its last reference, which is safe: none of its threads holds it.
    """
    _Process.open[owner] = end
    if keep:
        _Process.kept.add(owner)


def has_ended(owner: object) -> None:
    """Forget an object that was to be ended at exit."""
    _Process.open.pop(owner, None)
    _Process.kept.discard(owner)


class DaemonWorkers:
    """Runs functions on at most ``limit`` daemon threads, which end when no function is left."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0

    def run(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, as soon as a thread is free."""
        with self._lock:
            self._waiting.append(function)
            if self._threads >= self._limit:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            self._work()  # the interpreter is ending, and starts no threads then from Python 3.12 on

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                function = self._waiting.popleft()
            function()
