"""The checker finds what is planted, and nothing else; the ledger can be recounted by a shell line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.testing.evidence.ledger import Entry, check, read_ledger, recount_command, totals, write_ledger

IDS = st.sampled_from([f"t{number}" for number in range(12)])


@pytest.mark.parametrize(
    ("acknowledged", "handled", "expected"),
    [
        pytest.param("ab", {"a": 1, "b": 1}, (0, 0, 0, 0), id="all is well when every timer is handled once"),
        pytest.param("ab", {"a": 1}, (1, 0, 0, 0), id="a planted loss"),
        pytest.param("a", {"a": 1}, (0, 0, 0, 0), id="a send that was never confirmed is not a loss"),
        pytest.param("ab", {"a": 2, "b": 1}, (0, 0, 1, 0), id="a planted duplicate"),
        pytest.param("ab", {"a": 1, "b": 1, "x": 1}, (0, 1, 0, 0), id="a stranger"),
        pytest.param("a", {"a": 1, "b": 1}, (0, 0, 0, 1), id="an unknown outcome that was handled is recovered"),
    ],
)
def test_the_checker_finds_what_is_planted(
    acknowledged: str, handled: dict[str, int], expected: tuple[int, int, int, int]
) -> None:
    found = check(attempted="ab", acknowledged=acknowledged, handled=handled)
    assert (found.lost, found.unexpected, found.duplicated, found.recovered) == expected


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


GOOD = Entry(
    timer="good", due_ms=9, attempted_ms=1, confirmed_ms=2, delivered_ms=8, delivered=1, handled_ms=9, handled=1
)
LOST = Entry(timer="lost", due_ms=9, attempted_ms=1, confirmed_ms=2)
TWICE = Entry(
    timer="twice", due_ms=9, attempted_ms=1, confirmed_ms=2, delivered_ms=9, delivered=3, redelivered=2, handled_ms=9,
    handled=2,
)  # fmt: skip
EARLY = Entry(
    timer="early", due_ms=9, attempted_ms=1, confirmed_ms=2, delivered_ms=7, delivered=1, handled_ms=8, handled=1
)


def test_it_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    write_ledger(path, [("one", [GOOD, LOST]), ("two", [TWICE])])
    assert list(read_ledger(path)) == [("one", GOOD), ("one", LOST), ("two", TWICE)]


def test_the_printed_shell_line_finds_what_is_planted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    write_ledger(path, [("sick", [GOOD, LOST, TWICE, EARLY]), ("sound", [GOOD])])
    counted = subprocess.run(recount_command(path), shell=True, capture_output=True, text=True, check=True)
    assert sorted(counted.stdout.splitlines()) == [
        "sick: 4 timers, lost 1, twice 1, early 1, redelivered 2",
        "sound: 1 timers, lost 0, twice 0, early 0, redelivered 0",
    ]
