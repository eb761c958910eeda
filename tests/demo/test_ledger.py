"""The ledger can be read back, and recounted by a shell line that knows nothing of timewheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

from timewheel.testing.evidence.ledger import Entry, read_ledger, recount_command, write_ledger

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
