"""Walks through the consumer's engine by chance: which events a timer meets at which stage, and what follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.consumers.support import BOUND_MS, NOW_MS, arrival
from timewheel.consumers.engine import Command, Deliver, DeliveryPolicy, Engine, HandledWindow, Release, Republish
from timewheel.consumers.message import Arrival, InFlight, Parked, Stage, ToRetry

__all__ = ["NOT_IN_FLIGHT", "Met", "walk"]

NOT_IN_FLIGHT = "not in flight"
KEEP_MS = 20 * BOUND_MS
ACK_TIMEOUT_MS = 4 * BOUND_MS
IDS = ("a", "b", "c")


class Met(NamedTuple):
    """At this stage this happened to a timer; then it was at that stage, with these commands."""

    stage: str
    event: str
    then: str
    commands: frozenset[str]


class _Walk:
    def __init__(self, seed: int, *, judges: bool) -> None:
        self.rng = random.Random(seed)
        self.dead: set[str] = set()
        judge = DeliveryPolicy(lambda envelope: envelope.timer_id in self.dead, KEEP_MS) if judges else None
        self.judges = judges
        self.engine = Engine(
            hold_bound_ms=BOUND_MS, max_held=8, handled=HandledWindow(100), ack_timeout_ms=ACK_TIMEOUT_MS, judge=judge
        )
        self.now_ms = NOW_MS
        self.monotonic_ms = 0
        self.due_ms = {name: NOW_MS + self.rng.choice([-KEEP_MS - 1, 0, 5, 3 * BOUND_MS]) for name in IDS}
        self.entries = {name: [number] for number, name in enumerate(IDS)}
        self.next_entry = len(IDS)
        self.handed: dict[str, InFlight] = {}
        self.publishing: dict[str, InFlight] = {}
        self.asking = False
        self.met: set[Met] = set()

    def stage(self, name: str) -> str:
        held = vars_of(self.engine).get(f"0:{name}")
        return NOT_IN_FLIGHT if held is None else held.stage.value

    def meets(self, event: str, happen: Callable[[], list[Command]], *names: str) -> None:
        """Note what an event does to these, or, of no one in particular, to all that it changes."""
        before = {name: self.stage(name) for name in IDS}
        commands = happen()
        by_name: dict[str, set[str]] = {name: set() for name in IDS}
        for command in commands:
            of = command.timer.arrival if isinstance(command, Deliver | Republish | Release) else command.arrival
            assert of.envelope is not None
            by_name[of.envelope.timer_id].add(type(command).__name__)
            if isinstance(command, Deliver):
                self.handed[of.envelope.timer_id] = command.timer
            if isinstance(command, Republish):
                self.publishing[of.envelope.timer_id] = command.timer
        for name in IDS:
            after = self.stage(name)
            if name in names or (not names and (after != before[name] or by_name[name])):
                self.met.add(Met(before[name], event, after, frozenset(by_name[name])))

    def step(self) -> None:
        self.rng.choice(
            [
                self.receive,
                self.receive,
                self.tick,
                self.tick,
                self.answer,
                self.begin,
                self.handle,
                self.handle,
                self.publish,
                self.cut,
                self.lose,
            ]
        )()
        in_flight = vars_of(self.engine).values()
        republishing: int = self.engine._republishing
        assert republishing == sum(timer.stage is Stage.REPUBLISHING for timer in in_flight)

    def receive(self) -> None:
        name = self.rng.choice(IDS)
        if self.engine.full:
            return
        if self.rng.random() < 0.2:
            self.entries[name].append(self.next_entry)
            self.next_entry += 1
        entry = self.rng.choice(self.entries[name])
        came: Arrival = arrival(entry, name, self.due_ms[name])
        early_ms = self.due_ms[name] - self.now_ms
        held = vars_of(self.engine).get(f"0:{name}")
        if held is not None:
            what = "again" if held.arrival.position.entry == entry else "another copy"
            timed_out = self.monotonic_ms - held.received_ms >= ACK_TIMEOUT_MS and held.stage in {
                Stage.HANDED,
                Stage.BEGUN,
            }
            what = "again, after the ack time-out" if what == "again" and timed_out else what
        else:
            what = "due" if early_ms <= 0 else "early by at most the bound" if early_ms <= BOUND_MS else "far too early"
        self.meets(f"received, {what}", lambda: self.engine.received(came, self.now_ms, self.monotonic_ms), name)

    def tick(self) -> None:
        passed_ms = self.rng.choice([1, 5, BOUND_MS, BOUND_MS])
        if self.rng.random() < 0.1:
            passed_ms = -3 * BOUND_MS
        self.now_ms += passed_ms
        self.monotonic_ms += max(passed_ms, 0)
        self.meets("time passes", lambda: self.engine.tick(self.now_ms))

    def answer(self) -> None:
        if not self.judges:
            return
        if not self.asking:
            if self.engine.unasked:
                self.engine.asked()
                self.asking = True
            return
        self.asking = False
        if self.rng.random() < 0.8:
            self.meets("the log has answered", lambda: self.engine.answered(self.now_ms))
        else:
            self.meets("the log does not answer, and it may be delivered", self.engine.unanswered)

    def begin(self) -> None:
        """What was handed out waits for its turn, and may be cancelled meanwhile."""
        name = self.rng.choice(IDS)
        timer = self.handed.get(name)
        if timer is None or timer.stage is Stage.BEGUN or vars_of(self.engine).get(timer.key) is not timer:
            return
        is_asked = self.rng.random() < 0.8
        begins = partial(self.engine.begins, timer, self.now_ms, is_asked=is_asked)
        self.meets("its handler is about to begin", lambda: begins() or [], name)
        if self.stage(name) != Stage.BEGUN.value:
            del self.handed[name]

    def lose(self) -> None:
        if self.rng.random() < 0.2:
            self.meets("its connection is lost", lambda: self.engine.disconnected(None), *IDS)
            # No handler begins with a timer that was let go.
            self.handed = {name: timer for name, timer in self.handed.items() if timer.stage is Stage.BEGUN}

    def handle(self) -> None:
        if not self.handed:
            return
        name = self.rng.choice(sorted(self.handed))
        timer = self.handed.pop(name)
        # After the ack time-out another handler may have it, or another copy was received.
        whose = "its handler" if vars_of(self.engine).get(timer.key) is timer else "a former handler"
        match self.rng.randrange(5):
            case 0:
                self.meets(f"{whose} is done", lambda: self.engine.done(timer), name)
            case 1:
                self.meets(f"{whose} failed", lambda: self.engine.failed(timer), name)
            case 2:
                self.meets(f"{whose} puts it off", lambda: self.engine.postponed(timer, self.now_ms, 5), name)
            case 3:
                redirect = ToRetry(self.now_ms + 5)
                self.meets(
                    f"{whose} wants it tried again", lambda: self.engine.redirected(timer, redirect, self.now_ms), name
                )
            case _:
                self.meets(
                    f"{whose} wants it parked", lambda: self.engine.redirected(timer, Parked("no"), self.now_ms), name
                )

    def publish(self) -> None:
        if not self.publishing:
            return
        name = self.rng.choice(sorted(self.publishing))
        timer = self.publishing.pop(name)
        if self.rng.random() < 0.7:
            self.meets("its publish is confirmed", lambda: self.engine.published(timer, self.now_ms), name)
        else:
            self.meets("its publish failed", lambda: self.engine.not_published(timer, self.now_ms), name)

    def cut(self) -> None:
        if self.judges and self.rng.random() < 0.2:
            self.dead.add(self.rng.choice(IDS))


def vars_of(engine: Engine) -> dict[str, InFlight]:
    """What an engine has in flight, by key."""
    found: dict[str, InFlight] = engine._in_flight
    return found


def walk(seed: int, steps: int, *, judges: bool) -> set[Met]:
    """All that one walk meets."""
    one = _Walk(seed, judges=judges)
    for _ in range(steps):
        one.step()
    return one.met
