"""The checker finds what is planted, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.testing.evidence.ledger import Entry, check, totals

IDS = st.sampled_from([f"t{number}" for number in range(12)])


def test_all_is_well_when_every_timer_is_handled_once() -> None:
    found = check(attempted=["a", "b"], acknowledged=["a", "b"], handled={"a": 1, "b": 1})
    assert (found.lost, found.unexpected, found.duplicated, found.recovered) == (0, 0, 0, 0)


def test_a_planted_loss_is_found() -> None:
    assert check(attempted=["a", "b"], acknowledged=["a", "b"], handled={"a": 1}).lost == 1


def test_a_send_that_was_never_confirmed_is_not_a_loss() -> None:
    assert check(attempted=["a", "b"], acknowledged=["a"], handled={"a": 1}).lost == 0


def test_a_planted_duplicate_is_found() -> None:
    assert check(attempted=["a"], acknowledged=["a"], handled={"a": 2}).duplicated == 1


def test_a_stranger_is_found() -> None:
    assert check(attempted=["a"], acknowledged=["a"], handled={"a": 1, "x": 1}).unexpected == 1


def test_an_unknown_outcome_that_was_handled_counts_as_recovered() -> None:
    assert check(attempted=["a", "b"], acknowledged=["a"], handled={"a": 1, "b": 1}).recovered == 1


@given(attempted=st.sets(IDS), confirmed=st.sets(IDS), handled=st.dictionaries(IDS, st.integers(0, 3)))
def test_every_timer_is_counted_once(attempted: set[str], confirmed: set[str], handled: dict[str, int]) -> None:
    confirmed &= attempted
    found = check(attempted=attempted, acknowledged=confirmed, handled=handled)
    # Each handled timer was confirmed, was only attempted, or is a stranger; each confirmed one was handled or is lost.
    assert found.handled == (found.acknowledged - found.lost) + found.recovered + found.unexpected


def test_an_early_handling_is_found_in_its_ledger_row() -> None:
    assert Entry(timer="a", due_ms=100, handled_ms=99, handled=1).early
    assert not Entry(timer="a", due_ms=100, handled_ms=100, handled=1).early
    assert not Entry(timer="a", due_ms=100).early  # never handled is lost, not early


def test_totals_read_the_rows() -> None:
    rows = [
        Entry(timer="good", due_ms=9, attempted_ms=1, confirmed_ms=2, handled_ms=9, handled=1),
        Entry(timer="lost", due_ms=9, attempted_ms=1, confirmed_ms=2),
        Entry(timer="twice", due_ms=9, attempted_ms=1, confirmed_ms=2, handled_ms=9, handled=2),
        Entry(timer="unknown", due_ms=9, attempted_ms=1, handled_ms=9, handled=1),
        Entry(timer="stranger", handled_ms=9, handled=1),
    ]
    found = totals(rows)
    assert (found.attempted, found.acknowledged) == (4, 3)
    assert (found.lost, found.duplicated, found.recovered, found.unexpected) == (1, 1, 1, 1)
