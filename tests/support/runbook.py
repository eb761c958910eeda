"""The runbook: the page for each event, finding, alert and exit status, and the index that is generated from the pages.

As a program it writes the index into docs/runbook/README.md; `make docs-tables` runs it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support.checkout import ROOT
from tests.support.commands_table import commands
from tests.support.drawn import drawn
from tests.support.prometheus import alerts
from timewheel.events import CATALOGUE
from timewheel.ops.doctor import KINDS

FOLDER = ROOT / "docs" / "runbook"
PAGE = FOLDER / "README.md"
BEGIN = "<!-- drawn from the code and the pages of this folder by `make docs-tables` -->\n"
HEADS = {
    "Alerts": "| alert of [Prometheus](../how-to/metrics.md) | severity | see |",
    "Events": "| event | level | see |",
    "Findings of `timewheel plan check`": "| finding of `timewheel plan check` | level | see |",
    "Findings": "| finding of `timewheel doctor` | severity | see |",
    "Exit status": "| exit status | means | see |",
}
"""Heads of the index's tables, by the beginning of the kind."""
SECTIONS = ("What it means", "How urgent", "Look", "Do", "Do not")
VERDICT = ROOT / "timewheel" / "watch" / "verdict.py"
HOW_TO = ROOT / "docs" / "how-to"


class Told(NamedTuple):
    """A sign of trouble: an event, a finding, an alert or an exit status."""

    kind: str
    """The kind as on the pages: ``Events``, ``Findings``, ``Alerts``, ``Exit status of `timewheel gaps` ``."""
    name: str


@dataclass(frozen=True)
class Entry:
    """A page of the runbook."""

    path: Path
    title: str
    told: tuple[Told, ...]
    sections: Mapping[str, str]
    """Text by heading, in order."""


def read(path: Path) -> Entry:
    """Parse a page."""
    head, *sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = [
        Told(kind, name)
        for kind, names in re.findall(r"^- ([A-Z][^:]*): ((?:`[^`]+`,?\s+)+)", head, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    ]
    bodies = dict(section.split("\n", 1) for section in sections)
    return Entry(path, head.splitlines()[0].removeprefix("# "), tuple(told), bodies)


def entries() -> list[Entry]:
    """Return all pages but the index, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.md")) if path != PAGE]


def in_code() -> Iterator[tuple[Told, str]]:
    """Yield all signs of trouble with their severity: events, findings, alerts, and exit statuses by the tables of
    their pages.
    """
    for event in CATALOGUE:
        yield Told("Events", event.name), event.level
    for finding in KINDS:
        yield Told("Findings", finding.slug), finding.severity.word
    for name, level in _findings_of_plan_check():
        yield Told("Findings of `timewheel plan check`", name), level
    for name, rule in alerts().items():
        yield Told("Alerts", name), rule["labels"]["severity"]
    names = [name.removeprefix("timewheel ") for name, _ in commands()]
    for path in sorted(HOW_TO.glob("*.md")):
        yield from _exit_statuses(path, sorted(names, key=len))


def _findings_of_plan_check() -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(VERDICT.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            given = {word.arg: word.value for word in node.keywords}
            name, level = given["name"], given["level"]
            if isinstance(name, ast.Constant):
                # A computed level depends on a date.
                yield str(name.value), level.attr.lower() if isinstance(level, ast.Attribute) else "by its date"


def _exit_statuses(path: Path, names: Sequence[str]) -> Iterator[tuple[Told, str]]:
    """Yield the exit statuses in the tables of a page; each table is about the last command shown before it."""
    command = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        shown = re.search(r"^(?:\$ |.*&& )timewheel (.*)", line)
        if shown:
            command = next((name for name in reversed(names) if f"{shown[1]} ".startswith(f"{name} ")), "")
        row = re.match(r"\| ([1-9][0-9, ]*) \| (.*) \|$", line)
        if row and command:
            for status in re.findall(r"\d", row[1]):
                yield Told(f"Exit status of `timewheel {command}`", status), row[2]


def index() -> str:
    """Return the tables of the index: all signs of trouble, and their pages."""
    pages = {told: entry for entry in entries() for told in entry.told}
    rows: dict[str, list[str]] = {}
    for told, how_bad in in_code():
        entry = pages.get(told)
        where = "" if entry is None else f"[{entry.title}]({entry.path.name})"
        head = next(head for begin, head in HEADS.items() if told.kind.startswith(begin))
        rows.setdefault(head, []).append(f"| {_name(told)} | {how_bad} | {where} |\n")
    return "\n".join(f"{head}\n|---|---|---|\n{''.join(of_head)}" for head, of_head in rows.items())


def _name(told: Told) -> str:
    status_of = re.match(r"Exit status of (`.*`)", told.kind)
    return f"`{told.name}`" if status_of is None else f"{status_of[1]}: {told.name}"


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, index())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
