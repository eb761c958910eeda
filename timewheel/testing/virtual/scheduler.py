"""Threads that run one at a time, on a clock that jumps when all of them wait.

A thread of a `Scheduler` runs while it has the *turn*. It passes the turn on where it waits: for a lock, a queue,
another thread, the next event of an event loop, or the end of a sleep (`timewheel.testing.virtual.patches`). The next
turn goes to a thread whose wait is over. If there is none, time jumps to the earliest deadline. So no two threads ever
run at once, only waits take time, and a history follows from the program and from ``choose`` alone.
"""

from __future__ import annotations

import sys
import threading
import traceback

# The real ones: `patches` replaces those of the modules.
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter, itemgetter, not_
from threading import Thread
from typing import Any

MS = 1_000_000
"""Nanoseconds of a millisecond."""
S = 1_000 * MS
"""Nanoseconds of a second."""

LEAST_WAIT_NS = 20_000
"""Shortest wait: a loop that polls without a pause takes time, too, or it would never end."""


class Killed(BaseException):
    """Ends a thread at its next wait: its process was killed, or the virtual time is over."""


class NothingToWaitFor(RuntimeError):
    """No wait would ever end; ``waits`` has the name of each thread, and the line of code in which it waits."""

    def __init__(self, waits: Sequence[tuple[str, str]]) -> None:
        self.waits = tuple(waits)
        lines = "".join(f"\n  {name}: {place}" for name, place in waits)
        super().__init__(f"all threads wait for each other, and nothing is scheduled that could end a wait:{lines}")


class Task:
    """A thread of a scheduler; its process is killed and frozen together with it: None for the test itself."""

    def __init__(self, name: str, process: Process | None) -> None:
        self.name = name
        self.process = process
        self.ident = 0
        self.turn = allocate_lock()  # released when it gets the turn
        self.turn.acquire()
        self.goes_on: Condition = None
        self.wait = -1  # number of its wait, which is higher than those of earlier waits; -1: it does not wait
        self.deadline_ns: int | None = None
        self.interval_ns: int | None = None  # in which it looks around, if anything has happened
        self.look_ns: int | None = None  # when it does; None: nothing has happened since its wait began
        self.is_looking = False  # whether it looks around, and has changed nothing yet
        self.seen = 0  # what had happened when its wait began
        self.is_last = False
        self.timed_out = False
        self.is_done = False
        self.is_killed = False
        # It runs no code of a user, who might change what another thread looks for.
        self.is_ours = name.startswith(_OURS) and not name.startswith(_USERS)

    @property
    def is_frozen(self) -> bool:
        return self.process is not None and self.process.is_frozen and not self.is_killed


_OURS, _USERS = ("timewheel-", "pulsar-client"), ("timewheel-worker", "timewheel-handlers")


@dataclass(eq=False)
class Process:
    """Threads that are killed and frozen together, like the threads of an operating system's process."""

    name: str
    pid: int
    is_frozen: bool = False
    is_cut_off: bool = False  # from the brokers


@dataclass(eq=False)
class Timer:
    """An action at a time; runs on the thread that has the turn, and must not wait."""

    action: Callable[[], None] | None  # None: it was cancelled, or has run


class Alarm:
    """An action that is scheduled at most once at a time."""

    def __init__(self, scheduler: Scheduler, action: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._action = action
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None and self._timer.action is not None

    def set(self, delay_ns: int) -> None:
        """Schedule the action, unless it is."""
        if not self.is_set:
            self._timer = self._scheduler.at(delay_ns, self._action)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.action = None


Condition = Callable[[], object] | None
Choose = Callable[[Sequence[Task]], Task]
"""Returns which of several threads, the one that has waited longest first, runs next."""


class Scheduler:
    """Virtual time and the threads on it; the thread that creates it is the first one, and has the turn.

    Args:
        now_ns: Time at which it begins, UTC nanoseconds since 1970.
        choose: Which of several ready threads runs next; the one that has waited longest, if it is not given.

    Attributes:
        monotonic_ns: Time passed.
        failures: Exceptions that ended threads, each with the thread's name.
        current: The thread that has the turn.
        of_threads: The threads that were started here.
    """

    def __init__(self, now_ns: int, choose: Choose = itemgetter(0)) -> None:
        self.monotonic_ns = 0
        self.failures: list[tuple[str, BaseException]] = []
        self.on_time: Callable[[], None] = lambda: None  # called when time has passed, or was set
        self._wall_ns = now_ns  # of the wall clock, when the monotonic clock is 0
        self._choose = choose
        self._tasks: dict[int, Task] = {}  # by the thread's identifier
        self.of_threads: dict[Thread, Task] = {}
        self._waiting: dict[Task, None] = {}  # the one that has waited longest first
        self._asking: dict[Task, None] = {}  # those of them that wait for more than time
        self._idle: dict[Task, None] = {}  # those that will look around once anything has happened
        self._ends: list[tuple[int, int, Task]] = []  # when waits end or look around, with their numbers
        self._due: list[tuple[int, int, Task]] = []  # those of them whose time has come
        self._timers: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._happened = self._looked = 0
        self._for_first: list[Callable[[], None]] = []
        self._is_over = False
        self._error: BaseException | None = None
        self.first = self.current = Task(threading.current_thread().name, None)
        self.first.ident = get_ident()
        self._tasks[self.first.ident] = self.first

    # Time

    @property
    def now_ns(self) -> int:
        """The wall clock, UTC nanoseconds since 1970."""
        return self._wall_ns + self.monotonic_ns

    @property
    def now_ms(self) -> int:
        return self.now_ns // MS

    def skew(self, by_ns: int) -> None:
        """Let the wall clock jump."""
        self._wall_ns += by_ns
        self.on_time()
        self._happened += 1

    def at(self, delay_ns: int, action: Callable[[], None]) -> Timer:
        """Schedule an action after a delay; at the same time, in the order of the calls."""
        timer = Timer(action)
        heappush(self._timers, (self.monotonic_ns + max(delay_ns, 0), next(self._numbers), timer))
        return timer

    def happen(self) -> None:
        """Record that something has changed that threads look for: a topic, a connection, the wall clock."""
        self._happened += 1
        self.current.is_looking = False

    def later(self, action: Callable[[], None]) -> None:
        """Have the first thread do something at its next `advance`, before it lets more time pass."""
        self._for_first.append(action)

    # Waits

    @property
    def is_mine(self) -> bool:
        """True on a thread of this scheduler."""
        return get_ident() in self._tasks

    def wait(
        self, goes_on: Condition, timeout_ns: int | None = None, look_ns: int | None = None, *, is_last: bool = False
    ) -> bool:
        """Pass the turn on while ``goes_on()``, or for a time; return False if the time passed before.

        `NothingToWaitFor` tells the first thread that no wait can ever end, `Killed` one that its process is killed.

        Args:
            goes_on: Asked at each turn, so best a function in C; None: only time ends the wait.
            timeout_ns: The longest wait; None: for ever.
            look_ns: Time after which it ends too, once anything has happened that it could look for.
            is_last: True to wait for all that happens at the same time.
        """
        task = self.current
        if self._is_over or task.is_killed:
            raise Killed
        task.goes_on, task.is_last, task.timed_out = goes_on, is_last, False
        least_ns = 0 if is_last else LEAST_WAIT_NS
        task.deadline_ns = None if timeout_ns is None else self.monotonic_ns + max(timeout_ns, least_ns)
        task.look_ns, task.interval_ns = None, None if look_ns is None else max(look_ns, least_ns)
        if not (task.is_looking or task.is_ours):
            self._happened += 1
        task.seen = self._happened
        self._begin_wait(task)
        self._pass_turn(task)
        if task.is_killed:
            raise Killed
        if task is self.first and (error := self._error) is not None:
            self._error = None
            raise error
        return not task.timed_out

    def _begin_wait(self, task: Task) -> None:
        task.wait = next(self._numbers)
        self._waiting[task] = None
        if task.goes_on is not None:
            self._asking[task] = None
        if task.interval_ns is not None:
            self._idle[task] = None
        if task.deadline_ns is not None:
            heappush(self._ends, (task.deadline_ns, task.wait, task))

    def _pass_turn(self, task: Task) -> None:
        """Let another thread run, and wait until this one is chosen."""
        following = self._next()
        if following is not task:
            self.current = following
            following.turn.release()
            task.turn.acquire()

    def yield_turn(self) -> None:
        """Let the other threads run whose waits are over; no time passes."""
        if self._ready():
            self.wait(_no_longer)

    def advance(self, duration_ns: int) -> None:
        """Let time pass: return when everything up to then has happened."""
        until_ns = self.monotonic_ns + duration_ns
        while True:
            self.wait(partial(not_, self._for_first), until_ns - self.monotonic_ns, is_last=True)
            if not self._for_first:
                return
            while self._for_first:
                self._for_first.pop(0)()

    def _ready(self) -> list[Task]:
        """Return the threads whose waits are over: something that they wait for has come."""
        ready = [task for task in self._asking if not (task.goes_on() or task.is_frozen)]  # type: ignore[misc]
        return sorted(ready, key=_wait_of) if len(ready) > 1 else ready

    def _next(self) -> Task:
        while True:
            if ready := self._ready():
                return self._woken(ready, timed_out=False)
            if not self._pass_time():
                self._error = NothingToWaitFor([(task.name, _place(task)) for task in self._waiting])
                return self._woken([self.first], timed_out=True)
            over = self._over()
            if over := [task for task in over if not task.is_last] or over:
                return self._woken(over, timed_out=True)

    def _pass_time(self) -> bool:
        """Jump to the next timer or deadline, and run one timer that is due; False: there is neither."""
        while self._timers and self._timers[0][2].action is None:
            heappop(self._timers)
        if self._looked < self._happened:
            self._let_look([task for task in self._idle if task.seen < self._happened])
        next_ns = self._next_end_ns()
        if self._timers and (next_ns is None or next_ns > self._timers[0][0]):
            next_ns = self._timers[0][0]
        if next_ns is None:
            self._let_look([task for task in self._idle if not task.is_frozen][:1])
            next_ns = self._next_end_ns()
        if next_ns is None:
            return False
        if next_ns > self.monotonic_ns:
            self.monotonic_ns = next_ns
            self.on_time()
        if self._timers and self._timers[0][0] <= self.monotonic_ns:
            self._fire(heappop(self._timers)[2])
        return True

    def _let_look(self, tasks: Sequence[Task]) -> None:
        """Have threads look around after their intervals; frozen ones once they are frozen no more."""
        awake = [task for task in tasks if not task.is_frozen]
        for task in awake:
            del self._idle[task]
            task.look_ns = self.monotonic_ns + task.interval_ns  # type: ignore[operator] # it is idle
            heappush(self._ends, (task.look_ns, task.wait, task))
        if len(awake) == len(tasks):
            self._looked = self._happened

    def _next_end_ns(self) -> int | None:
        """Return when the next wait ends or looks around."""
        ends = self._ends
        self._due = [end for end in self._due if end[1] == end[2].wait]
        if any(not task.is_frozen for _, _, task in self._due):
            return self.monotonic_ns
        while ends and ends[0][1] != ends[0][2].wait:
            heappop(ends)
        if ends and ends[0][2].is_frozen:
            return min((at_ns for at_ns, wait, task in ends if wait == task.wait and not task.is_frozen), default=None)
        return ends[0][0] if ends else None

    def _fire(self, timer: Timer) -> None:
        action, timer.action = timer.action, None
        try:
            if action is not None:
                action()
        except Exception as error:  # noqa: BLE001 - of no thread: raised in the first
            self.failed("the clock", error)

    def _over(self) -> list[Task]:
        """Return the threads whose time has passed."""
        ends, now_ns = self._ends, self.monotonic_ns
        if self._timers and self._timers[0][0] <= now_ns:
            return []  # whatever a timer of the same moment ends is no time-out
        while ends and ends[0][0] <= now_ns:
            self._due.append(heappop(ends))
        over = {task for _, wait, task in self._due if wait == task.wait and not task.is_frozen}
        return sorted(over, key=_wait_of) if len(over) > 1 else [*over]

    def _woken(self, ready: Sequence[Task], *, timed_out: bool) -> Task:
        task = ready[0] if len(ready) == 1 else self._choose(ready)
        task.wait = -1
        for waiting in (self._waiting, self._asking, self._idle):
            waiting.pop(task, None)
        now_ns = self.monotonic_ns
        task.timed_out = timed_out
        task.is_looking = timed_out and task.look_ns is not None and (task.deadline_ns or now_ns + 1) > now_ns
        task.goes_on = None
        return task

    # Threads

    def adopt(self, thread: Thread) -> None:
        """Make a thread that is about to be started one of this scheduler's, in the process of the present one."""
        task = self.of_threads[thread] = Task(thread.name, self.current.process)
        task.goes_on = _no_longer
        self._begin_wait(task)

    def run(self, thread: Thread, main: Callable[[], Any]) -> None:
        """Run the whole of an adopted thread; called on it."""
        task = self.of_threads[thread]
        task.ident = get_ident()
        task.turn.acquire()
        self._tasks[task.ident] = task
        try:
            if not task.is_killed:
                main()
        finally:
            del self._tasks[task.ident]
            task.is_done = True
            self._happened += 1
            if self.current is task:
                self.current = self._next()
                self.current.turn.release()

    def failed(self, name: str, error: BaseException) -> None:
        """Record what ended a thread; the first thread learns it at its next `raise_failure`."""
        if not isinstance(error, Killed):
            self.failures.append((name, error))

    def raise_failure(self) -> None:
        """Raise what has ended a thread since the last call."""
        if self.failures:
            (name, error), *_ = self.failures
            self.failures.clear()
            error.add_note(f"raised on the thread {name!r}")
            raise error

    def kill(self, process: Process) -> None:
        """End the threads of a process at once: each at its wait, without another step of its own."""
        process.is_frozen = False
        for task in [task for task in self._waiting if task.process is process]:
            self._kill(task)

    def close(self) -> None:
        """End all threads but the first, which calls it."""
        self._is_over = True
        # The first one still waits if a signal has interrupted it.
        self._waiting.pop(self.first, None)
        self._asking.pop(self.first, None)
        for task in self._waiting:
            self._kill(task)
        while self._waiting:
            self.first.goes_on, self.first.deadline_ns, self.first.interval_ns = _no_longer, None, None
            self._begin_wait(self.first)
            self._pass_turn(self.first)
        self._tasks.clear()

    def _kill(self, task: Task) -> None:
        task.is_killed = True
        task.goes_on = _no_longer
        self._asking[task] = None


_no_longer: Condition = bool  # which returns False
_wait_of = attrgetter("wait")


_OWN = ("timewheel/testing/virtual/", "threading.py", "queue.py", "selectors.py")


def _place(task: Task) -> str:
    """Return the line of code in which a thread waits, outside this package and the standard library's waits."""
    frame = sys._current_frames().get(task.ident)  # noqa: SLF001 - the only way to another thread's stack
    for line in reversed(traceback.extract_stack(frame)):
        if not any(part in line.filename for part in _OWN):
            return f"{line.filename}:{line.lineno} in {line.name}"
    return "before its first line"
