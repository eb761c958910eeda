"""Which topics of earlier plans a relay drains, from one look to the next."""

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
from timewheel.core.errors import AdminError, TopologyError
from timewheel.core.topology import FormerTopic, HoldingTopic, holding_topic
from timewheel.relay.driver.former_topic_drainer import LOOK_MS, FormerTopicDrainer
from timewheel.relay.driver.source import Memory
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
