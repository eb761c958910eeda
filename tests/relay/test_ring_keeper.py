"""When the slots of a ring are visited, by a clock that jumps."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of
from timewheel.core.plan import Ring, Wheel
from timewheel.core.steps import steps
from timewheel.relay.driver.partition import WAKE_MS, SlotScheduler
from timewheel.relay.machine.visits import OPEN_AHEAD_MS, Visit, next_times
from timewheel.testing import eventually

START_MS = 1_767_225_600_000
SLOT_MS, SLOTS = 60_000, 8
PLAN = plan_of(Wheel(rings=(Ring(slot_ms=SLOT_MS, slots=SLOTS),)), max_delay_ms=300_000, guard_ms=2_000)


class Slot:
    """A partition that only remembers when it was to be visited."""

    def __init__(self, slot: int) -> None:
        held = SimpleNamespace(slot=slot)
        self.source = SimpleNamespace(step=steps(PLAN)[0], holding=held, name=f"slot {slot}")
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
    return {number: Visit.at(next_times(steps(PLAN)[0], number, START_MS)) for number in range(SLOTS)}


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
