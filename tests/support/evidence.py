"""The evidence of the proofs: docs/evidence.jsonl has a row for each play, docs/evidence.md a line for each claim.

As a program it writes the page from the rows; `make docs-tables` runs it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Self

from benchmarks.machine import short
from tests.support.checkout import ROOT
from tests.support.evidence_claims import CLAIMS, PLACE, Claim

PAGE = ROOT / "docs" / "evidence.md"
HEAD = """# Evidence

Proofs wait for real time and for chance: `make test` has short plays, `make proof` the long ones. A line has the worst
figures of all its plays (kills and timers are sums), and in brackets plays/seeds, Pulsar, date, machine (2-core
unless stated).
[evidence.jsonl](evidence.jsonl) has each play, with seed and load.

```console
$ make proof                            # all of them, on both broker versions; hours
$ make proof PROOFS="relay and killed"  # some: words of their names, as pytest's -k takes them
$ make proof SEEDS=1 VERSIONS=4.2.4     # one seed of each, on one version
```

A run replaces the rows of its proofs and versions, and keeps all others. A proof that fails writes no row; each
prints the command that replays its seed. After a merge of `evidence.jsonl`, `make docs-tables` writes this page.
"""
TAIL = """## Not proved

- Brokers, relays and load shared a machine of 2 to 4 cores, with a standalone Pulsar but for the section on clusters.
  No play has a lost host, a divided network or replication.
- Most delays are seconds to minutes, not days.
- Exactly-once handling: a killed consumer handles its timers in flight again, and late hops leave copies.
- A broker's memory of 10,000 producer names, and its stop at 50,000 pending timers
  ([facts](broker-facts.md#starved-due-topic)).
- Code newer than a line's date.
"""

Figure = int | float | str
_MISSING, _OTHER = "not played yet", "its plays have other figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A play of a proof."""

    proof: str
    pulsar: str | None  # the broker's version; None: there was no broker
    seed: int | None  # seed of its random choices; None: it has none
    date: str  # UTC
    machine: str
    figures: dict[str, Figure]

    @classmethod
    def of(
        cls, proof: str, *, seed: int | None, pulsar: str | None, figures: Mapping[str, object], machine: str
    ) -> Self:
        """Make a row of today."""
        return cls(
            proof=proof,
            pulsar=pulsar,
            seed=seed,
            date=str(dt.datetime.now(dt.UTC).date()),
            machine=machine,
            figures={name: _rounded(value) for name, value in figures.items()},
        )

    @property
    def text(self) -> str:
        """All figures, in words."""
        return ", ".join(f"{name} {_written(value)}" for name, value in self.figures.items())

    @property
    def _order(self) -> tuple[str, str, int]:
        return (self.proof, self.pulsar or "", -1 if self.seed is None else self.seed)


def _rounded(value: object) -> Figure:
    """Return a figure with three digits, or as a whole number."""
    match value:
        case Integral():
            return int(value)
        case float():
            return float(f"{value:.3g}") if abs(value) < 1_000 else round(value)
        case _:
            return str(value)


def _written(value: Figure) -> str:
    match value:
        case float():
            return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return value


def rows(text: str) -> list[Row]:
    """Return the rows of a file of rows, in order; an empty file has none."""
    return [Row(**json.loads(line)) for line in text.splitlines() if line]


def lines(found: Iterable[Row]) -> str:
    """Return a file of these rows, sorted, a line for each."""
    ordered = sorted(found, key=lambda row: row._order)
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in ordered)


def merged(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """Return all rows, with the new ones in place of those of the same proofs on the same versions."""
    played = {(row.proof, row.pulsar) for row in new}
    return [*(row for row in old if (row.proof, row.pulsar) not in played), *new]


def page(found: Sequence[Row]) -> str:
    """Return the page of these rows."""
    parts = [HEAD]
    for heading, claims in CLAIMS.items():
        told = [_line(claim, [row for row in found if claim.covers(row.proof)]) for claim in claims]
        parts.append("\n".join([f"## {heading}", "", *told, ""]))
    return "\n".join([*parts, TAIL])


def _line(claim: Claim, own: Sequence[Row]) -> str:
    seeds = {row.seed for row in own} - {None}
    origin = (
        f"{len(own)}/{len(seeds)}" if seeds else str(len(own)),
        "/".join(sorted({row.pulsar for row in own if row.pulsar})),
        _span(sorted({row.date for row in own})),
        ", ".join(sorted({short(row.machine.partition(", load ")[0]).removeprefix("2-core ") for row in own})),
    )
    link = f"- [{claim.text}](../tests/{claim.test}):"
    return (
        f"{link} {_found(claim, own)} ({'; '.join(part for part in origin if part)})" if own else f"{link} {_MISSING}"
    )


def _span(dates: Sequence[str]) -> str:
    """Return the first and the last date, as ISO 8601 abbreviates them: 2026-11-22/24."""
    if not dates:
        return ""
    first, last = dates[0], dates[-1]
    shared = 8 if first[:8] == last[:8] else 5 if first[:5] == last[:5] else 0
    return first if first == last else f"{first}/{last[shared:]}"


# Figures of several plays

_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")


def _found(claim: Claim, own: Sequence[Row]) -> str:
    """Return the claim's figures."""
    try:
        return PLACE.sub(lambda place: _over(own, place[1] or "most", place[2]), claim.found)
    except ValueError:
        return _OTHER


def _over(own: Sequence[Row], kind: str, name: str) -> str:
    if kind == "apart":
        left, right = name.split("/")
        pairs = zip(_values(own, left), _values(own, right), strict=True)
        return f"{100 * max(_apart(*pair) for pair in pairs):.1f}%"
    values = list(_values(own, name))
    match kind:
        case "sum":
            return _written(sum(value for value in values if not isinstance(value, str)))
        case "least":
            return _written(min(values, key=_size))
        case "farthest":
            return _written(max(values, key=lambda value: [abs(number) for number in _size(value)]))
        case _:
            return _written(max(values, key=_size))


def _values(own: Sequence[Row], name: str) -> Iterator[Figure]:
    found = [row.figures[name] for row in own if name in row.figures]
    if not found:
        raise ValueError(f"no play has the figure {name!r}")
    yield from found


def _numbers(value: Figure) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(str(value))]


def _size(value: Figure) -> list[float]:
    return _numbers(value)[::-1]


def _apart(left: Figure, right: Figure) -> float:
    return max(abs(b / a - 1) for a, b in zip(_numbers(left), _numbers(right), strict=True) if a)


# Files


def rows_file(page_file: Path) -> Path:
    """Return the file of rows that belongs to a page."""
    return page_file.with_suffix(".jsonl")


def _write(page_file: Path, found: Sequence[Row]) -> None:
    text = lines(found)
    rows_file(page_file).write_text(text, encoding="utf-8")  # first: rows cost hours, the page can be written again
    page_file.write_text(page(rows(text)), encoding="utf-8")


def _read(page_file: Path) -> list[Row]:
    file = rows_file(page_file)
    return rows(file.read_text(encoding="utf-8")) if file.exists() else []


class Ledger:
    """Collects the results of a run, and writes them after each proof: an interrupted run keeps its results.

    Args:
        page_file: The page; its rows are written beside it. None: nothing is written.
    """

    def __init__(self, page_file: Path | None) -> None:
        self._page_file = page_file
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        if self._page_file is not None:
            _write(self._page_file, merged(_read(self._page_file), self._rows))


if __name__ == "__main__":
    _write(PAGE, _read(PAGE))
