"""A nudge is due before what was moved, comes once for so many, and is taken out when the broker has read it."""

from __future__ import annotations

import pytest

from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine.nudges import FIRST_NUDGE, LEAST_AHEAD_MS, NUDGE_EVERY, READ_WITHIN_MS, Nudges

NOW_MS = 1_800_000_000_000
TICK_MS = 1_000


def nudged(dues_ms: list[int]) -> Nudges:
    nudges_of = Nudges(TICK_MS)
    for due_ms in dues_ms:
        nudges_of.moved(due_ms)
    return nudges_of


def test_the_first_comes_early_and_the_others_after_so_many() -> None:
    assert nudged([NOW_MS + 10**8] * (FIRST_NUDGE - 1)).wanted(NOW_MS) is None
    nudges_of = nudged([NOW_MS + 10**8] * FIRST_NUDGE)
    assert nudges_of.wanted(NOW_MS) is not None
    for _ in range(NUDGE_EVERY - 1):
        nudges_of.moved(NOW_MS + 10**8)
    assert nudges_of.wanted(NOW_MS) is None
    nudges_of.moved(NOW_MS + 10**8)
    assert nudges_of.wanted(NOW_MS) is not None


@pytest.mark.parametrize(("later_ms", "early"), [(-1, False), (0, True), (10**6, True)])
def test_one_comes_early_again_once_all_that_was_lifted_is_due(later_ms: int, early: bool) -> None:
    nudges_of = nudged([NOW_MS + 10**8, *[NOW_MS + 10**7] * FIRST_NUDGE])
    nudges_of.wanted(NOW_MS)
    then_ms = NOW_MS + 10**8 + later_ms
    assert nudges_of.wanted(then_ms) is None
    for _ in range(FIRST_NUDGE):
        nudges_of.moved(then_ms + 10**8)
    assert (nudges_of.wanted(then_ms) is not None) == early


def test_it_is_due_more_than_a_tick_before_the_earliest_of_them_and_wanted_once() -> None:
    nudges_of = nudged([NOW_MS + 10**8 - number for number in range(NUDGE_EVERY)])
    earliest_ms = NOW_MS + 10**8 - NUDGE_EVERY + 1
    assert nudges_of.wanted(NOW_MS) == earliest_ms - 2_500
    assert nudges_of.wanted(NOW_MS) is None


def test_the_earliest_is_counted_anew_for_each() -> None:
    nudges_of = nudged([NOW_MS + 10**6] * NUDGE_EVERY)
    nudges_of.wanted(NOW_MS)
    for _ in range(NUDGE_EVERY):
        nudges_of.moved(NOW_MS + 10**9)
    assert nudges_of.wanted(NOW_MS) == NOW_MS + 10**9 - 2_500


def test_it_is_never_due_so_soon_that_somebody_could_get_it() -> None:
    assert nudged([NOW_MS + 1_000] * NUDGE_EVERY).wanted(NOW_MS) == NOW_MS + LEAST_AHEAD_MS


def test_each_is_taken_out_once_after_the_broker_has_read_it() -> None:
    nudges_of, first, second = Nudges(TICK_MS), EntryPosition(1, 1), EntryPosition(1, 2)
    nudges_of.met(first, NOW_MS, NOW_MS)
    nudges_of.met(second, NOW_MS + 10, NOW_MS + 10)
    assert nudges_of.over(NOW_MS + READ_WITHIN_MS - 1) == []
    assert nudges_of.over(NOW_MS + READ_WITHIN_MS) == [first]
    assert nudges_of.over(NOW_MS + READ_WITHIN_MS + 10) == [second]
    assert nudges_of.over(NOW_MS + 10**6) == []


def test_shadows_that_are_killed_soon_after_they_read_it_take_it_out_in_time() -> None:
    for start_ms in range(NOW_MS, NOW_MS + READ_WITHIN_MS, READ_WITHIN_MS // 4):
        nudges_of = Nudges(TICK_MS)  # of the next shadow
        nudges_of.met(EntryPosition(1, 1), NOW_MS, start_ms)
        assert nudges_of.over(NOW_MS + READ_WITHIN_MS - 1) == []
        assert nudges_of.over(NOW_MS + READ_WITHIN_MS) == [EntryPosition(1, 1)]


@pytest.mark.parametrize("published_ms", [0, NOW_MS - 1, NOW_MS + 1, 2**63 - 1])
def test_no_publish_time_keeps_it_or_others_in_the_topic(published_ms: int) -> None:
    nudges_of, forged, own = Nudges(TICK_MS), EntryPosition(1, 1), EntryPosition(1, 2)
    nudges_of.met(forged, published_ms, NOW_MS)
    nudges_of.met(own, NOW_MS, NOW_MS)
    assert set(nudges_of.over(NOW_MS + READ_WITHIN_MS)) >= {own, forged}
