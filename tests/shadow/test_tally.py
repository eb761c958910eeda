"""What a partition holds and what would become of it: gaps against a cursor that is played entry by entry."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import plans
from tests.support.plans import plan_of
from tests.support.stored_entry import entry_of
from timewheel.broker.admin.stats import AckedRange, Ledger
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import NUDGE_PROPERTY
from timewheel.core.plan import Plan, Tiered
from timewheel.shadow.machine.cursors import Acked, GapsLeft, Stretch, entries_after, stretches_of
from timewheel.shadow.machine.move_decider import LARGEST_BYTES, MoveDecider, MoveDecision
from timewheel.shadow.machine.survey_counters import PARTLY, SurveyCounters

NOW_MS = 1_767_225_600_000
PLAN = plan_of(Tiered(window_ms=10 * MINUTE_MS, tiers_ms=(10 * MINUTE_MS,)), relay="service", intake=True)

sizes = st.lists(st.integers(0, 6), max_size=4)


def ledgers_of(entries: list[int]) -> list[Ledger]:
    return [
        Ledger(ledger_id=3 + 2 * number, entries=count, size_bytes=0, offloaded=False)
        for number, count in enumerate(entries)
    ]


def positions_of(ledgers: list[Ledger]) -> list[EntryPosition]:
    return [EntryPosition(one.ledger_id, number) for one in ledgers for number in range(one.entries)]


def gaps_by_hand(every: list[EntryPosition], acked: set[EntryPosition]) -> int:
    """Ranges of acknowledged entries behind the first pending one, each within a ledger; none if nothing is pending."""
    pending = [number for number, position in enumerate(every) if position not in acked]
    behind = every[pending[0] :] if pending else []
    return sum(is_acked for (_, is_acked), _ in groupby(behind, lambda one: (one.ledger, one in acked)))


@given(entries=sizes, chosen=st.data())
def test_gaps_are_those_of_a_cursor(entries: list[int], chosen: st.DataObject) -> None:
    ledgers = ledgers_of(entries)
    every = positions_of(ledgers)
    acked = set(chosen.draw(st.lists(st.sampled_from(every), unique=True))) if every else set()
    left = GapsLeft(ledgers)
    for position in every:
        if position not in acked:
            left.stays(position)
    if every:
        assert left.up_to(every[-1]) == gaps_by_hand(every, acked)


@given(entries=sizes, behind=st.integers(0, 24), most=st.integers(1, 30), pieces=st.integers(1, 5))
def test_stretches_are_apart_and_in_order(entries: list[int], behind: int, most: int, pieces: int) -> None:
    ledgers = ledgers_of(entries)
    every = positions_of(ledgers)
    after = every[behind] if behind < len(every) else EntryPosition(3, -1)
    left = [position for position in every if position > after]
    assert entries_after(ledgers, after) == len(left)
    found = stretches_of(ledgers, after, most, pieces)
    assert bool(found) == bool(left)
    read = [[position for position in left if one.after < position <= one.upto] for one in found]
    assert [len(one) for one in read] == [one.entries for one in found]
    flat = [position for one in read for position in one]
    assert flat == sorted(set(flat))
    assert len(flat) <= most
    if len(left) <= most:
        assert flat == left
    elif most >= pieces > 1:
        assert flat[0] == left[0]
        assert flat[-1] == left[-1]


def test_a_stretch_begins_before_the_first_entry_of_a_ledger() -> None:
    assert stretches_of(ledgers_of([0, 2]), EntryPosition(3, -1), 9) == (
        Stretch(EntryPosition(5, -1), EntryPosition(5, 1), 2),
    )


def tally_of(*acked: Acked) -> SurveyCounters:
    ledgers = ledgers_of([100])
    return SurveyCounters(MoveDecider(PLAN), {f"s{number}": one for number, one in enumerate(acked)}, ledgers, NOW_MS)


FAR = {"deliver_at_ms": NOW_MS + HOUR_MS, "publish_ms": NOW_MS - HOUR_MS}
NEAR = {"deliver_at_ms": NOW_MS + MINUTE_MS}


def test_fates_delays_and_gaps_of_one_subscription() -> None:
    tally = tally_of(Acked(EntryPosition(3, -1), [AckedRange(EntryPosition(3, 1), EntryPosition(3, 2))]))
    for number, one in enumerate((FAR, NEAR, NEAR, FAR, FAR, {})):
        tally.see(entry_of(3, number, **one))
    # 0 far, 1 near, 2 acknowledged, 3 far, 4 far, 5 undelayed
    assert {name: heap.entries for name, heap in tally.decisions.items()} == {
        MoveDecision.MOVE.value: 3,
        MoveDecision.NEAR.value: 1,
        MoveDecision.UNDELAYED.value: 1,
    }
    assert tally.settled == 1
    assert list(tally.remaining_ms) == [HOUR_MS] * 3
    assert sorted(tally.delays_ms)[-3:] == [2 * HOUR_MS, 2 * HOUR_MS, NOW_MS + MINUTE_MS]
    # now: 2 alone; afterwards 2, 3 and 4 are one gap, and 0 is below the mark-delete position
    assert tally.gaps("s0", EntryPosition(3, 5)) == (1, 1)


def test_lifting_makes_gaps_where_near_and_far_alternate() -> None:
    tally = tally_of(Acked(EntryPosition(3, -1)))
    for number in range(10):
        tally.see(entry_of(3, number, **(NEAR if number % 2 else FAR)))
    assert tally.gaps("s0", EntryPosition(3, 9)) == (0, 4)
    assert tally.decisions[MoveDecision.MOVE.value].size_bytes == 50


def test_what_is_acknowledged_by_some_stays() -> None:
    tally = tally_of(Acked(EntryPosition(3, 0)), Acked(EntryPosition(3, -1)))
    tally.see(entry_of(3, 0, **FAR))
    tally.see(entry_of(3, 1, **FAR))
    assert {name: heap.entries for name, heap in tally.decisions.items()} == {PARTLY: 1, MoveDecision.MOVE.value: 1}
    assert tally.gaps("s0", EntryPosition(3, 1)) == (0, 0)
    assert tally.gaps("s1", EntryPosition(3, 1)) == (0, 1)


def test_stretches_are_counted_each_for_itself() -> None:
    tally = tally_of(Acked(EntryPosition(3, -1), [AckedRange(EntryPosition(3, 1), EntryPosition(3, 7))]))
    tally.see(entry_of(3, 0, **NEAR))
    tally.new_stretch()
    tally.see(entry_of(3, 8, **NEAR))
    assert tally.gaps("s0", None) == (0, 0)


ENTRIES = st.builds(
    lambda left_ms, age_ms, changes: {
        "publish_ms": NOW_MS - age_ms,
        "deliver_at_ms": None if left_ms is None else NOW_MS + left_ms,
        **changes,
    },
    st.none() | st.integers(-DAY_MS, 40 * DAY_MS),
    st.integers(0, 40 * DAY_MS),
    st.sampled_from(
        [
            {},
            {},
            {"batch_size": 3},
            {"is_encrypted": True},
            {"payload_bytes": LARGEST_BYTES + 1},
            {"properties": {NUDGE_PROPERTY: "1"}},
            {"properties": {"tw-id": "t", "tw-timer": "broken"}},
        ]
    ),
)


@given(st.lists(ENTRIES, max_size=30), plans("tiered", "wheel"), plans("tiered", "wheel"), st.sets(st.integers(0, 29)))
def test_a_topic_that_was_read_by_one_plan_is_counted_by_another(
    entries: list[dict[str, Any]], one: Plan, other: Plan, done: set[int]
) -> None:
    """So a plan that is made from the entries is surveyed without reading them again."""
    ranges = [AckedRange(EntryPosition(3, number - 1), EntryPosition(3, number)) for number in sorted(done)]
    cursors = {"s0": Acked(EntryPosition(3, -1), ranges), "s1": Acked(EntryPosition(3, -1))}
    tallies = [SurveyCounters(MoveDecider(plan), cursors, ledgers_of([100]), NOW_MS) for plan in (one, other)]
    for number, changes in enumerate(entries):
        for tally in tallies:
            tally.see(entry_of(3, number, **changes))
    found, wanted = tallies[0].under(MoveDecider(other)), tallies[1]
    assert (found.decisions, found.remaining_ms) == (wanted.decisions, wanted.remaining_ms)
    assert found.native_per_ms == wanted.native_per_ms
    assert found.stays(HOUR_MS) == wanted.stays(HOUR_MS)
    for name in cursors:
        assert found.gaps(name, EntryPosition(3, 99)) == wanted.gaps(name, EntryPosition(3, 99))
    again = tallies[0].under(MoveDecider(one))
    assert (again.decisions, again.native_per_ms) == (tallies[0].decisions, tallies[0].native_per_ms)
