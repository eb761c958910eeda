"""The table of events in docs/events.md, drawn from the catalogue.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from dataclasses import fields

from tests.support.checkout import ROOT
from timewheel.events import CATALOGUE
from timewheel.hooks import Event

PAGE = ROOT / "docs" / "events.md"
BEGIN = "<!-- drawn from timewheel/events.py by `make docs-tables` -->\n"
END = "<!-- end -->\n"


def _row(kind: type[Event]) -> str:
    # Annotations are texts: the catalogue is written with `from __future__ import annotations`.
    facts = ", ".join(f"`{field.name}: {field.type}`".replace("|", "\\|") for field in fields(kind))
    return f"| `{kind.name}` | {kind.level} | {facts} | {kind.means} | {kind.do} |\n"


def table() -> str:
    """All events, in the catalogue's order."""
    head = "| event | level | facts | means | do |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, CATALOGUE))


def drawn(page: str) -> str:
    """The page with the table as it is now."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found, f"{PAGE} has no line {BEGIN!r}"
    assert ended, f"{PAGE} has no line {END!r}"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
