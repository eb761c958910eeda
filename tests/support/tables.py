"""Generates the lists of the pages from the code: events, metrics, findings, commands and errors.

As a program it writes the pages; `make docs-tables` runs it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel import errors
from timewheel.cli.app import app
from timewheel.events import CATALOGUE as EVENTS
from timewheel.inspect.doctor import KINDS, Kind
from timewheel.metrics import CATALOGUE as METRICS
from timewheel.shadow.refusing import KINDS as SHADOW_KINDS

DOCS = ROOT / "docs"
_STATUS = re.compile(r"(?:With --[\w-]+ also: )?\b(?:[34] [a-z]|that of )[^;.]*")
ROOMS = {
    "core": "All parts",
    "client": "The client",
    "consumers": "Consumers",
    "inspect": "Commands",
    "broker": "The binary protocol, under `BinaryProtocolError`",
    "spark_planner": "The planner, under `PlannerError`",
    "testing": "Brokers for tests",
}
"""Titles of the packages that define errors, in the order of the list: those of the SDK first."""
IN_HOW_TO = ("gaps", "doctor", "status", "plan check", "whereis")
"""Commands whose exit statuses stand in the table of a how-to."""
ROOTS = (Exception, errors.TimewheelError, errors.BinaryProtocolError, errors.PlannerError)
"""Bases that the page or a title states for a whole list."""

Command = Any  # a click command, which typer may vendor under another name


def events() -> str:
    """Return all events by level, the worst first, else in the catalogue's order."""
    lines: dict[str, list[str]] = {"error": [], "warning": [], "info": []}
    for kind in EVENTS:
        remedy = kind.do.removeprefix("Nothing.").strip()
        lines[kind.level].append(f"- `{kind.name}`: {kind.means}{f' *{remedy}*' if remedy else ''}\n")
    return "\n".join(f"**{level.capitalize()}**\n\n{''.join(of_level)}" for level, of_level in lines.items())


def metrics() -> str:
    """Return all metrics by the component that exports them; labels that all of them have stand above its list."""
    parts = []
    for by in dict.fromkeys(metric.by for metric in METRICS):
        own = [metric for metric in METRICS if metric.by == by]
        common = [label for label in own[0].labels if all(label in metric.labels for metric in own)]
        of_all = f": {', '.join(f'`{label}`' for label in common)}" if common else ""
        lines = ""
        for metric in own:
            labels = ", ".join(label for label in metric.labels if label not in common)
            lines += f"- `{metric.name}{f'{{{labels}}}' if labels else ''}`: {metric.means}\n"
        parts.append(f"**{by.capitalize()}**{of_all}\n\n{lines}")
    return "\n".join(parts)


def findings(kinds: Iterable[Kind]) -> str:
    """Return the findings with their remedies by severity, the worst first, else in the order of the checks.

    The reason is left out: the commands print it beside each finding. Findings with the same remedy share a line.
    """
    worst_first = sorted(kinds, key=lambda kind: -kind.severity)
    parts = []
    for severity, same in groupby(worst_first, key=lambda kind: kind.severity):
        by_remedy: dict[str, list[str]] = {}
        for kind in same:
            by_remedy.setdefault(kind.do, []).append(f"`{kind.slug}`")
        lines = "".join(f"- {', '.join(slugs)}: {do}\n" for do, slugs in by_remedy.items())
        parts.append(f"**{severity.word.capitalize()}**\n\n{lines}")
    return "\n".join(parts)


def commands(command: Command = None, name: str = "timewheel") -> Iterator[tuple[str, Command]]:
    """Yield every command that is no group, with its whole name, in the order of `--help`."""
    command = command or typer.main.get_command(app)
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name in command.list_commands(None):
        yield from commands(children[child_name], f"{name} {child_name}")


def index_of_commands() -> str:
    """Return all commands by their panels: the begin of the help, and the exit statuses 3 and 4 that no how-to has."""
    items: dict[str, str] = {}
    first_level = typer.main.get_command(app).commands  # type: ignore[attr-defined] # it is a group
    for full_name, command in commands():
        name = full_name.partition(" ")[2]
        panel = next(one.rich_help_panel for word, one in first_level.items() if f"{name} ".startswith(f"{word} "))
        text = " ".join(command.help.split())
        purpose = re.split(r"[.:;] |\.$", text, maxsplit=1)[0]
        statuses = "" if name in IN_HOW_TO else "; ".join(_STATUS.findall(text.partition("Exit status")[2]))
        item = f"- `{name}`: {purpose}{statuses and f' ({statuses})'}.\n"
        items[panel] = items.get(panel, "") + item
    return "\n" + "\n".join(f"{panel}:\n\n{of_panel}" for panel, of_panel in items.items())


def list_of_errors() -> str:
    """Return the public errors by package; in a package, each behind its base."""
    rooms = [*ROOMS]

    def room(error: type[Exception]) -> str:
        return error.__module__.split(".")[1]

    def place(error: type[Exception]) -> tuple[int, tuple[str, ...]]:
        lineage = [one for one in reversed(error.__mro__) if issubclass(one, errors.TimewheelError)]
        family = tuple(one.__name__ for one in lineage if not one.__name__.startswith("_"))
        return rooms.index(room(error)), family

    found = sorted((getattr(errors, name) for name in errors.__all__), key=place)
    return "".join(f"\n**{ROOMS[of]}**\n\n{''.join(map(_error, own))}" for of, own in groupby(found, room))


def _error(error: type[Exception]) -> str:
    """Return the line of an error: public bases, and the first sentence of its doc string."""
    text = (inspect.getdoc(error) or "").partition("Attributes:")[0]
    meaning = " ".join(re.split(r"\.(?:\s|$)", text, maxsplit=1)[0].replace("``", "`").split())
    names = [
        f"{'pulsar.' if 'pulsar' in base.__module__.lower() else ''}{base.__name__}"
        for base in error.__bases__
        if base not in ROOTS and not base.__name__.startswith("_")
    ]
    kind = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
    return f"- `{error.__name__}`{kind}: {meaning}.\n"


class Generated(NamedTuple):
    """A page with a generated part: the source that its begin line names, and the part."""

    page: Path
    source: str
    part: Callable[[], str]

    def redrawn(self) -> str:
        """Return the page with its generated part updated."""
        begin = f"<!-- drawn from {self.source} by `make docs-tables` -->\n"
        return drawn(self.page.read_text(encoding="utf-8"), begin, self.part())

    def write(self) -> None:
        """Update the page."""
        self.page.write_text(self.redrawn(), encoding="utf-8")


PAGES = {
    "events": Generated(DOCS / "events.md", "timewheel/events.py", events),
    "metrics": Generated(DOCS / "how-to" / "metrics.md", "timewheel/metrics/catalogue.py", metrics),
    "findings": Generated(DOCS / "how-to" / "check-a-setup.md", "timewheel/inspect/doctor/", lambda: findings(KINDS)),
    "findings of a shadow": Generated(
        DOCS / "explanation" / "shadows.md", "timewheel/shadow/refusing.py", lambda: findings(SHADOW_KINDS)
    ),
    "commands": Generated(DOCS / "commands.md", "timewheel/cli", index_of_commands),
    "errors": Generated(DOCS / "reference.md", "the errors' doc strings", list_of_errors),
}

if __name__ == "__main__":
    for one in PAGES.values():
        one.write()
