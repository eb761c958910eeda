"""Whatever crashes and is forgotten: no timer is lost, and none is handled from two places within what is promised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shadow.protocol import RIGHT, Rules, World, far_delay_ms

Happening = tuple[str, int]

HAPPENINGS: dict[str, Callable[[World, int], None]] = {
    "send": lambda world, number: world.send(far_delay_ms(number)),
    "send near": lambda world, number: world.send(1_000 * number),
    "tick": lambda world, number: world.tick(1 + number * 2),
    "begin": lambda world, _: world.begin(),
    "move": lambda world, number: world.move(1 + number),
    "store": lambda world, number: world.store(1 + number),
    "relay": lambda world, number: world.relay(1 + number),
    "kill mover": lambda world, number: world.kill_mover(number),
    "arrive": lambda world, number: world.arrive(1 + number),
    "change plan": lambda world, number: world.change_plan(number),
    "kill relay": lambda world, number: world.kill_relay(1 + number),
    "kill relay late": lambda world, number: world.kill_relay_late(1 + number),
    "let go": lambda world, _: world.let_go(),
    "forget": lambda world, number: world.forget(number),
    "forget names": lambda world, _: world.forget_names(),
    "drain": lambda world, _: world.drain(),
    "resume": lambda world, _: world.resume(),
}
OFTEN = ("send", "send", "send", "move", "move", "store", "begin", "tick", "resume")
simulations = st.lists(st.tuples(st.sampled_from([*HAPPENINGS, *OFTEN]), st.integers(0, 7)), max_size=80)


def unsettled(simulation: list[Happening], rules: Rules = RIGHT, *, bounded: bool = True) -> World:
    world = World(rules, bounded=bounded)
    world.begin()
    for name, number in simulation:
        HAPPENINGS[name](world, number)
    return world


def played(simulation: list[Happening], rules: Rules = RIGHT, *, bounded: bool = True) -> World:
    world = unsettled(simulation, rules, bounded=bounded)
    world.settle()
    return world


@settings(max_examples=500)
@given(simulations)
def test_nothing_is_lost_and_nothing_repeated(simulation: list[Happening]) -> None:
    world = played(simulation)
    assert world.lost == []
    assert world.copies == []


@given(simulations)
def test_nothing_is_lost_however_long_nobody_works(simulation: list[Happening]) -> None:
    assert played(simulation, bounded=False).lost == []


PASSED_BY = [("send", 0), ("send", 3), ("move", 7), ("store", 7), ("relay", 7)]


@given(simulations)
def test_a_session_takes_up_all_that_others_have_passed_by(simulation: list[Happening]) -> None:
    world = unsettled([*PASSED_BY, *simulation, ("resume", 0), ("begin", 0), ("relay", 1_000)])
    world.move(1_000)
    world.store(1_000)
    assert world.passed_by == []


@pytest.mark.parametrize("way", [[("change plan", 1)], [("drain", 0), ("tick", 0), ("change plan", 1), ("resume", 0)]])
def test_what_one_plan_passes_by_another_one_lifts(way: list[Happening]) -> None:
    world = unsettled([*PASSED_BY, *way])
    assert 0 in world.passed_by
    world.begin()
    world.move(1_000)
    world.store(1_000)
    assert world.passed_by == []
    world.settle()
    assert (world.lost, world.copies) == ([], [])


SENT = [("send", 3), ("move", 7)]
LIFTED = [*SENT, ("store", 7)]
COURSES: dict[str, tuple[Rules, list[Happening]]] = {
    "acknowledged when it was sent, and killed": (Rules(reads_back=False), [*SENT, ("kill mover", 0)]),
    "on its way from a session that was killed": (
        Rules(fences=False),
        [*SENT, ("kill mover", 0), ("tick", 0), ("begin", 0), ("arrive", 7), ("move", 7), ("store", 7)],
    ),
    "hopped before it was acknowledged": (Rules(acks_first=False), [*LIFTED, ("relay", 7)]),
    "forgotten, and not acknowledged again": (Rules(acks_again=False), [*LIFTED, ("relay", 7), ("forget", 7)]),
    "forgotten, and the journal let go at once": (Rules(holds=False), [*LIFTED, ("relay", 7), ("forget", 7)]),
    "sent on, not acknowledged, and put back by another": (
        Rules(minds_others=False),
        [*LIFTED, ("kill relay late", 7), ("drain", 0), ("relay", 7)],
    ),
}


@pytest.mark.parametrize(("rules", "simulation"), COURSES.values(), ids=COURSES)
def test_a_wrong_shadow_is_seen(rules: Rules, simulation: list[Happening]) -> None:
    wrong, right = played(simulation, rules), played(simulation)
    assert wrong.lost or wrong.copies
    assert not right.lost
    assert not right.copies


def test_after_an_outage_beyond_the_promise_a_timer_comes_twice_and_is_not_lost() -> None:
    world = played([*LIFTED, *[("tick", 7)] * 6], bounded=False)
    assert world.copies
    assert not world.lost
