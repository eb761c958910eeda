"""Which entries are acknowledged, by a cursor's ranges: against every entry looked up by hand."""

from __future__ import annotations

import time
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.broker.admin.stats import AckedRange, CursorStats
from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine.cursors import Acked, AckedByAll, AckedByAny

LEDGERS = (3, 4, 9)
ENTRIES = 7
EVERYTHING = [EntryPosition(ledger, entry) for ledger in LEDGERS for entry in range(ENTRIES)]


def cursor_of(acked: frozenset[int], *, spans: bool) -> tuple[Acked, set[EntryPosition]]:
    """A cursor that has acknowledged the entries of these numbers, as a broker would write it."""
    pending = [number for number in range(len(EVERYTHING)) if number not in acked]
    first = pending[0] if pending else len(EVERYTHING)
    mark_delete = EVERYTHING[first - 1] if first else EntryPosition(LEDGERS[0], -1)
    ranges = []
    behind = [number for number in sorted(acked) if number > first]
    for _, run in groupby(enumerate(behind), lambda one: (one[1] - one[0], 0 if spans else EVERYTHING[one[1]].ledger)):
        numbers = [number for _, number in run]
        head = EVERYTHING[numbers[0]]
        # A range that spans ledgers may begin behind the last entry of the ledger before.
        before = EVERYTHING[numbers[0] - 1] if spans else EntryPosition(head.ledger, head.entry - 1)
        ranges.append(AckedRange(before, EVERYTHING[numbers[-1]]))
    return Acked(mark_delete, ranges), {EVERYTHING[number] for number in acked}


numbers = st.frozensets(st.integers(0, len(EVERYTHING) - 1))


@given(acked=numbers, spans=st.booleans(), asked=st.lists(st.sampled_from(EVERYTHING)) | st.just(EVERYTHING))
def test_as_a_brute_force_in_the_topics_order_and_in_any(
    acked: frozenset[int], spans: bool, asked: list[EntryPosition]
) -> None:
    found, known = cursor_of(acked, spans=spans)
    for position in asked:
        assert (position in found) == (position in known)


@given(each=st.lists(numbers, min_size=1, max_size=3))
def test_several_subscriptions(each: list[frozenset[int]]) -> None:
    cursors = [cursor_of(acked, spans=False) for acked in each]
    by_any, by_all = (kind([found for found, _ in cursors]) for kind in (AckedByAny, AckedByAll))
    for position in EVERYTHING:
        assert (position in by_any) == any(position in known for _, known in cursors)
        assert (position in by_all) == all(position in known for _, known in cursors)


@pytest.mark.parametrize(
    ("position", "is_acked"),
    [
        ((4, 100), True),  # the mark-delete position itself
        ((4, 101), False),
        ((4, 102), False),
        ((4, 103), True),
        ((4, 99_999), True),  # a range that goes on into the next ledger
        ((7, 0), True),
        ((7, 5), True),
        ((7, 6), False),
        ((8, 0), False),
        ((2, 5), True),
    ],
)
def test_as_the_broker_writes_it(position: tuple[int, int], is_acked: bool) -> None:
    cursor = CursorStats(
        mark_delete=EntryPosition(4, 100), read=EntryPosition(8, 1), gap_count=1, entries_since_mark_delete=9,
        consumed=0, cursor_ledger=12, state="Open", acked_text="[(4:102..7:5]]",
    )  # fmt: skip
    assert (EntryPosition(*position) in Acked.of(cursor)) is is_acked


def test_two_hundred_thousand_ranges_are_asked_through_in_a_moment() -> None:
    ranges = [AckedRange(EntryPosition(5, 2 * n), EntryPosition(5, 2 * n + 1)) for n in range(200_000)]
    found = Acked(EntryPosition(5, -1), ranges)
    began = time.process_time()
    acked = sum(EntryPosition(5, entry) in found for entry in range(400_000))
    assert acked == 200_000
    assert time.process_time() - began < 5  # 0.3 s where nothing else runs
