"""Generates the tables of commands in docs/commands.md from the command line itself.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.cli.app import app

PAGE = ROOT / "docs" / "commands.md"
BEGIN = "<!-- drawn from timewheel/cli by `make docs-tables` -->\n"

Command = Any
"""A click command, which typer may vendor under another name."""


def commands(command: Command | None = None, name: str = "timewheel") -> Iterator[tuple[str, Command]]:
    """Yield every command that is no group, with its whole name, in the order of `--help`."""
    command = typer.main.get_command(app) if command is None else command
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        yield from commands(child, f"{name} {child_name}")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(option: Any) -> str:
    """Return the default as `--help` shows it: the given text, or the value itself; empty for a switch."""
    shown = option.show_default
    if isinstance(shown, str):
        return shown
    if option.is_flag and not option.secondary_opts:
        return ""
    value = option.default
    value = getattr(value, "value", value)
    if value is None or callable(value):
        return ""
    return f"`{'--' + option.name if value is True else value}`"


def _option(option: Any) -> str:
    names = " ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    variable = f" (`{option.envvar}`)" if option.envvar else ""
    default = "required" if option.required else _default(option)
    return f"| {names}{variable} | {_cell(default)} | {_cell(option.help or '')} |\n"


def _section(name: str, command: Command) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden
    ]
    usage = " ".join([name, *(argument.metavar for argument in arguments)])
    head = f"## {name}\n\n`{usage}`\n\n{command.help.strip()}\n\n"
    return head + "| option | default | means |\n|---|---|---|\n" + "".join(map(_option, options)) + "\n"


def tables() -> str:
    """Return the tables of all commands."""
    return "".join(_section(name, command) for name, command in commands())


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, "\n" + tables())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
