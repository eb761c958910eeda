"""Beginnings of relays that subscribe anew, on a model of a subscription; controls must lose or get nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.relay.failover_world import FailoverWorld
from timewheel.client.positions import Position
from timewheel.relay.machine.order import MEETINGS, Beginning, Sign

SEEDS = range(1_000)


class Forgetful(Beginning):
    """A control: each subscription begins from nothing."""

    def outlives(self) -> None:
        Beginning.__init__(self)


def after(meetings: int) -> Callable[[], Beginning]:
    """Make a control that believes after so many meetings, in whichever subscriptions."""

    class Hasty(Beginning):
        def outlives(self) -> None:
            self._meetings_needed = meetings

    return Hasty


@pytest.mark.parametrize("relays", [1, 2, 3])
def test_relays_that_subscribe_anew_at_encrypted_batches_lose_and_repeat_nothing(relays: int) -> None:
    worlds = [FailoverWorld(seed, relays=relays) for seed in SEEDS]
    assert sum(world.lost for world in worlds) == 0
    assert sum(world.repeated for world in worlds) == 0
    assert not any(world.is_stuck for world in worlds)


@pytest.mark.parametrize("meetings", [1, MEETINGS])
def test_control_carrying_a_beginning_that_became_false_loses(meetings: int) -> None:
    """Another relay met the messages before it once more, while this relay subscribed anew."""
    worlds = [FailoverWorld(seed, relays=2, beginning=after(meetings)) for seed in SEEDS]
    assert sum(world.lost for world in worlds) > 0


def test_control_forgetting_its_beginning_never_gets_past_an_encrypted_batch() -> None:
    assert any(FailoverWorld(seed, relays=1, beginning=Forgetful).is_stuck for seed in range(10))


def test_a_beginning_over_subscriptions_takes_more_meetings() -> None:
    it = Beginning()
    first = Position(7, 3, -1)
    assert it.see(first, 0) is Sign.ASK
    it.outlives()
    assert [it.see(first, 0) for _ in range(3)] == [Sign.ASK, Sign.ASK, Sign.BEGUN]
    assert it.see(Position(7, 2, -1), 0) is Sign.ASK, "an earlier message begins anew"
