"""The table of findings in docs/how-to/check-a-setup.md, drawn from the doctor's checks.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.ops.doctor import KINDS, Kind

PAGE = ROOT / "docs" / "how-to" / "check-a-setup.md"
BEGIN = "<!-- drawn from timewheel/ops/doctor/ by `make docs-tables` -->\n"


def _row(kind: Kind) -> str:
    return f"| `{kind.slug}` | {kind.severity.word} | {kind.why} | {kind.do} |\n"


def table() -> str:
    """All kinds, the worst first, else in the order of the checks."""
    head = "| finding | severity | why it matters | what to do |\n|---|---|---|---|\n"
    return head + "".join(map(_row, sorted(KINDS, key=lambda kind: -kind.severity)))


def redrawn(page: str) -> str:
    """The page with what is drawn as it is now."""
    return drawn(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
