"""The tables of commands in docs/commands.md, drawn from the command line itself.

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
"""A command of click, which typer may bring under a name of its own."""


def commands(command: Command | None = None, name: str = "timewheel") -> Iterator[tuple[str, Command]]:
    """Every command that does something, with its whole name, in the order of `--help`."""
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
    """What `--help` says: the text that stands for a default, else the value itself; nothing for a switch."""
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
    """All commands."""
    return "".join(_section(name, command) for name, command in commands())


def redrawn(page: str) -> str:
    """The page with what is drawn as it is now."""
    return drawn(page, BEGIN, "\n" + tables())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
