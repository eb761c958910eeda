"""Kills processes by a seeded schedule."""

from __future__ import annotations

import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos_ledger import Dying, Event, Handled, Tail, now_ms, ready_file
from tests.support.chaos_verdict import Fault, Kill
from tests.support.chaos_worker import Fuse
from tests.support.checkout import ROOT
from timewheel.testing.process import OwnedProcess

STOP_TIMEOUT_S = 60.0


class Post:
    """A place for one process at a time, which never outlives the test.

    Args:
        name: Name of its processes.
        command: Returns the command line of a life: by its ledger, its fuse and the changes given to `start`.
        folder: Folder of ledgers and logs.

    Attributes:
        ready: The ready file of the last life; only services write one.
    """

    def __init__(self, name: str, command: Callable[..., Sequence[str]], folder: Path) -> None:
        self.name = name
        self.lives = 0
        self.stopped = False
        self.ready = folder / f"{name}.not-started"
        self._command = command
        self._folder = folder
        self._process = OwnedProcess(log=folder / f"{name}.log")
        self._tails: list[Tail] = []

    @property
    def pid(self) -> int | None:
        """The living process; None: dead."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last life; None while a process lives."""
        return self._process.exit_code

    @property
    def is_ready(self) -> bool:
        """True if the living process, a service, has its ready file."""
        return self.pid is not None and self.ready.exists()

    def start(self, fuse: Fuse | None = None, **changes: object) -> None:
        """Start a process."""
        ledger = self._folder / f"{self.name}.{self.lives:03d}.ledger"
        self._tails = [*self._tails[-1:], Tail(ledger)]
        self.ready = ready_file(ledger)
        self.lives += 1
        self.stopped = False
        self._process.start(self._command(ledger, fuse, **changes), cwd=ROOT)

    def kill(self) -> None:
        """Kill the process with -9 from outside, and wait for its end."""
        self._process.kill()

    def stop(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open but do not respond."""
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process (SIGCONT)."""
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to end in order, and return its exit code."""
        self._process.send_signal(number)
        return self._process.wait(STOP_TIMEOUT_S)

    def events(self) -> Iterator[Event]:
        """Yield the events that its processes recorded since the last call, oldest first."""
        for tail in self._tails:
            yield from tail.read()

    def log_tail(self) -> str:
        """Return the end of its processes' output."""
        return self._process.log_tail()

    def close(self) -> None:
        """Kill the process, if any, and start no more."""
        self._process.close()


OUTSIDE = "outside"  # killed by the conductor, at a random moment
POLL_S = 0.03
MAX_LIFE_S = 7.0
"""A fuse that has not burnt down by then never will, for example in a lull; the conductor kills the process then."""
OUTSIDE_S = (1.0, 4.0)  # time from the start of a life; a process may need the first second to start
LONGEST_GAP_S = 0.4  # longest time between a death and the next life

Points = Mapping[str, int]
"""The points at which a post's processes die, each with the highest number of passes before the kill."""
Disturbance = Callable[[random.Random], None]  # an operation on the broker or on a topic; it returns when it is done


class NotInTime(AssertionError):
    """A condition did not become true in time."""


@dataclass(slots=True)
class _Life:
    """The scheduled actions for the process that fills a post now."""

    point: str = ""
    pid: int = 0
    kill_at_s: float = math.inf
    begin_at_s: float = 0.0
    go_on_at_s: float = math.inf


@dataclass(slots=True)
class _Victim:
    post: Post
    schedule: Iterator[Fuse | float]
    life: _Life = field(default_factory=_Life)


class Conductor:
    """Plays a schedule.

    Args:
        seed: Seed of all choices. Each post and the disturbances have their own generators, so a seed gives each of
            them the same sequence, however they interleave.
        victims: Posts whose processes are killed, and the points of the kills.
        steady: Posts that must live; the test fails if their process dies.
        disturbances: By name; drawn with equal probability.
        pause_s: Between two disturbances: (shortest, longest).
        stops_s: How long a victim is frozen when the disturbance "SIGSTOP" is drawn, each with equal probability.
        confirmed: Returns the number of confirmed sends.
        watched: Posts whose ledgers are also read, but which the conductor neither starts nor kills.
    """

    def __init__(
        self,
        seed: int,
        *,
        victims: Mapping[Post, Points],
        steady: Sequence[Post],
        confirmed: Callable[[], int],
        disturbances: Mapping[str, Disturbance] | None = None,
        pause_s: tuple[float, float] = (1.0, 2.5),
        stops_s: Sequence[float] = (),
        watched: Sequence[Post] = (),
    ) -> None:
        self.kills: list[Kill] = []
        self.faults: list[Fault] = []
        self.events: list[Event] = []
        self.handled: set[str] = set()
        self._victims = [
            _Victim(post, schedule(random.Random(f"{seed}/{post.name}"), points)) for post, points in victims.items()
        ]
        self._steady, self._watched = tuple(steady), tuple(watched)
        self._confirmed = confirmed
        self._random = random.Random(f"{seed}/disturbances")
        self._disturbances = dict(disturbances or {})
        self._pause_s, self._stops_s = pause_s, tuple(stops_s)
        if stops_s:
            self._disturbances["SIGSTOP"] = self._freeze
        self._next_disturbance_s = math.inf
        self._killing = True

    @property
    def least_in_flight(self) -> int:
        """The fewest timers in flight at a kill."""
        return min((kill.in_flight for kill in self.kills), default=0)

    @property
    def points(self) -> Counter[str]:
        """Number of kills by point."""
        return Counter(kill.point for kill in self.kills)

    @property
    def disturbed(self) -> Counter[str]:
        """Number of disturbances by name."""
        return Counter(fault.name for fault in self.faults)

    @property
    def in_flight(self) -> int:
        """Number of timers that are confirmed and not handled."""
        return self._confirmed() - len(self.handled)

    def kill(self, count: int, timeout_s: float, *, points: Collection[str] = ()) -> None:
        """Play until this number of processes were killed, at least one at each of these points."""
        self._begin_killing()

        def done() -> bool:
            return len(self.kills) >= count and self.points.keys() >= set(points)

        self._play_until(done, timeout_s, f"{count} kills at {', '.join(points) or 'any point'}")

    def disturb(self, name: str, count: int, timeout_s: float) -> None:
        """Play until this number of disturbances of a kind are done."""
        self._begin_killing()
        self._play_until(lambda: self.disturbed[name] >= count, timeout_s, f"{count} times {name}")

    def make(self, name: str) -> Fault:
        """Make a disturbance now, and return when it is done."""
        begin_ms = now_ms()
        self._disturbances[name](self._random)
        self.faults.append(Fault(name=name, begin_ms=begin_ms, end_ms=now_ms()))
        return self.faults[-1]

    def calm(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Let all processes live, and play on until a condition is true."""
        self._killing = False
        self._next_disturbance_s = math.inf
        for victim in self._victims:
            if victim.post.stopped:
                victim.post.go_on()
            if victim.post.pid is not None and victim.life.point:
                # Its fuse still burns: kill it a last time, and start the next life without a fuse.
                victim.life.point = OUTSIDE
                victim.post.kill()
                self._observe_death(victim)
            victim.life.begin_at_s = 0.0
        self._play_until(done, timeout_s, what)

    def observe(self) -> None:
        """Read the events that were recorded since the last call."""
        for post in (*(victim.post for victim in self._victims), *self._steady, *self._watched):
            for event in post.events():
                self.events.append(event)
                if isinstance(event, Handled):
                    self.handled.add(event.timer_id)

    def _begin_killing(self) -> None:
        self._killing = True
        for victim in self._victims:
            if victim.post.pid is not None and not victim.life.point:
                # This life began in a calm, without a fuse.
                victim.life.point = OUTSIDE
                victim.life.kill_at_s = time.monotonic()
        self._draw_disturbance()

    def _play_until(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.observe()
            if done():
                return
            if time.monotonic() > deadline_s:
                raise NotInTime(f"{what}: not within {timeout_s} s; {self}")
            self._step()
            time.sleep(POLL_S)

    def _step(self) -> None:
        for post in self._steady:
            assert post.pid is not None, f"{post.name} ended with {post.exit_code}:\n{post.log_tail()}"
        for victim in self._victims:
            self._attend(victim)
        if time.monotonic() >= self._next_disturbance_s:
            self.make(self._random.choice(sorted(self._disturbances)))
            self._draw_disturbance()

    def _draw_disturbance(self) -> None:
        pause_s = self._random.uniform(*self._pause_s)
        self._next_disturbance_s = time.monotonic() + pause_s if self._disturbances else math.inf

    def _attend(self, victim: _Victim) -> None:
        post, life, now_s = victim.post, victim.life, time.monotonic()
        if post.pid is None:
            if life.pid:
                self._observe_death(victim)
            elif now_s >= life.begin_at_s:
                self._begin(victim)
        elif now_s >= life.go_on_at_s:
            life.go_on_at_s = math.inf
            post.go_on()
        elif self._killing and now_s >= life.kill_at_s and not post.stopped:
            life.point = OUTSIDE
            post.kill()

    def _begin(self, victim: _Victim) -> None:
        life = victim.life = _Life()
        fuse: Fuse | None = None
        if self._killing:
            drawn = next(victim.schedule)
            fuse = drawn if isinstance(drawn, Fuse) else None
            life.point = OUTSIDE if fuse is None else fuse.point
            life.kill_at_s = time.monotonic() + (MAX_LIFE_S if isinstance(drawn, Fuse) else drawn)
        victim.post.start(fuse)
        life.pid = victim.post.pid or -1

    def _observe_death(self, victim: _Victim) -> None:
        post, life = victim.post, victim.life
        at_ms = now_ms()
        self.observe()
        code = post.exit_code
        assert code == -signal.SIGKILL, f"{post.name} ended with {code} by itself:\n{post.log_tail()}"
        # The time that the process itself recorded is exact.
        at_ms = next(
            (event.at_ms for event in self.events if isinstance(event, Dying) and event.pid == life.pid), at_ms
        )
        self.kills.append(Kill(post=post.name, pid=life.pid, point=life.point, at_ms=at_ms, in_flight=self.in_flight))
        gap_s = self._random.uniform(0.0, LONGEST_GAP_S)
        victim.life = _Life(begin_at_s=time.monotonic() + gap_s)

    def _freeze(self, choices: random.Random) -> None:
        living = [victim for victim in self._victims if victim.post.pid is not None and not victim.post.stopped]
        if living:
            victim = choices.choice(living)
            victim.post.stop()
            victim.life.go_on_at_s = time.monotonic() + choices.choice(self._stops_s)

    def __str__(self) -> str:
        return (
            f"{len(self.kills)} kills {dict(self.points)}, disturbances {dict(self.disturbed)}, "
            f"at least {self.least_in_flight} timers in flight at a kill, now {self.in_flight}"
        )


def schedule(choices: random.Random, points: Points) -> Iterator[Fuse | float]:
    """Yield forever: a fuse, or the seconds until a kill from outside. Every point comes once per round."""
    while True:
        round_ = [*points, OUTSIDE]
        choices.shuffle(round_)
        for point in round_:
            most = points.get(point, 1)
            if point == OUTSIDE:
                yield choices.uniform(*OUTSIDE_S)
            elif choices.random() < 0.5:
                yield Fuse(point=point, passes=choices.randint(1, most))
            else:
                # Evenly over orders of magnitude: the first passes after a takeover matter as much as the thousandth.
                yield Fuse(point=point, passes=round(math.exp(choices.uniform(0.0, math.log(most)))))
