"""The runbook: the case for each event, finding, alert and exit status, and the index that is generated from the pages.

The pages map signs to cases: a case is a heading of the second level with lists of its signs below it. As a program
this module writes the index into docs/runbook/README.md; `make docs-tables` runs it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.support.checkout import ROOT
from tests.support.citations import slug_of
from tests.support.prometheus import alerts
from tests.support.tables import Generated, commands
from timewheel.events import CATALOGUE
from timewheel.inspect.doctor import KINDS

FOLDER = ROOT / "docs" / "runbook"
PAGE = FOLDER / "README.md"
NO_CASES = ("Index",)  # headings of the second level that are no cases
VERDICT = ROOT / "timewheel" / "watch" / "checking.py"
HOW_TO = ROOT / "docs" / "how-to"


class Sign(NamedTuple):
    """A sign of trouble: an event, a finding, an alert or an exit status."""

    kind: str
    """The kind as on the pages: ``Events``, ``Findings``, ``Findings of `timewheel plan check` ``, ``Alerts``,
    ``Exit status``.
    """
    name: str  # the name; of an exit status the command without ``timewheel``, and the status


@dataclass(frozen=True)
class Case:
    """A case of the runbook."""

    path: Path
    title: str
    signs: tuple[Sign, ...]
    text: str

    @property
    def link(self) -> str:
        """Link to the case from the runbook's folder."""
        return f"{self.path.name}#{slug_of(self.title)}"


def read(path: Path) -> list[Case]:
    """Parse the cases of a page."""
    _, *sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for title, _, text in (section.partition("\n") for section in sections):
        if title not in NO_CASES:
            lists = re.findall(r"^- ([A-Z][^:]*): ((?:`[^`]+`,?\s*)+)", text.strip().split("\n\n")[0], re.MULTILINE)
            signs = tuple(Sign(kind, name) for kind, names in lists for name in re.findall(r"`([^`]+)`", names))
            found.append(Case(path, title, signs, text))
    return found


def cases() -> list[Case]:
    """Return all cases: those of the index's page first, then page by page."""
    return [case for path in (PAGE, *sorted({*FOLDER.glob("*.md")} - {PAGE})) for case in read(path)]


def links() -> dict[Sign, str]:
    """Return the link to each sign's case, from the root of the project."""
    return {sign: f"docs/runbook/{case.link}" for case in cases() for sign in case.signs}


def in_code() -> Iterator[Sign]:
    """Yield all signs of trouble: events, findings, alerts, and exit statuses by the tables of their pages."""
    yield from (Sign("Events", event.name) for event in CATALOGUE)
    yield from (Sign("Findings", finding.slug) for finding in KINDS)
    yield from (Sign("Findings of `timewheel plan check`", name) for name in _findings_of_plan_check())
    yield from (Sign("Alerts", name) for name in alerts())
    names = [name.removeprefix("timewheel ") for name, _ in commands()]
    for path in sorted(HOW_TO.glob("*.md")):
        yield from _exit_statuses(path, sorted(names, key=len))


def _findings_of_plan_check() -> Iterator[str]:
    """Yield the names of findings, each of which is yielded as a name, a level and a text."""
    for node in ast.walk(ast.parse(VERDICT.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            name = node.value.elts[0]
            if isinstance(name, ast.Constant):
                yield str(name.value)


def _exit_statuses(path: Path, names: Sequence[str]) -> Iterator[Sign]:
    """Yield the exit statuses in the tables of a page; each table is about the last command shown before it."""
    command = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        shown = re.search(r"^(?:\$ |.*&& )timewheel (.*)", line)
        if shown:
            command = next((name for name in reversed(names) if f"{shown[1]} ".startswith(f"{name} ")), "")
        row = re.match(r"\| ([1-9][0-9, ]*) \| .* \|$", line)
        if row and command:
            yield from (Sign("Exit status", f"{command} {status}") for status in re.findall(r"\d", row[1]))


def index() -> str:
    """Return the index: the cases of the other pages, page by page, each with its signs."""
    others = [case for case in cases() if case.path != PAGE]
    pages = ("".join(map(_line, on_page)) for _, on_page in groupby(others, key=lambda case: case.path))
    return "\n".join(pages)


def _line(case: Case) -> str:
    return f"- [{case.title}]({case.link}): {', '.join(f'`{sign.name}`' for sign in case.signs)}\n"


INDEX = Generated(PAGE, "the pages of this folder", index)

if __name__ == "__main__":
    INDEX.write()
