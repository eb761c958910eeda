"""The journal is let go behind what no broker can forget, and never further: against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine import journal as journal_module
from timewheel.shadow.machine.journal import Journal

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
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("pass"), st.integers(-3, 8), st.integers(0, 60)),
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
