"""Gaps by what lies in a topic: as a broker counts them, and within the band where only some of it is seen."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plan_samples import NOW_MS, SUBSCRIPTION, TOPIC, part_of, plan_of, sample_of, timer
from timewheel.client.positions import EntryPosition
from timewheel.inspect.entries import Place
from timewheel.inspect.plan_sample import draw_pairs
from timewheel.watch.comparison import GapComparison, comparisons, together

TICK_MS = 1
"""So short that the band is the sample's alone."""


def comparison(due: list[bool], *, per_ledger: int = 10**6, mark_delete: int = -1) -> GapComparison:
    """Of a topic whose entries are due, or not."""
    places = [EntryPosition(1 + number // per_ledger, number % per_ledger) for number in range(len(due))]
    ledgers = tuple(
        (1 + number // per_ledger, len(due[number : number + per_ledger])) for number in range(0, len(due), per_ledger)
    )
    timers = [
        timer(0, NOW_MS - 100_000, NOW_MS - 50_000 if is_due else NOW_MS + 50_000, place=Place(TOPIC, place))
        for is_due, place in zip(due, places, strict=True)
    ]
    marked = EntryPosition(1, -1) if mark_delete < 0 else places[mark_delete]
    part = part_of(len(due), ledgers=ledgers, mark_delete=marked)
    (found,) = comparisons(sample_of(plan_of(), timers, part), TICK_MS)
    return found


def counted(due: list[bool], per_ledger: int, mark_delete: int) -> int:
    """Runs of acknowledged entries behind the mark-delete position, each cut where a ledger ends."""
    runs, before = 0, None
    for number in range(mark_delete + 1, len(due)):
        if due[number] and (before is not True or number % per_ledger == 0):
            runs += 1
        before = due[number]
    return runs


@pytest.mark.parametrize(
    ("due", "gaps"),
    [
        ([False], 0),
        ([False, True], 1),
        ([False, True, True, False, True], 2),
        ([False, False, False], 0),
        ([True, True, False, True], 1),  # what is before the first open one is not behind it
    ],
)
def test_a_gap_begins_where_a_done_entry_follows_an_open_one(due: list[bool], gaps: int) -> None:
    assert comparison(due).predicted == gaps


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(1, 12), st.data())
def test_who_sees_all_counts_as_the_broker_does(due: list[bool], per_ledger: int, data: st.DataObject) -> None:
    first_open = due.index(False) if False in due else len(due)
    # All that is behind the mark-delete position begins with an entry that is open.
    mark_delete = data.draw(st.sampled_from([first_open - 1, -1])) if first_open in (0, len(due)) else first_open - 1
    if first_open == len(due):
        return  # nothing waits: brokers then move the mark-delete position to the end
    found = comparison(due, per_ledger=per_ledger, mark_delete=mark_delete)

    assert found.predicted == counted(due, per_ledger, mark_delete)
    assert found.error == 0
    assert found.pending == due[mark_delete + 1 :].count(False)


def test_the_truth_lies_within_the_band_of_a_sample_in_19_of_20() -> None:
    """Of neighbours that are alike: due times come in runs of 20, which single entries would not show."""
    source = random.Random(5)
    due = [False] + [is_due for _ in range(500) for is_due in [source.random() < 0.4] * 20]
    truth = counted(due, 10**6, -1)
    timers = [timer(n, NOW_MS - 9, NOW_MS - 50_000 if one else NOW_MS + 50_000) for n, one in enumerate(due)]
    part = part_of(len(due))
    within = 0
    for seed in range(60):
        chosen = [timers[number] for number in draw_pairs(len(due), 1_500, seed)]
        (found,) = comparisons(sample_of(plan_of(), chosen, part, population=len(due)), TICK_MS)
        within += abs(found.predicted - truth) <= found.error
    assert within >= 54


@given(st.integers(2, 400), st.integers(2, 60), st.integers(0, 10**6))
def test_pairs_are_neighbours_and_no_more_than_asked_for(population: int, samples: int, seed: int) -> None:
    found = draw_pairs(population, samples, seed)

    assert len(found) == len(set(found)) <= samples
    assert set(found) <= set(range(population))
    if population <= samples:
        assert len(found) == population
    else:
        assert all({number - 1, number + 1} & set(found) for number in found)


def test_each_entry_of_a_topic_has_the_same_chance() -> None:
    times = [0] * 20
    for seed in range(4_000):
        for number in draw_pairs(20, 4, seed):
            times[number] += 1

    # Two heads of 19, each with its neighbour: a number is in a pair by 2 of 19 heads, the ends by 1.
    assert all(abs(count / 4_000 - 0.205) < 0.03 for count in times[1:-1])
    assert all(abs(count / 4_000 - 2 / 19) < 0.03 for count in (times[0], times[-1]))


BASE = GapComparison(
    name=TOPIC,
    subscription=SUBSCRIPTION,
    counted=100,
    predicted=100.0,
    less=10.0,
    more=5.0,
    error=20.0,
    pending=1_000.0,
    pending_error=50.0,
    fresh=10.0,
    backlog=1_000,
)


@pytest.mark.parametrize(
    ("count", "agrees"),
    [(100, True), (65, True), (64, False), (130, True), (131, False)],  # 100 - 10 - 20 - 5, 100 + 5 + 20 + 5
)
def test_a_count_agrees_within_ticks_sample_and_tolerance(count: int, agrees: bool) -> None:
    assert replace(BASE, counted=count).agrees == agrees


@pytest.mark.parametrize(("backlog", "overdue"), [(1_000, 0), (1_110, 0), (1_210, 96.5)])  # 1,010 + 50 + 50.5 + 3
def test_what_is_due_and_waits_is_told_beyond_what_may_be_chance(backlog: int, overdue: float) -> None:
    assert replace(BASE, backlog=backlog).overdue == overdue


def test_partitions_add_and_their_errors_by_their_squares() -> None:
    (whole,) = together("whole", [replace(BASE, error=3.0), replace(BASE, error=4.0, counted=7)])

    assert (whole.name, whole.counted, whole.predicted, whole.error, whole.backlog) == ("whole", 107, 200, 5, 2_000)
