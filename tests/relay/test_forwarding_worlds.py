"""Decisions on messages against a model of deduplicating topics: thousands of crashes, and controls that must lose."""

from __future__ import annotations

import pytest

from tests.relay.relay_world import ROUTER, SOURCE, Rules, play
from tests.support.wrong_hops import WallClock

SEEDS = range(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_only_the_late_lane_repeats(seed: int) -> None:
    world = play(seed)
    assert world.lost() == 0
    assert world.extra_on_time() == 0
    assert world.unnamed() == []
    assert world.late_copies == 0
    assert all(len(routes) == 1 for routes in world.routed.values()), "a replay goes where it went, under its number"


def test_the_worlds_have_what_they_are_about() -> None:
    worlds = [play(seed) for seed in SEEDS]
    assert sum(len(world.late) for world in worlds) > 100
    assert sum(len(world.on_time) for world in worlds) > 5_000
    assert sum(world.late.total() - len(world.late) for world in worlds) > 0, "no crash ever fell into the late lane"
    assert sum(len(world.named) for world in worlds) > 200
    assert sum(world.jumps for world in worlds) > 100


def test_control_going_on_behind_what_is_hidden_without_a_letter_acknowledges_it() -> None:
    def play_all() -> None:
        for seed in SEEDS:
            play(seed, rules=Rules(names_hidden=False))

    with pytest.raises(AssertionError, match="is not confirmed"):
        play_all()


def test_control_a_late_hop_without_a_look_at_the_named_lane_stores_a_copy() -> None:
    worlds = [play(seed, rules=Rules(looks_before_late=False)) for seed in SEEDS]
    assert sum(world.late_copies for world in worlds) > 0


def test_control_trusting_the_first_message_loses() -> None:
    """As a Failover subscription gives it when its active consumer changes: see `beginning`."""
    worlds = [play(seed, trusting=True) for seed in SEEDS]
    assert sum(world.lost() for world in worlds) > 0


def test_control_routing_by_the_wall_clock_loses() -> None:
    worlds = [play(seed, next_hop=WallClock(ROUTER, SOURCE)) for seed in SEEDS]
    assert sum(world.lost() for world in worlds) > 0


# broker-facts: batched-hops


@pytest.mark.parametrize(
    ("rules", "loses"),
    [
        (Rules(cut_at_mark=False), False),
        (Rules(numbered_by="start"), False),
        (Rules(numbered_by="start", cut_at_mark=False), True),
        (Rules(client_cuts=True), True),
    ],
)
def test_controls_that_group_otherwise_send_copies_or_lose(rules: Rules, *, loses: bool) -> None:
    worlds = [play(seed, rules=rules) for seed in SEEDS]
    lost = sum(world.lost() for world in worlds)
    assert (lost > 0) is loses
    assert lost or sum(world.extra_on_time() for world in worlds) > 0
