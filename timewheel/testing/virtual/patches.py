"""Waits of ordinary Python code as waits of a scheduler: locks, queues, threads, sleeps, event loops, clocks.

`patched` replaces names of the standard library, in all modules that have imported them (``from time import sleep``).
On threads that the scheduler does not know, and objects that these made, everything is as before: a test runner's own
threads do not notice. With the package ``time-machine`` installed, ``datetime.now()`` and its like are replaced as
well, on all threads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import sys
import threading
import time
from _queue import SimpleQueue as RealSimpleQueue
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import not_
from threading import Thread
from types import GenericAlias
from typing import Any
from unittest import mock

from timewheel.core import clock
from timewheel.testing.virtual.clock import VirtualClock, waits_of
from timewheel.testing.virtual.loops import VirtualLoop
from timewheel.testing.virtual.scheduler import Killed, S, Scheduler


class Lock:
    """A lock whose wait is the scheduler's, on its threads."""

    def __init__(self, scheduler: Scheduler, real: LockType | None = None) -> None:
        self._scheduler = scheduler
        self._real = allocate_lock() if real is None else real
        self.locked = self._real.locked
        self.release = self._real.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        real = self._real
        if real.acquire(False):
            return True
        if not blocking:
            return False
        if not self._scheduler.is_mine:
            return real.acquire(True, timeout)
        is_free = self._scheduler.wait(real.locked, *waits_of(timeout, S))
        return is_free and real.acquire(True, 0 if timeout >= 0 else -1)

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        Lock.__init__(self, self._scheduler)


class SimpleQueue:
    """A queue whose wait is the scheduler's; made on another thread, it is the `queue.SimpleQueue` in C."""

    __class_getitem__ = classmethod(GenericAlias)  # type: ignore[var-annotated]

    def __new__(cls) -> Any:
        return super().__new__(cls) if _active and _active[0].is_mine else RealSimpleQueue()

    def __init__(self) -> None:
        self._scheduler = _active[0]
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002 - as queue's
        self._items.append(item)

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and not self._items:
            self._scheduler.wait(partial(not_, self._items), *waits_of(timeout, S))
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


_active: list[Scheduler] = []
"""The scheduler of this interpreter, if there is one: the modules that it patches are the interpreter's."""


@contextmanager
def patched(scheduler: Scheduler, random_bytes: Callable[[int], bytes] | None = None) -> Iterator[None]:
    """Replace the waits and clocks of the standard library on the scheduler's threads.

    Args:
        scheduler: The scheduler; this thread is its first.
        random_bytes: What ``os.urandom`` is on its threads, so that a history can be repeated; None: itself.

    Raises:
        RuntimeError: Another scheduler is active.
    """
    if _active:
        raise RuntimeError("there is another virtual time in this process: leave it first")
    with ExitStack() as stack:
        stack.enter_context(_one_core())
        # First: it writes into the functions of `time` themselves, which must be the real ones then.
        stack.enter_context(_dates_of(scheduler))
        by_identity: dict[int, Any] = {}
        kinds = (_of_waits, _of_clocks, _of_threads, _of_identities, _of_failures)
        replacements = [made for of in kinds for made in of(scheduler)]
        if random_bytes is not None:
            replacements.append(either(scheduler, os, "urandom", random_bytes))
        for owner, name, made in replacements:
            by_identity[id(getattr(owner, name))] = made
            stack.enter_context(mock.patch.object(owner, name, made))
        stack.enter_context(_imported(by_identity, scheduler))
        _active.append(scheduler)
        try:
            yield
        finally:
            scheduler.close()
            _active.clear()


_PACKAGE = __name__.rpartition(".")[0]
_UNCHANGED = ("_pytest", "pytest", "pluggy", "xdist", "execnet", "hypothesis", "unittest", "threading", _PACKAGE)
"""Modules that measure and wait for tests, not in them; and this package."""


@contextmanager
def _imported(by_identity: dict[int, Any], scheduler: Scheduler) -> Iterator[None]:
    """Replace objects in the modules that have imported them by name, and the locks that modules have."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module_name, module in [*sys.modules.items()]:
        if module_name.startswith(_UNCHANGED):
            continue
        names: dict[str, Any] = getattr(module, "__dict__", {})
        for name, value in [*names.items()]:
            made = Lock(scheduler, value) if type(value) is LockType else by_identity.get(id(value))
            if made is not None:
                changed.append((names, name, value))
                names[name] = made
    try:
        yield
    finally:
        for names, name, value in changed:
            names[name] = value


Replacement = tuple[Any, str, Any]
"""A module or class, a name in it, and what has this name in virtual time."""


def either(scheduler: Scheduler, owner: Any, name: str, virtual: Callable[..., Any]) -> Replacement:
    """Return a function that calls the virtual one on a scheduler's threads, and the real one on others."""
    real = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        return (virtual if scheduler.is_mine else real)(*arguments, **options)

    return owner, name, called


def _of_waits(scheduler: Scheduler) -> list[Replacement]:
    """Return locks and queues. Conditions, events, semaphores and the other queues are built on them."""
    return [
        either(scheduler, threading, "Lock", lambda: Lock(scheduler)),
        either(scheduler, threading, "_allocate_lock", lambda: Lock(scheduler)),
        # Over `_allocate_lock`, which the one in C is not.
        either(scheduler, threading, "RLock", vars(threading)["_PyRLock"]),
        (queue, "SimpleQueue", SimpleQueue),
    ]


def _of_clocks(scheduler: Scheduler) -> list[Replacement]:
    def sleep(duration_s: float, /) -> None:
        if duration_s < 0:
            raise ValueError("sleep length must be non-negative")
        scheduler.wait(None, round(duration_s * S))

    def monotonic() -> float:
        return scheduler.monotonic_ns / S

    # Event loops have calls at a later time.
    return [
        either(scheduler, asyncio.DefaultEventLoopPolicy, "new_event_loop", lambda _: VirtualLoop(scheduler)),
        (clock, "SystemClock", VirtualClock),
        either(scheduler, threading, "_time", monotonic),
        either(scheduler, queue, "time", monotonic),
        either(scheduler, time, "monotonic", monotonic),
        either(scheduler, time, "monotonic_ns", lambda: scheduler.monotonic_ns),
        either(scheduler, time, "time", lambda: scheduler.now_ns / S),
        either(scheduler, time, "time_ns", lambda: scheduler.now_ns),
        either(scheduler, time, "sleep", sleep),
    ]


def _of_identities(scheduler: Scheduler) -> list[Replacement]:
    """Of processes and threads: by their numbers here, not by what chance gives them."""
    real_init, numbers = Thread.__init__, itertools.count(1)

    def init(thread: Thread, *given: Any, **named: Any) -> None:
        if scheduler.is_mine:
            vars(thread)["_virtual_number"] = next(numbers)
        real_init(thread, *given, **named)

    def hash_of(thread: Thread) -> int:
        # A pool has a set of its threads, and joins them in its order.
        return vars(thread).get("_virtual_number") or object.__hash__(thread)

    def getpid() -> int:
        process = scheduler.current.process
        return 1 if process is None else process.pid

    return [
        either(scheduler, threading, "_counter", partial(next, numbers)),
        (Thread, "__init__", init),
        (Thread, "__hash__", hash_of),
        either(scheduler, os, "getpid", getpid),
    ]


_REAL_THREADS = frozenset({"timewheel-client-log"})
"""Threads that wait for what this time cannot see: here a pipe."""


def _start_elsewhere(start: Callable[[Thread], None], thread: Thread) -> None:
    """Start a thread from a real one, and wait for it in real time."""
    started = allocate_lock()
    started.acquire()

    def run() -> None:
        start(thread)
        started.release()

    start_new_thread(run, ())
    started.acquire()


def _of_threads(scheduler: Scheduler) -> list[Replacement]:
    real_start, real_join, real_is_alive = Thread.start, Thread.join, Thread.is_alive
    real_bootstrap: Callable[[Thread], None] = vars(Thread)["_bootstrap"]

    def start(thread: Thread) -> None:
        if scheduler.is_mine and thread.name in _REAL_THREADS:
            _start_elsewhere(real_start, thread)
            return
        if scheduler.is_mine and thread.ident is None:
            vars(thread)["_started"] = threading.Event()  # one of this time's
            scheduler.adopt(thread)
        real_start(thread)

    def bootstrap(thread: Thread) -> None:
        if scheduler.of_threads.get(thread) is None:
            real_bootstrap(thread)
        else:
            scheduler.run(thread, lambda: real_bootstrap(thread))

    def join(thread: Thread, timeout: float | None = None) -> None:
        task = scheduler.of_threads.get(thread)
        if task is None or not scheduler.is_mine:
            real_join(thread, timeout)
        elif scheduler.wait(lambda: not task.is_done, *waits_of(timeout, S)):
            real_join(thread)

    def is_alive(thread: Thread) -> bool:
        task = scheduler.of_threads.get(thread)
        return real_is_alive(thread) if task is None else not task.is_done and thread.ident is not None

    return [
        (Thread, "start", start),
        (Thread, "_bootstrap", bootstrap),
        (Thread, "join", join),
        (Thread, "is_alive", is_alive),
    ]


def _of_failures(scheduler: Scheduler) -> list[Replacement]:
    real, logger = threading.excepthook, logging.getLogger("concurrent.futures")
    critical = logger.critical

    def tell(text: str, *given: Any, **named: Any) -> None:
        # The threads of a pool tell what ends them.
        if not isinstance(sys.exc_info()[1], Killed):
            critical(text, *given, **named)

    def excepthook(raised: Any) -> None:
        if raised.thread is None or scheduler.of_threads.get(raised.thread) is None:
            real(raised)
        else:
            scheduler.failed(raised.thread.name, raised.exc_value)

    return [(threading, "excepthook", excepthook), (logger, "critical", tell)]


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core, as a batch, which no thread that wakes interrupts."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")  # side by side with others
    os.sched_setaffinity(0, {sorted(before)[int(worker or os.getpid()) % len(before)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        os.sched_setscheduler(0, policy, os.sched_getparam(0))


@contextmanager
def _dates_of(scheduler: Scheduler) -> Iterator[None]:
    try:
        import time_machine  # noqa: PLC0415 - optional
    except ImportError:
        yield
        return
    with time_machine.travel(scheduler.now_ns / S, tick=False) as traveller:
        # A float of seconds is exact to a quarter of a microsecond, and is rounded down.
        scheduler.on_time = lambda: traveller.move_to((scheduler.now_ns + 500) / S, tick=False)
        yield
