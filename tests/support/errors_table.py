"""Generates the table of errors in the reference from the doc strings of the public errors.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

import inspect
import re

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel import errors

PAGE = ROOT / "docs" / "reference.md"
BEGIN = "<!-- drawn from the errors' doc strings by `make docs-tables` -->\n"
ROOMS = ("core", "wire", "consumers", "ops", "watch", "binary_protocol", "spark_planner", "testing")
"""Packages that define errors, in the order of the table: those of the SDK first."""


def every() -> list[type[Exception]]:
    """Return all public errors by package; in a package, each behind its base."""
    found = [getattr(errors, name) for name in errors.__all__]
    return sorted(found, key=lambda error: (ROOMS.index(error.__module__.split(".")[1]), _family(error)))


def table() -> str:
    """Return a row for each error."""
    head = "| error | also a | when | facts |\n|---|---|---|---|\n"
    return head + "".join(map(_row, every()))


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


def _family(error: type[Exception]) -> tuple[str, ...]:
    """Return the names from the root down to the error."""
    return tuple(one.__name__ for one in reversed(error.__mro__) if issubclass(one, errors.TimewheelError))


def _row(error: type[Exception]) -> str:
    text, _, attributes = (inspect.getdoc(error) or "").partition("Attributes:")
    meaning = " ".join(text.replace("``", "`").split()).rstrip(".").replace("|", "\\|")
    facts = ", ".join(f"`.{name}`" for name in re.findall(r"^    (\w+): ", attributes, re.MULTILINE))
    bases = [f"`{_name(base)}`" for base in error.__bases__ if base not in (Exception, errors.TimewheelError)]
    return f"| `{error.__name__}` | {', '.join(bases)} | {meaning} | {facts} |\n"


def _name(base: type) -> str:
    return f"pulsar.{base.__name__}" if "pulsar" in base.__module__.lower() else base.__name__


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
