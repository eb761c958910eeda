"""A relay's budget, and what the client may receive ahead by it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timewheel.core.grouping import GROUP_BYTES
from timewheel.relay.driver.session import (
    BROKER_HELD_BYTES,
    BROKER_HELD_ENTRIES,
    MESSAGE_BYTES,
    RELAY_HELD_ENTRIES,
    Prefetch,
)
from timewheel.relay.driver.source import LEAST_WINDOW_BYTES, Memory
from timewheel.relay.machine.order import WINDOW_BYTES

MB = 1 << 20


def memory(budget_mb: int, readers: int) -> Memory:
    made = Memory(budget_mb * MB)
    made.share_with(readers)
    return made


@pytest.mark.parametrize(
    ("budget_mb", "readers", "entries", "window_bytes"),
    [
        (512, 1, 16, WINDOW_BYTES),
        (512, 16, 16, WINDOW_BYTES),
        (512, 32, 8, 8 * MB),
        (512, 300, 1, 512 * MB // 600),
        (512, 10_000, 1, LEAST_WINDOW_BYTES),
        (8, 1, 4, 4 * MB),
        (512, 0, 16, WINDOW_BYTES),
    ],
)
def test_a_share_is_half_queue_and_half_window(budget_mb: int, readers: int, entries: int, window_bytes: int) -> None:
    it = memory(budget_mb, readers)
    assert it.queue_entries(MB, 16) == entries
    assert it.window_bytes() == window_bytes


@given(budget_bytes=st.integers(MB, 1 << 34), readers=st.integers(1, 2_000), entry_bytes=st.integers(1, 8 * MB))
def test_all_shares_keep_to_the_budget_but_for_an_entry_and_a_small_window_each(
    budget_bytes: int, readers: int, entry_bytes: int
) -> None:
    it = Memory(budget_bytes)
    for _ in range(readers):
        it.share_with(1)
    queue_bytes = it.queue_entries(entry_bytes, 16) * entry_bytes
    over = max(queue_bytes - budget_bytes // 2 // readers, 0) + max(it.window_bytes() - budget_bytes // 2 // readers, 0)
    assert over <= entry_bytes + LEAST_WINDOW_BYTES
    if budget_bytes // 2 // readers >= max(entry_bytes, LEAST_WINDOW_BYTES):
        assert (queue_bytes + it.window_bytes()) * readers <= budget_bytes


@pytest.mark.parametrize(("readers", "entries"), [(1, 16), (7, 16), (8, 15), (32, 3), (61, 2), (62, 1), (300, 1)])
def test_the_page_about_relays_tells_what_the_default_allows(readers: int, entries: int) -> None:
    it = Prefetch(memory(512, readers), by_broker=False)
    it.begin()
    assert it.entries == entries


def test_who_reads_no_more_leaves_its_share_to_the_others() -> None:
    it = memory(512, 32)
    it.share_with(-16)
    assert it.queue_entries(MB, 16) == 16


def test_an_entry_that_is_larger_than_thought_asks_for_a_shorter_queue() -> None:
    it = Prefetch(memory(64, 2), by_broker=False)
    it.begin()
    assert it.entries == 7, "16 MB, and a group may take 2.2"
    assert not it.met(-1, 0, GROUP_BYTES)
    # 30 messages of 100 kB in one entry, each by itself small: 22 of them make it 2.2 MB, and 7 of those too many.
    assert [it.met(index, 30, 100_000 - MESSAGE_BYTES) for index in range(22)] == [False] * 21 + [True]
    it.begin()
    assert it.entries == 3, "of twice the size: it is not known how many MB follow"
    assert not any(it.met(index, 30, 100_000 - MESSAGE_BYTES) for index in range(30)), "now it is read to its end"
    assert not it.met(-1, 0, 2_500_000), "larger ones are known by now"
    assert it.met(-1, 0, 6 * MB)
    it.begin()
    assert it.entries == 2


def test_where_there_is_room_for_large_entries_they_change_nothing() -> None:
    it = Prefetch(memory(512, 1), by_broker=False)
    it.begin()
    assert it.entries == RELAY_HELD_ENTRIES
    assert not it.met(-1, 0, 5 * MB)


def test_the_first_of_an_entry_begins_a_new_sum() -> None:
    it = Prefetch(memory(1, 1), by_broker=False)
    it.begin()
    for _ in range(100):
        assert not it.met(0, 2, 100_000)
        assert not it.met(1, 2, 100_000)


def test_messages_that_a_broker_holds_are_many_and_small() -> None:
    it = Prefetch(memory(512, 1), by_broker=True)
    it.begin()
    assert it.entries == BROKER_HELD_ENTRIES
    crowded = Prefetch(memory(512, 300), by_broker=True)
    crowded.begin()
    assert crowded.entries == 512 * MB // 600 // BROKER_HELD_BYTES
    lengths = []
    for size in (MB, 2 * MB, 5 * MB):
        it.met(-1, 0, size - MESSAGE_BYTES)
        it.begin()
        lengths.append(it.entries)
    assert all(shorter <= longer for longer, shorter in pairwise(lengths))
    assert lengths[-1] == 256 // 5


@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=10_000), by_broker=st.booleans())
@example(sizes=[0] * 10_000, by_broker=True)
@example(sizes=list(range(3_000)), by_broker=True)
def test_an_entry_is_read_to_its_end_after_few_sessions(sizes: list[int], by_broker: bool) -> None:
    """Each session begins with its first message: a Shared subscription acknowledges an entry when all of it is."""
    it = Prefetch(memory(512, 2), by_broker=by_broker)
    sessions = 1
    it.begin()
    while any(it.met(index, len(sizes), size) for index, size in enumerate(sizes)):
        it.begin()
        sessions += 1
    assert sessions <= 9, "each halves a queue of 200"
    assert it.entries * (sum(sizes) + MESSAGE_BYTES * len(sizes)) <= 128 * MB or it.entries == 1


def test_a_session_begins_anew_before_the_queue_is_spent_by_what_is_not_counted() -> None:
    """The client asks for more when half of its queue is received: so many permits must be left."""
    it = Prefetch(memory(512, 1), by_broker=False)
    it.begin()
    assert it.entries == 16
    spent = [(it.met(-1, 0, 100, uncounted), it.is_spent) for uncounted in (7, 0, 1)]
    assert spent == [(False, False), (False, False), (False, True)]
    it.begin()
    assert not it.is_spent
