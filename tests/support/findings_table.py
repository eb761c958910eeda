"""The table of the doctor's findings in docs/how-to/check-a-setup.md, drawn from the code: `make docs-tables`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from tests.support.checkout import ROOT
from timewheel.ops.doctor import checks
from timewheel.ops.doctor.finding import Kind

__all__ = ["PAGE", "kinds", "redrawn"]

PAGE = ROOT / "docs" / "how-to" / "check-a-setup.md"
BEGIN = "<!-- drawn from the code: make docs-tables -->\n"


def kinds() -> dict[str, Kind]:
    """All kinds of findings by their slugs, the worst first."""
    found = {kind.slug: kind for kind in _kinds()}
    return dict(sorted(found.items(), key=lambda item: (-item[1].severity, item[0])))


def _kinds() -> Iterator[Kind]:
    for info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{info.name}")
        for value in vars(module).values():
            yield from (one for one in (value if isinstance(value, tuple | list) else [value]) if isinstance(one, Kind))


def redrawn(page: str) -> str:
    """The page with the table as it is now."""
    head, begin, _ = page.partition(BEGIN)
    assert begin, f"{PAGE.name} has no place for the table"
    rows = "".join(
        f"| `{one.slug}` | {one.severity.name.lower()} | {one.why} | {one.do} |\n" for one in kinds().values()
    )
    return f"{head}{BEGIN}\n| finding | severity | why | what to do |\n|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
