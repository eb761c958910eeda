"""Generates the list of errors in the reference from the doc strings of the public errors.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

import inspect
import re
from itertools import groupby

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel import errors

PAGE = ROOT / "docs" / "reference.md"
BEGIN = "<!-- drawn from the errors' doc strings by `make docs-tables` -->\n"
ROOMS = {
    "core": "All parts",
    "client": "The client",
    "consumers": "Consumers",
    "inspect": "Commands",
    "watch": "Checks of a live plan",
    "broker": "The binary protocol, under `BinaryProtocolError`",
    "spark_planner": "The planner, under `PlannerError`",
    "testing": "Brokers for tests",
}
"""Titles of the packages that define errors, in the order of the list: those of the SDK first."""
ROOTS = (Exception, errors.TimewheelError, errors.BinaryProtocolError, errors.PlannerError)
"""Bases that the page or a title states for a whole list."""


def every() -> list[type[Exception]]:
    """Return all public errors by package; in a package, each behind its base."""
    found = [getattr(errors, name) for name in errors.__all__]
    return sorted(found, key=lambda error: ([*ROOMS].index(_room(error)), _family(error)))


def table() -> str:
    """Return a list for each package, with an item for each error."""
    lists = [
        f"**{ROOMS[room]}**\n\n" + "".join(map(_item, errors_of_room))
        for room, errors_of_room in groupby(every(), _room)
    ]
    return "\n" + "\n".join(lists)


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


def _family(error: type[Exception]) -> tuple[str, ...]:
    """Return the names from the root down to the error."""
    return tuple(one.__name__ for one in reversed(error.__mro__) if issubclass(one, errors.TimewheelError))


def _room(error: type[Exception]) -> str:
    """Return the package that defines the error."""
    return error.__module__.split(".")[1]


def _item(error: type[Exception]) -> str:
    """Return the line of an error: bases, the first sentence of its doc string, attributes."""
    text, _, attributes = (inspect.getdoc(error) or "").partition("Attributes:")
    sentence = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    meaning = " ".join(sentence.replace("``", "`").split())
    facts = ", ".join(f"`.{name}`" for name in re.findall(r"^    (\w+): ", attributes, re.MULTILINE))
    bases = ", ".join(f"`{_name(base)}`" for base in error.__bases__ if base not in ROOTS)
    kind = f" ({bases})" if bases else ""
    return f"- `{error.__name__}`{kind}: {meaning}.{facts and ' ' + facts}\n"


def _name(base: type) -> str:
    return f"pulsar.{base.__name__}" if "pulsar" in base.__module__.lower() else base.__name__


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
