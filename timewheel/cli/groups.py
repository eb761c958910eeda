"""Groups of commands: commands of two words beside one of the first word, and whole sentences in `--help`."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

__all__ = ["USAGE_ERROR", "CommandGroup", "command_group"]

USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
"""Whatever is wrong with a command line: typer has no public name for it."""
WHOLE_CHARS = 1_000
"""Longer than any first sentence: a summary that is cut says nothing."""


class CommandGroup(TyperGroup):
    """A group that looks for a command of the first two words before one of the first.

    A group `plan` with `check` in it would take `plan HISTORY` for a command of that name, and its `--help` would show
    the group. So both are commands of one group, and only here are two words one name.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the words begin with, and what is left of them."""
        both = " ".join(args[:2])
        if len(args) > 1 and both in self.commands:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the base class has it
        """Write each command with its first sentence, which goes on in the next line where click would cut it."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(WHOLE_CHARS)) for name, command in self.commands.items()]
            )


def command_group(name: str, help: str) -> typer.Typer:  # noqa: A002 - as typer calls it
    """Commands that begin with the same word."""
    return typer.Typer(name=name, cls=CommandGroup, no_args_is_help=True, help=help)
