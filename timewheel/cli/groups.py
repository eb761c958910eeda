"""Groups of commands: two-word commands next to one-word commands, and whole sentences in `--help`."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

__all__ = ["USAGE_ERROR", "CommandGroup", "command_group"]

USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
"""Base class of all errors in a command line; typer has no public name for it."""
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

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the base class has it
        """Write each command with its whole first sentence, wrapped where click would cut it."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(WHOLE_CHARS)) for name, command in self.commands.items()]
            )


def command_group(name: str, help: str) -> typer.Typer:  # noqa: A002 - as typer calls it
    """Make a group for commands that begin with the same word."""
    return typer.Typer(name=name, cls=CommandGroup, no_args_is_help=True, help=help)
