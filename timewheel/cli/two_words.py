"""Commands of two words beside a command of the first one: `timewheel plan HISTORY` and `timewheel plan check PLAN`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["TwoWords"]


class TwoWords(TyperGroup):
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
