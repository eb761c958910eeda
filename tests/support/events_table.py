"""Generates the table of events in docs/events.md from the catalogue.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from dataclasses import fields

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.events import CATALOGUE
from timewheel.hooks import Event

PAGE = ROOT / "docs" / "events.md"
BEGIN = "<!-- drawn from timewheel/events/ by `make docs-tables` -->\n"


def _row(kind: type[Event]) -> str:
    # Annotations are texts: the catalogue is written with `from __future__ import annotations`.
    facts = ", ".join(f"`{field.name}: {field.type}`".replace("|", "\\|") for field in fields(kind))
    return f"| `{kind.name}` | {kind.level} | {facts} | {kind.means} | {kind.do} |\n"


def table() -> str:
    """Return all events, in the catalogue's order."""
    head = "| event | level | facts | means | do |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, CATALOGUE))


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
