"""Generates the lists of findings in the pages from the checks of the doctor and of a shadow.

As a program it writes the pages; `make docs-tables` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.inspect.doctor import KINDS, Kind
from timewheel.shadow.refusing import KINDS as SHADOW_KINDS

PAGE = ROOT / "docs" / "how-to" / "check-a-setup.md"
BEGIN = "<!-- drawn from timewheel/inspect/doctor/ by `make docs-tables` -->\n"
SHADOW_PAGE = ROOT / "docs" / "explanation" / "shadows.md"
SHADOW_BEGIN = "<!-- drawn from timewheel/shadow/refusing.py by `make docs-tables` -->\n"


def table(kinds: Iterable[Kind]) -> str:
    """Return the findings with their remedies by severity, the worst first, else in the order of the checks.

    The reason is left out: the commands print it beside each finding. Findings with the same remedy share a line.
    """
    worst_first = sorted(kinds, key=lambda kind: -kind.severity)
    return "\n".join(
        f"**{severity.word.capitalize()}**\n\n{_lines(same)}"
        for severity, same in groupby(worst_first, key=lambda kind: kind.severity)
    )


def _lines(kinds: Iterable[Kind]) -> str:
    by_remedy: dict[str, list[str]] = {}
    for kind in kinds:
        by_remedy.setdefault(kind.do, []).append(f"`{kind.slug}`")
    return "".join(f"- {', '.join(slugs)}: {do}\n" for do, slugs in by_remedy.items())


def redrawn(page: str) -> str:
    """Return the doctor's page with its generated part updated."""
    return drawn(page, BEGIN, table(KINDS))


def shadow_redrawn(page: str) -> str:
    """Return the shadow's page with its generated part updated."""
    return drawn(page, SHADOW_BEGIN, table(SHADOW_KINDS))


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SHADOW_PAGE.write_text(shadow_redrawn(SHADOW_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
