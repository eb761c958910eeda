"""A lost connection is opened anew once a broker serves its topic: not while it may come back, nor in vain."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import LOST_AFTER_MS
from timewheel.client.reopening import ATTEMPT_MS, Reopening, Trial


class Link:
    """A consumer or a producer."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.connected = True

    def is_connected(self) -> bool:
        return self.connected


class World:
    """Three connections of a session, and the trial of each attempt."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.trials: list[Trial] = []
        self.links = [Link(topic) for topic in ("source", "due", "due")]
        self.reopening = Reopening(self.clock, self.trials.append)

    def after(self, wait_ms: int) -> str | None:
        self.clock.advance(wait_ms)
        return self.reopening.inspect([(link.topic, link) for link in self.links])


@pytest.fixture
def world() -> World:
    return World()


def test_a_connection_that_is_soon_back_is_left_to_the_client(world: World) -> None:
    for link in world.links * 2:
        link.connected = False
        assert world.after(1) is None
        assert world.reopening.is_waiting
        assert world.after(LOST_AFTER_MS - 1) is None
        link.connected = True
        assert world.after(1) is None
        assert not world.reopening.is_waiting
    assert world.trials == []


def test_connections_that_are_away_in_turns_are_not_one_that_stays_away(world: World) -> None:
    _, first, second = world.links
    for _ in range(4):
        first.connected, second.connected = second.connected, not second.connected
        assert world.after(LOST_AFTER_MS - 1) is None
    assert world.trials == []


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_one_is_opened_anew_once_an_attempt_shows_that_a_broker_serves_it(world: World, lost: int) -> None:
    world.links[lost].connected = False
    world.after(0)
    for count in range(1, 5):
        assert world.after(LOST_AFTER_MS) is None, "what it has received, and sends to others, go on"
        assert len(world.trials) == count
        assert world.after(ATTEMPT_MS - 1) is None
        assert len(world.trials) == count, "too soon for another attempt"
    (trial,) = set(world.trials)
    trial.is_served = True
    assert world.after(0) == trial.topic == world.links[lost].topic


def test_a_trial_of_a_connection_that_came_back_is_forgotten(world: World) -> None:
    source, due, _ = world.links
    source.connected = False
    world.after(0)
    world.after(LOST_AFTER_MS)
    source.connected, due.connected = True, False
    world.trials[0].is_served = True
    assert world.after(0) is None
    assert world.after(LOST_AFTER_MS) is None
    assert [trial.topic for trial in world.trials] == ["source", "due"]
