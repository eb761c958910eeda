"""Generates the index of commands in docs/commands.md from the command line itself.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.cli.app import app

PAGE = ROOT / "docs" / "commands.md"
BEGIN = "<!-- drawn from timewheel/cli by `make docs-tables` -->\n"
_STATUS = re.compile(r"(?:With --[\w-]+ also: )?\b(?:[34] [a-z]|that of )[^;.]*")

Command = Any
"""A click command, which typer may vendor under another name."""


def commands(command: Command = None, name: str = "timewheel") -> Iterator[tuple[str, Command]]:
    """Yield every command that is no group, with its whole name, in the order of `--help`."""
    command = command or typer.main.get_command(app)
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name in command.list_commands(None):
        yield from commands(children[child_name], f"{name} {child_name}")


def _item(name: str, command: Command) -> str:
    """Return the line of a command: the begin of its help, and its exit statuses 3 and 4."""
    text = " ".join(command.help.split())
    purpose = re.split(r"[.:;] |\.$", text, maxsplit=1)[0]
    statuses = "; ".join(_STATUS.findall(text.partition("Exit status")[2]))
    return f"- `{name.partition(' ')[2]}`: {purpose}{statuses and f' ({statuses})'}.\n"


def table() -> str:
    """Return the list of all commands, by their panels."""
    items: dict[str, list[str]] = {}
    first_level = typer.main.get_command(app).commands  # type: ignore[attr-defined] # it is a group
    for name, command in commands():
        panel = next(
            one.rich_help_panel for word, one in first_level.items() if f"{name} ".startswith(f"timewheel {word} ")
        )
        items.setdefault(panel, []).append(_item(name, command))
    return "\n".join(f"{panel}:\n\n{''.join(of_panel)}" for panel, of_panel in items.items())


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, "\n" + table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
