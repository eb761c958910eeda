"""The remedies of errors: what an error of the planner tells its reader to do is done, as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

from tests.support.processes import ran
from timewheel.cli.planning import HistoryOptions

_COMMAND = re.compile(r": ((?:cd|iconv|ln|mkdir|mv|sed|tar|timewheel|unzip|xz) .+)$", re.DOTALL)
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: ([a-z]+)(?=$|[ .,;]))?")
_LEFT_OUT = re.compile(r"leave --([a-z-]+) out")


def _field_of(option: str) -> str:
    """Return the field of an option of a history: its own name, or the name that Typer was given."""
    for field, hint in get_type_hints(HistoryOptions, include_extras=True).items():
        declared = [
            name for one in getattr(hint, "__metadata__", ()) for name in (one.default, *(one.param_decls or ()))
        ]
        if f"--{option}" in declared or f"--{field.replace('_', '-')}" == f"--{option}":
            return field
    raise AssertionError(f"no command that reads a history has an option --{option}")


def followed(error: str, source: str, asked: HistoryOptions, values: Mapping[str, str]) -> tuple[str, HistoryOptions]:
    """Do what an error says, and return the history and the options to read then.

    Args:
        error: The message.
        source: The history that was refused.
        asked: The options that it was read by.
        values: Values of options that the message names without one, for the reader to choose.
    """
    command = _COMMAND.search(error)
    if command is None:
        options = {name: value or values[name] for name, value in _OPTION.findall(error) if value or name in values}
        assert options, f"there is nothing to do in: {error}"
        given: dict[str, Any] = {_field_of(option): value for option, value in options.items()}
        return source, replace(asked, **given)
    words = shlex.split(command[1])
    if words[0] == "timewheel":
        return words[-1], asked
    ran(["bash", "-c", command[1]], check=True)
    left_out: dict[str, Any] = {_field_of(option): None for option in _LEFT_OUT.findall(error)}
    asked = replace(asked, **left_out)
    is_made = words[0] in {"ln", "mkdir", "mv"} or ">" in words
    return words[-1] if is_made else source, asked
