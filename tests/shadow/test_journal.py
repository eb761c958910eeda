"""How far the journal is let go, and how long its copies wait for their originals: against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine import journal as journal_module
from timewheel.shadow.machine.journal import APART_MS, Journal, UnackedOriginals

HOLD_MS = 100


def at(entry: int) -> EntryPosition:
    return EntryPosition(7, entry)


def test_a_copy_is_let_go_only_after_its_original_was_passed_for_a_while() -> None:
    journal = Journal(HOLD_MS)
    journal.add(at(10), at(1))
    journal.add(at(20), at(2))
    assert journal.passed(at(10), 0) is None
    assert journal.passed(at(15), 99) is None
    assert journal.passed(at(15), 100) == at(1)
    assert journal.passed(at(15), 1_000) is None, "the second original is not passed"
    assert journal.passed(at(25), 2_000) is None
    assert journal.passed(at(25), 2_100) == at(2)
    assert journal.is_empty


def test_a_broker_that_forgets_begins_the_while_anew() -> None:
    journal = Journal(HOLD_MS)
    journal.add(at(10), at(1))
    journal.passed(at(12), 0)
    journal.passed(at(5), 50)
    assert journal.passed(at(12), 100) is None
    assert journal.passed(at(12), 199) is None
    assert journal.passed(at(12), 200) == at(1)


def test_however_many_copies_wait_few_checkpoints_stand_for_them() -> None:
    journal = Journal(HOLD_MS)
    for number in range(5 * journal_module.MAX_CHECKPOINTS):
        journal.add(at(number), at(number))
    assert len(journal._checkpoints) <= journal_module.MAX_CHECKPOINTS
    journal.passed(at(10**6), 0)
    assert journal.passed(at(10**6), HOLD_MS) == at(5 * journal_module.MAX_CHECKPOINTS - 1)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)), st.tuples(st.just("pass"), st.integers(-3, 8), st.integers(0, 60))
    ),
    max_size=60,
)


@given(_steps)
def test_what_is_let_go_was_passed_at_every_look_for_so_long(steps: list[tuple[str, int, int]]) -> None:
    journal, now_ms, mark, newest = Journal(HOLD_MS), 0, 0, 0
    copies: list[tuple[EntryPosition, EntryPosition]] = []
    looks: list[tuple[int, EntryPosition]] = []
    for step in steps:
        if step[0] == "add":
            newest += 1 + step[1]
            copies.append((at(newest), at(len(copies))))
            journal.add(*copies[-1])
            continue
        mark = max(mark + step[1], 0)
        now_ms += step[2]
        looks.append((now_ms, at(mark)))
        copy = journal.passed(at(mark), now_ms)
        if copy is None:
            continue
        for original, place in copies:
            if place <= copy:
                # There was a look so long ago that had passed it, and none since that had not.
                assert any(
                    now_ms - then_ms >= HOLD_MS and all(seen >= original for _, seen in looks[number:])
                    for number, (then_ms, _) in enumerate(looks)
                ), (original, looks)


def test_nothing_waits_at_first_and_when_all_is_struck() -> None:
    unacked_originals = UnackedOriginals()
    assert unacked_originals.age_ms(1_000) == 0
    unacked_originals.stored(at(5), 1_000)
    assert unacked_originals.age_ms(1_700) == 700
    unacked_originals.acked_originals(at(4))
    assert unacked_originals.age_ms(1_700) == 700
    unacked_originals.acked_originals(at(5))
    assert unacked_originals.age_ms(1_700) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("stored"), st.integers(0, 200)),
            st.tuples(st.just("acked_originals"), st.integers(0, 200)),
        ),
        max_size=80,
    )
)
def test_the_age_is_that_of_the_oldest_but_for_what_is_looked_at_as_one(steps: list[tuple[str, int]]) -> None:
    unacked_originals, now_ms, done = UnackedOriginals(), 0, -1
    stored_ms: dict[int, int] = {}
    for step, value in steps:
        if step == "stored":
            now_ms += value
            stored_ms[len(stored_ms)] = now_ms
            unacked_originals.stored(at(len(stored_ms) - 1), now_ms)
        else:
            done = max(done, min(value, len(stored_ms) - 1))
            unacked_originals.acked_originals(at(done))
        waiting = [then_ms for copy, then_ms in stored_ms.items() if copy > done]
        if not waiting:
            assert unacked_originals.age_ms(now_ms) == 0
            continue
        exact_ms = now_ms - min(waiting)
        assert exact_ms <= unacked_originals.age_ms(now_ms) <= exact_ms + APART_MS


def test_a_million_copies_in_a_second_are_a_handful_to_remember() -> None:
    unacked_originals = UnackedOriginals()
    for number in range(100_000):
        unacked_originals.stored(at(number), number // 100)
    assert len(unacked_originals._waiting) <= 1_000 // APART_MS + 2
