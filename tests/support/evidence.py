"""The page of evidence: the results of each proof's last run, a row for each seed and broker version."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

__all__ = ["HEAD", "Ledger", "Row", "merged", "rows"]

HEAD = """# Evidence

What the long proofs found when they were last played: relays, consumers and brokers killed by a seed, plans played in
real time, the whole demo, large histories. They wait for real time and for chance, so `make test` has a short play of
each and `make proof` the long one. A proof that fails writes no row.

```console
$ make proof                            # all of them, on both broker versions; hours
$ make proof PROOFS="relay and killed"  # some: words of their names, as pytest's -k takes them
$ make proof SEEDS=1 VERSIONS=4.2.4     # one seed of each, on one version
```

A run replaces the rows of the proofs that it played on the broker versions that it played them on, and keeps all
others."""

_COLUMNS = ("proof", "seed", "Pulsar", "date", "figures", "machine")
_FENCE = "|---" * len(_COLUMNS) + "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A proof, played once.

    Args:
        proof: Its name.
        seed: Seed of its random choices; empty: it has none.
        pulsar: The broker's version; empty: there was no broker.
        date: UTC.
        figures: Its results.
        machine: The machine that it ran on.
    """

    proof: str
    seed: str
    pulsar: str
    date: str
    figures: str
    machine: str

    @classmethod
    def of(cls, proof: str, *, seed: int | None, pulsar: str, figures: Mapping[str, object], machine: str) -> Self:
        """Make a row of today."""
        told = ", ".join(f"{name} {_figure(value)}" for name, value in figures.items())
        return cls(
            proof=proof.replace("|", "/"),  # which would end the cell
            seed="" if seed is None else str(seed),
            pulsar=pulsar,
            date=str(dt.datetime.now(dt.UTC).date()),
            figures=told.replace("|", "/"),
            machine=machine,
        )


def _figure(value: object) -> str:
    match value:
        case float():
            return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def rows(page: str) -> list[Row]:
    """Return the rows of a page, in order; an empty page has none."""
    lines = page.partition(_FENCE)[2].splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    return [Row(**dict(zip(Row.__slots__, found, strict=True))) for found in cells]


def merged(page: str, new: Sequence[Row]) -> str:
    """Return the page with these rows in place of the rows of the same proofs on the same versions.

    Args:
        page: The present page; empty: there is none.
        new: The results of a run so far.
    """
    played = {(row.proof, row.pulsar) for row in new}
    kept = [row for row in rows(page) if (row.proof, row.pulsar) not in played]
    found = sorted([*kept, *new], key=lambda row: (row.proof, row.pulsar))  # stable: seeds stay in order of playing
    return "\n".join([HEAD, "", _line(_COLUMNS), _FENCE, *(_line(astuple(row)) for row in found), ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


class Ledger:
    """Collects the results of a run, and writes them to the page after each proof: an interrupted run keeps its
    results.

    Args:
        page: The file; None: nothing is written.
    """

    def __init__(self, page: Path | None) -> None:
        self._page = page
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        if self._page is not None:
            before = self._page.read_text(encoding="utf-8") if self._page.exists() else ""
            self._page.write_text(merged(before, self._rows), encoding="utf-8")
