"""The audit of a shadow: what is found where, and what is wrong; against a model that knows every copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored_entry import entry_of
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import MAX_TIMER_ID_CHARS, Envelope
from timewheel.core.ids import native_id
from timewheel.shadow.machine.audit import Audit, Place, Trouble, Wrong
from timewheel.shadow.stored_entries import key_of, original_of, timers_in

NOW_MS = 1_767_225_600_000
FUTURE_MS = NOW_MS + 60_000
PART = "persistent://acme/crm/reminders"
COPY = EntryPosition(9, 0)


def troubles_of(*met: tuple[Place, bool], is_acked: bool = True, due_ms: int = FUTURE_MS) -> list[Wrong]:
    """Of one copy that was met there."""
    original = EntryPosition(3, 5)
    audit = Audit()
    audit.holds(7, due_ms, original, COPY)
    audit.close_journal()
    for place, may_have_moved in met:
        audit.meets(7, place, may_have_moved=may_have_moved)
    found = list(audit.troubles({original} if is_acked else set(), NOW_MS))
    assert all(one == Trouble(one.wrong, 7, due_ms, original, COPY) for one in found)
    return [one.wrong for one in found]


@pytest.mark.parametrize(
    ("met", "is_acked", "due_ms", "wrong"),
    [
        ([(Place.HOLDING, False)], True, FUTURE_MS, []),
        ([(Place.JOURNAL, False)], True, FUTURE_MS, []),
        ([], True, FUTURE_MS, [Wrong.LOST]),
        ([], True, NOW_MS, []),
        ([(Place.HOLDING, False), (Place.DUE, False)], True, FUTURE_MS, [Wrong.DOUBLE]),
        ([(Place.DUE, False), (Place.DUE, False)], True, FUTURE_MS, [Wrong.DOUBLE]),
        # A part of the first batch may have been sent on already.
        ([(Place.HOLDING, True), (Place.DUE, False)], True, FUTURE_MS, []),
        ([(Place.HOLDING, True)], True, FUTURE_MS, []),
        ([(Place.JOURNAL, False)], False, FUTURE_MS, [Wrong.UNACKED_ORIGINALS]),
        ([(Place.DUE, False)], False, FUTURE_MS, [Wrong.UNACKED_ORIGINALS]),
    ],
)
def test_what_is_wrong_with_a_copy(
    met: list[tuple[Place, bool]], is_acked: bool, due_ms: int, wrong: list[Wrong]
) -> None:
    assert troubles_of(*met, is_acked=is_acked, due_ms=due_ms) == wrong


@given(
    copies=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.sampled_from([*Place][:4]), st.booleans()),
        unique_by=lambda one: one[0],
        max_size=30,
    ),
    strangers=st.lists(st.integers(-(2**63), 2**63 - 1)),
)
def test_every_copy_is_counted_where_it_is(copies: list[tuple[int, Place, bool]], strangers: list[int]) -> None:
    audit = Audit()
    for number, (key, _, _) in enumerate(copies):
        audit.holds(key, FUTURE_MS + number, EntryPosition(3, number), EntryPosition(9, number))
    audit.close_journal()
    held = {key for key, _, _ in copies}
    for key in strangers:
        if key not in held:
            audit.meets(key, Place.DUE)
    for key, place, is_there in copies:
        if is_there:
            audit.meets(key, place)
    places = audit.places()
    for place in [*Place][:4]:
        assert places[place] == sum(is_there and one is place for _, one, is_there in copies)
    acked_originals = {EntryPosition(3, number) for number in range(len(copies))}
    lost = {(one.key, one.due_ms, one.copy) for one in audit.troubles(acked_originals, NOW_MS)}
    assert lost == {
        (key, FUTURE_MS + number, EntryPosition(9, number))
        for number, (key, _, is_there) in enumerate(copies)
        if not is_there
    }


def test_a_timer_that_was_lifted_twice_is_no_double() -> None:
    audit = Audit()
    audit.holds(7, FUTURE_MS, EntryPosition(3, 5), EntryPosition(9, 0))
    audit.holds(7, FUTURE_MS, EntryPosition(3, 8), EntryPosition(9, 1))
    audit.close_journal()
    audit.meets(7, Place.HOLDING)
    audit.meets(7, Place.DUE, may_have_moved=True)  # where it came back, and was moved again
    acked_originals = {EntryPosition(3, 5), EntryPosition(3, 8)}
    assert not list(audit.troubles(acked_originals, NOW_MS))
    audit.meets(7, Place.DUE)
    assert [one.wrong for one in audit.troubles(acked_originals, NOW_MS)] == [Wrong.DOUBLE]


@given(st.text(max_size=40), st.integers(0, 2**31), st.integers(0, 2**20))
def test_an_id_leads_back_to_its_original(name: str, ledger: int, entry: int) -> None:
    part = PART + name
    position = EntryPosition(ledger, entry)
    assert original_of(native_id(part, position), part) == position
    assert original_of(native_id(part, position), PART + "another") in (None, position)
    assert original_of(f"{part}:{'9' * 5_000}:1", part) is None
    assert original_of(native_id("x" * MAX_TIMER_ID_CHARS, position), "x" * MAX_TIMER_ID_CHARS) == position


@pytest.mark.parametrize("timer_id", ["", "order-7", f"{PART}:a:3", f"{PART}-partition-0:3:4", "3:4", f"{PART}:3"])
def test_an_id_of_somebody_else_leads_nowhere(timer_id: str) -> None:
    assert original_of(timer_id, PART) is None


def test_keys_are_the_same_in_every_process() -> None:
    assert key_of("order-7") == key_of("order-7")
    assert key_of("order-7") != key_of("order-8")
    assert -(2**63) <= key_of("order-7") < 2**63


def test_timers_of_an_entry_without_a_batch() -> None:
    envelope = Envelope("order-7", FUTURE_MS, NOW_MS)
    (found,) = timers_in(entry_of(3, 4, properties=envelope.properties()))
    assert (found.timer_id, found.due_ms, found.original) == ("order-7", FUTURE_MS, None)
    assert not list(timers_in(entry_of(3, 4)))
    assert not list(timers_in(entry_of(3, 4, properties={"tw-timer": "garbled", "tw-id": "x"})))
    assert not list(timers_in(entry_of(3, 4, batch_size=3, payload=b"garbled", compression=0)))
