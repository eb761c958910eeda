"""Generates the list of events in docs/events.md from the catalogue.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.events import CATALOGUE
from timewheel.hooks import Event

PAGE = ROOT / "docs" / "events.md"
BEGIN = "<!-- drawn from timewheel/events/ by `make docs-tables` -->\n"


def _line(kind: type[Event]) -> str:
    remedy = kind.do.removeprefix("Nothing.").strip()
    return f"- `{kind.name}`: {kind.means}{f' *{remedy}*' if remedy else ''}\n"


def table() -> str:
    """Return all events by level, the worst first, else in the catalogue's order."""
    return "\n".join(
        f"**{level.capitalize()}**\n\n" + "".join(_line(kind) for kind in CATALOGUE if kind.level == level)
        for level in ("error", "warning", "info")
    )


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
