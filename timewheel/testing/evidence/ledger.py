"""The ledger: a line per timer and scheme, so that every loss can be counted again without this project's code."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a set of timers by outcome, as Jepsen's total-queue.

    Args:
        attempted: Sends begun.
        acknowledged: Sends that the broker confirmed.
        handled: Different timers that reached the handler.
        lost: Acknowledged, never handled.
        unexpected: Handled, never attempted.
        duplicated: Handled more than once.
        recovered: Attempted, outcome unknown or failed, yet handled.
    """

    attempted: int
    acknowledged: int
    handled: int
    lost: int
    unexpected: int
    duplicated: int
    recovered: int


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
    """The history of a timer; times are UTC milliseconds, 0 for "never".

    Args:
        attempted_ms: Begin of its send.
        confirmed_ms: Arrival of the broker's confirmation.
        delivered_ms: First receipt by the raw client on the business subscription.
        delivered: How often the raw client received it there.
        redelivered: How often that was after its acknowledgement had returned.
        handled_ms: When it first reached the handler.
        handled: How often it reached the handler.
    """

    timer: str
    due_ms: int = 0
    attempted_ms: int = 0
    confirmed_ms: int = 0
    delivered_ms: int = 0
    delivered: int = 0
    redelivered: int = 0
    handled_ms: int = 0
    handled: int = 0

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
