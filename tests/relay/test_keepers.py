"""Which topics of earlier plans a relay drains, and when the slots of a ring are visited, by a clock that jumps."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.relay.relay_world import PLAN, ROUTER
from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of
from timewheel.core.errors import AdminError, TopologyError
from timewheel.core.plan import Ring, Wheel
from timewheel.core.steps import steps
from timewheel.core.topology import FormerTopic, HoldingTopic, holding_topic
from timewheel.relay.driver.former_topic_drainer import LOOK_MS, FormerTopicDrainer
from timewheel.relay.driver.partition import WAKE_MS, SlotScheduler
from timewheel.relay.driver.source import Memory
from timewheel.relay.machine.visits import OPEN_AHEAD_MS, Visit, next_times
from timewheel.testing import eventually

DUE = PLAN.due_topic


def topic(name: str, *, backlog: int = 0, producers: int = 0, due: bool = False) -> FormerTopic:
    full = f"{DUE}.tw.{name}"
    return FormerTopic(name=full, holding=holding_topic(PLAN, full), is_due=due, backlog=backlog, producers=producers)


class Read:
    """A partition that is read until it is told to stop."""

    def __init__(self, holding: HoldingTopic) -> None:
        self.source = SimpleNamespace(
            topic=holding.name, name=f"{holding.name}-partition-0", step=holding.step, partition=0
        )
        self._stopped = threading.Event()
        self.handle = SimpleNamespace(stop=lambda _: self._stopped.set())

    def run(self) -> None:
        assert self._stopped.wait(10)


class World:
    """What is there, and what the keeper makes of it."""

    def __init__(self) -> None:
        self.found: list[FormerTopic] | Exception = []
        self.refuses = False
        self.told: list[str] = []
        self.clock = ManualClock()
        tools: Any = SimpleNamespace(router=ROUTER, clock=self.clock, rng=random.Random(1), hooks=self, memory=Memory())
        self.scheduler = FormerTopicDrainer(self._look, self._partitions_of, tools)

    def emit(self, event: Any) -> None:
        self.told.append(event.name)

    def inspect(self, *found: FormerTopic) -> list[str]:
        """What is read after a look that found this."""
        self.found = list(found)
        self.scheduler.inspect()
        return self.reading()

    def reading(self) -> list[str]:
        partitions = [partition for workers in self.scheduler.workers_of for partition in workers.partitions]
        return sorted(partition.source.topic.removeprefix(f"{DUE}.tw.") for partition in partitions)

    def unreadable(self) -> list[str]:
        return list(self.scheduler.unreadable)

    def _look(self) -> list[FormerTopic]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def _partitions_of(self, holding: HoldingTopic) -> Any:
        if self.refuses:
            raise TopologyError(DUE, "has 1 partition, and the plan says 2", "run: timewheel topics ensure PLAN")
        return [Read(holding)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.scheduler.stop(0)
    made.scheduler.join(1_000)


def test_what_has_timers_or_producers_is_drained_until_it_is_empty_twice(world: World) -> None:
    assert world.inspect(topic("tier-1h"), topic("tier-2h", backlog=1), topic("tier-3h", producers=1)) == [
        "tier-2h",
        "tier-3h",
    ]
    assert world.told == ["relay_drains_former_topic"] * 2
    assert world.inspect(topic("tier-2h"), topic("tier-3h")) == ["tier-2h", "tier-3h"], "empty once"
    assert world.inspect(topic("tier-2h", producers=1), topic("tier-3h")) == ["tier-2h"]
    assert world.inspect(topic("tier-2h")) == ["tier-2h"]
    assert world.inspect(topic("tier-2h")) == []
    assert [*world.scheduler.workers_of] == [], "what was let go is not kept in mind"
    assert world.inspect(topic("tier-2h", backlog=7)) == ["tier-2h"], "a late comer"


def test_what_is_removed_is_let_go_at_once(world: World) -> None:
    assert world.inspect(topic("tier-1h", backlog=1)) == ["tier-1h"]
    assert world.inspect() == []


def test_what_cannot_be_read_is_told_once_for_as_long_as_something_waits_there(world: World) -> None:
    strange = topic("later-1h", backlog=3)
    for _ in range(3):
        assert world.inspect(strange, topic("1d-20260101", backlog=5, due=True)) == []
        assert world.unreadable() == [strange.name]
    assert world.told == ["relay_former_topic_unreadable"], "and a due topic is the consumers' business"
    world.inspect(topic("later-1h", producers=1))
    assert world.unreadable() == []


def test_what_is_parked_is_an_operators_and_leaves_the_relay_ready(world: World) -> None:
    parked = replace(topic("parked.billing", backlog=3), parked_by="billing")
    assert world.inspect(parked) == []
    assert world.unreadable() == world.told == []


def test_what_the_plans_topics_cannot_take_is_told_and_tried_again(world: World) -> None:
    world.refuses = True
    assert world.inspect(topic("tier-1h", backlog=1)) == []
    assert world.unreadable() == [f"{DUE}.tw.tier-1h"]
    world.refuses = False
    assert world.inspect(topic("tier-1h", backlog=1)) == ["tier-1h"]
    assert world.unreadable() == []
    assert world.told == ["relay_former_topic_unreadable", "relay_drains_former_topic"]


@pytest.mark.parametrize("error", [AdminError(500, "GET topics", "no"), ZeroDivisionError()])
def test_a_look_without_an_answer_is_told_once_and_changes_nothing(world: World, error: Exception) -> None:
    world.found = [topic("tier-1h", backlog=1)]
    world.scheduler.start()
    assert world.reading() == ["tier-1h"]
    world.found = error
    for _ in range(3):
        world.clock.await_wait(LOOK_MS)
        world.clock.advance(LOOK_MS)
    eventually(lambda: world.told.count("relay_former_topics_unknown") == 1)
    assert world.reading() == ["tier-1h"]
    world.clock.await_wait(LOOK_MS)
    world.found = []
    world.clock.advance(LOOK_MS)
    eventually(lambda: world.reading() == [])


START_MS = 1_767_225_600_000
SLOT_MS, SLOTS = 60_000, 8
RINGS = plan_of(Wheel(rings=(Ring(slot_ms=SLOT_MS, slots=SLOTS),)), max_delay_ms=300_000, guard_ms=2_000)


class Slot:
    """A partition that only remembers when it was to be visited."""

    def __init__(self, slot: int) -> None:
        held = SimpleNamespace(slot=slot)
        self.source = SimpleNamespace(step=steps(RINGS)[0], holding=held, name=f"slot {slot}")
        self.visits: list[Visit] = []

    def visit(self, visit: Visit) -> bool:
        self.visits.append(visit)
        return False


class Keeper:
    """A ring's keeper in its thread, under a clock that a test moves."""

    def __init__(self, *, ahead_ms: int = 0) -> None:
        self.clock = ManualClock(START_MS)
        self.clock.ahead_ms = ahead_ms
        self.slots = [Slot(number) for number in range(SLOTS)]
        partitions: Any = self.slots
        tools: Any = SimpleNamespace(clock=self.clock, router=SimpleNamespace(is_native=False))
        self.slot_scheduler = SlotScheduler(partitions, tools)
        self.slot_scheduler.start()
        eventually(self.slot_scheduler.caught_up.is_set)
        for slot in self.slots:
            slot.visits.clear()

    def pass_time(self, duration_ms: int) -> None:
        """In small steps, each of which the keeper takes notice of."""
        for _ in range(duration_ms // 500):
            eventually(lambda: any(left_ms > 0 for left_ms in self.clock.left_ms), poll=0.001)
            self.clock.advance(500)

    def stop(self) -> None:
        self.slot_scheduler.stop()
        self.slot_scheduler.join(1_000)


@pytest.fixture
def keepers() -> Iterator[list[Keeper]]:
    made: list[Keeper] = []
    yield made
    for scheduler in made:
        scheduler.stop()


def first_visits() -> dict[int, Visit]:
    """The first one of each slot after the start."""
    return {number: Visit.at(next_times(steps(RINGS)[0], number, START_MS)) for number in range(SLOTS)}


def test_each_slot_is_visited_shortly_before_its_release_once_a_turn(keepers: list[Keeper]) -> None:
    keepers.append(scheduler := Keeper())
    scheduler.pass_time(SLOTS * SLOT_MS - OPEN_AHEAD_MS - WAKE_MS)
    eventually(lambda: all(slot.visits for slot in scheduler.slots))
    assert {number: slot.visits[0] for number, slot in enumerate(scheduler.slots)} == first_visits()
    assert all(len(slot.visits) == 1 for slot in scheduler.slots)


@pytest.mark.parametrize("ahead_ms", [5 * 60_000, 600])
def test_a_clock_that_was_ahead_and_is_put_right_skips_no_visit(keepers: list[Keeper], ahead_ms: int) -> None:
    """Five minutes ahead at the start, the keeper passed over five slots, whose timers then waited for a whole turn."""
    keepers.append(scheduler := Keeper(ahead_ms=ahead_ms))
    scheduler.pass_time(10_000)
    scheduler.clock.ahead_ms = 0
    scheduler.pass_time(SLOTS * SLOT_MS - 10_000)
    for number, visit in first_visits().items():
        if visit.sweeps_ms[0] - OPEN_AHEAD_MS < START_MS + SLOTS * SLOT_MS - WAKE_MS:
            eventually(lambda slot=scheduler.slots[number], visit=visit: visit in slot.visits)  # type: ignore[misc]
