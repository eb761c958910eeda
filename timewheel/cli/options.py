"""Groups of options that several commands have: a dataclass, whose fields are the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

__all__ = ["AsJson", "DryRun", "PlanFile", "keep_plan_file", "with_options"]


def keep_plan_file(context: typer.Context, plan_file: Path) -> Path:
    """Keep the name of the plan's file for the commands that an error prints: the SDK raises most of them, and does not
    know the file.
    """
    if context.obj is not None:
        context.obj.plan_file = str(plan_file)
    return plan_file


PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The plan file.", show_default=False, callback=keep_plan_file)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of text.")]


def with_options(command: Callable[..., None], **groups: type) -> Callable[..., None]:
    """Give a command, for Typer, the options of each parameter that is a group, and hand the group over.

    An option that has the same name in two groups, or in a group and in the command, is a single option.

    Args:
        command: Some of its parameters are annotated with dataclasses.
        groups: Dataclasses by parameter, in place of the annotations.
    """
    own = inspect.signature(command, eval_str=True).parameters
    annotated: dict[str, type] = {
        name: one.annotation
        for name, one in own.items()
        if isinstance(one.annotation, type) and is_dataclass(one.annotation)
    }
    groups = {**annotated, **groups}
    parameters: dict[str, inspect.Parameter] = {}
    for name, one in own.items():
        for option in _options_of(groups[name]) if name in groups else [one]:
            parameters.setdefault(option.name, option.replace(kind=option.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: object) -> None:
        made = {
            name: group(**{one.name: given[one.name] for one in _options_of(group)}) for name, group in groups.items()
        }
        command(**{name: made[name] if name in made else given[name] for name in own})

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined] # inspect reads it
    return run


@cache
def _options_of(group: type) -> list[inspect.Parameter]:
    """Return the fields of a group as options; a field ``context`` is the context, which Typer passes."""
    types = {**get_type_hints(group, include_extras=True), "context": typer.Context}
    fields = inspect.signature(group).parameters.values()
    return [field.replace(annotation=types[field.name]) for field in fields]
