"""The ledger: a line per timer and scheme, so that every loss can be counted again without this project's code."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a set of timers by outcome, as Jepsen's total-queue."""

    attempted: int  # sends begun
    acknowledged: int  # sends that the broker confirmed
    handled: int  # different timers that reached the handler
    lost: int  # acknowledged, never handled
    unexpected: int  # handled, never attempted
    duplicated: int  # handled more than once
    recovered: int  # attempted, outcome unknown or failed, yet handled


def check(*, attempted: Collection[str], acknowledged: Collection[str], handled: Mapping[str, int]) -> Totals:
    begun, confirmed = set(attempted), set(acknowledged)
    seen = {timer for timer, times in handled.items() if times > 0}
    return Totals(
        attempted=len(begun),
        acknowledged=len(confirmed),
        handled=len(seen),
        lost=len(confirmed - seen),
        unexpected=len(seen - begun),
        duplicated=sum(times > 1 for times in handled.values()),
        recovered=len((seen & begun) - confirmed),
    )


@dataclass(slots=True, kw_only=True)
class Entry:
    """The history of a timer; times are UTC milliseconds, 0 for "never"."""

    timer: str
    due_ms: int = 0
    attempted_ms: int = 0  # begin of its send
    confirmed_ms: int = 0  # arrival of the broker's confirmation
    delivered_ms: int = 0  # first receipt by the raw client on the business subscription
    delivered: int = 0  # how often the raw client received it there
    redelivered: int = 0  # how often that was after its acknowledgement had returned
    handled_ms: int = 0  # when it first reached the handler
    handled: int = 0  # how often it reached the handler

    @property
    def early(self) -> bool:
        return 0 < self.handled_ms < self.due_ms


COLUMNS = ("scheme", *(column.name for column in fields(Entry)))


def totals(entries: Iterable[Entry]) -> Totals:
    entries = list(entries)
    return check(
        attempted=[entry.timer for entry in entries if entry.attempted_ms],
        acknowledged=[entry.timer for entry in entries if entry.confirmed_ms],
        handled={entry.timer: entry.handled for entry in entries},
    )


def write_ledger(path: Path, rows: Iterable[tuple[str, Iterable[Entry]]]) -> None:
    """Write all schemes' entries as CSV with a header; 0 stands for "never"."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for scheme, entries in rows:
            writer.writerows((scheme, *(getattr(entry, name) for name in COLUMNS[1:])) for entry in entries)


def read_ledger(path: Path) -> Iterator[tuple[str, Entry]]:
    """Read a ledger back, as (scheme, entry)."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            scheme, timer = row.pop("scheme"), row.pop("timer")
            yield scheme, Entry(timer=timer, **{name: int(value) for name, value in row.items()})


def recount_command(path: Path) -> str:
    """Return a shell line that recounts lost, twice, early and redelivered per scheme from the file alone."""
    number = {name: f"${index}" for index, name in enumerate(COLUMNS, start=1)}
    handled, confirmed = number["handled"], number["confirmed_ms"]
    return (
        f"awk -F, 'NR>1 {{n[$1]++; l[$1]+=({confirmed}>0 && {handled}==0); t[$1]+=({handled}>1); "
        f"e[$1]+=({handled}>0 && {number['handled_ms']}<{number['due_ms']}); r[$1]+={number['redelivered']}}} "
        'END {for (s in n) print s": "n[s]" timers, lost "l[s]", twice "t[s]", early "e[s]", redelivered "r[s]}\' '
        f"{path}"
    )
