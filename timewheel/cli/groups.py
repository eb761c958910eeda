"""Groups of commands: two-word commands next to one-word commands, and whole sentences in `--help`."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

__all__ = ["PANELS", "USAGE_ERROR", "CommandGroup", "command_group"]

USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
"""Base class of all errors in a command line; typer has no public name for it."""
PANELS = ("Set up", "Look", "Cure", "Plan", "Look after timers")
"""Headings of the commands in `timewheel --help`."""
WHOLE_CHARS = 1_000
"""Longer than any first sentence, so that click cuts no summary."""


class CommandGroup(TyperGroup):
    """A group that looks for a two-word command before a one-word command.

    A nested group `plan` with the command `check` would parse `plan HISTORY` as a subcommand, and its `--help` would
    show the group. So `plan` and `plan check` are commands of the same group, and the group joins the two words.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the words begin with, and the remaining words."""
        both = " ".join(args[:2])
        if len(args) > 1 and both in self.commands:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands by their panels, in the order of `PANELS`."""
        rank = {panel: number for number, panel in enumerate(PANELS)}
        return sorted(super().list_commands(ctx), key=lambda name: rank.get(self._panel(name), -1))

    def _panel(self, name: str) -> str:
        command: Any = self.commands[name]
        return command.rich_help_panel or "Commands"

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each panel, and each command with its whole first sentence, wrapped where click would cut it."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            text = self.commands[name].get_short_help_str(WHOLE_CHARS)
            panels.setdefault(self._panel(name), []).append((name, text))
        for panel, commands in panels.items():
            with formatter.section(panel):
                formatter.write_dl(commands)


def command_group(name: str, help: str) -> typer.Typer:  # noqa: A002 - as typer calls it
    """Make a group for commands that begin with the same word."""
    return typer.Typer(name=name, cls=CommandGroup, no_args_is_help=True, help=help)
