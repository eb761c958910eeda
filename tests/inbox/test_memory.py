"""The store in memory is bounded: what was done first is forgotten first, claims never."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from timewheel.consumers.inbox import Answer, MemoryInbox
from timewheel.errors import BadInbox, InboxFull

LEASE_MS, KEEP_MS = 1_000, 60_000


def test_when_full_what_was_done_first_is_forgotten_first_and_counted() -> None:
    inbox = MemoryInbox(3, clock=ManualClock())
    for key in ("first", "second"):
        inbox.claim(key, "a", LEASE_MS)
        inbox.done(key, "a", KEEP_MS)
    inbox.claim("claimed", "a", LEASE_MS)
    assert inbox.forgotten_early == 0

    assert inbox.claim("new", "a", LEASE_MS).answer is Answer.MINE
    assert (len(inbox), inbox.forgotten_early) == (3, 1)
    assert inbox.claim("second", "b", LEASE_MS).answer is Answer.DONE
    assert inbox.claim("claimed", "b", LEASE_MS).answer is Answer.TAKEN


def test_when_full_of_claims_another_is_refused_until_one_ends() -> None:
    clock = ManualClock()
    inbox = MemoryInbox(2, clock=clock)
    inbox.claim("one", "a", LEASE_MS)
    inbox.claim("two", "a", 2 * LEASE_MS)

    with pytest.raises(InboxFull, match=r"at most 2 keys; .*raise max_keys") as caught:
        inbox.claim("three", "a", LEASE_MS)
    assert (caught.value.limit, caught.value.unit) == (2, "keys")
    assert inbox.claim("one", "a", LEASE_MS).answer is Answer.MINE, "a claim of ones own needs no room"

    clock.advance(LEASE_MS)
    assert inbox.claim("three", "a", LEASE_MS).answer is Answer.MINE


def test_what_is_over_is_dropped_without_being_asked_for() -> None:
    clock = ManualClock()
    inbox = MemoryInbox(1_000, clock=clock)
    for number in range(500):
        inbox.claim(f"{number}", "a", LEASE_MS)
        inbox.done(f"{number}", "a", KEEP_MS)
    clock.advance(KEEP_MS)
    inbox.claim("new", "a", LEASE_MS)

    assert (len(inbox), inbox.forgotten_early) == (1, 0)


def test_renewals_do_not_add_up() -> None:
    inbox = MemoryInbox(10, clock=ManualClock())
    inbox.claim("key", "a", LEASE_MS)
    for extra_ms in range(1_000):
        assert inbox.renew("key", "a", LEASE_MS + extra_ms)

    assert len(inbox._ends) <= 2 * 10 + 2


def test_a_store_without_room_is_refused() -> None:
    with pytest.raises(BadInbox, match="max_keys: 0, must be at least 1"):
        MemoryInbox(0)
