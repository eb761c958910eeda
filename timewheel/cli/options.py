"""Shared parts of commands: options and groups of options (dataclasses), times, groups of commands, exit statuses."""

from __future__ import annotations

import datetime as dt
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache, wraps
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from timewheel.core.clock import Clock, pause
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, parse_duration
from timewheel.core.envelope import unit_mistake
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted


def keep_plan_file(context: typer.Context, plan_file: Path) -> Path:
    """Keep the name of the plan's file for the commands that an error prints: the SDK does not know the file."""
    if context.obj is not None:
        context.obj.plan_file = str(plan_file)
    return plan_file


PlanFile = Annotated[Path, Argument(metavar="PLAN", help="The plan file.", show_default=False, callback=keep_plan_file)]


def need_folders(files: Mapping[str, Path | None]) -> None:
    """Refuse files (by option) that cannot be written, before any work: a folder, and one in no existing folder."""
    for option, path in files.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            problem = f"{path} is a folder: give a file" if path.is_dir() else f"there is no folder {path.parent}"
            raise typer.BadParameter(problem, param_hint=option)


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Turn an error of the file system into a usage error."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint=option) from error


DryRun = Annotated[bool, Option("--dry-run", help="Change nothing, show what would be done.")]
AsJson = Annotated[bool, Option("--json", help="Print one line of JSON instead of text.")]


def with_options(command: Callable[..., None], **groups: type) -> Callable[..., None]:
    """Give a command, for Typer, the options of each parameter that is a group, and hand the group over.

    An option that has the same name in two groups, or in a group and in the command, is a single option.
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
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                hint = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{value} is no finite number: give one, like 2", param_hint=hint)
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


# docs/commands.md has the reason for 3 and 4 of each command.
FAILED = 1  # the command failed, a limit of the answer is not kept, or not everything could be seen
USAGE = 2  # an argument, a setting or a plan is wrong
ATTENTION = 3  # something needs attention soon
ALARM = 4  # something is broken now, or the named object was not found


USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
"""Base class of all errors in a command line; typer has no public name for it."""
PANELS = ("Set up", "Look", "Cure", "Plan", "Look after timers")  # headings of the commands in `timewheel --help`
WHOLE_CHARS = 1_000  # longer than any first sentence, so that click cuts no summary


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


F = TypeVar("F", bound=Callable[..., Any])


class Commands(typer.Typer):
    """Commands whose parameters may be groups of options, see `with_options`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Make a function a command."""

        def add(command: F) -> F:
            super(Commands, self).command(name, **settings)(with_options(command))
            return command

        return add


def command_group(name: str, help: str) -> Commands:  # noqa: A002 - as typer calls it
    """Make a group for commands that begin with the same word."""
    return Commands(name=name, cls=CommandGroup, no_args_is_help=True, help=help)


LEAST_EVERY_MS = 1_000

Everything = Annotated[bool, Option("--all", help="All tenants; needs a superuser.")]
GapLimit = Annotated[
    int | None, Option("--gap-limit", min=1, help="The broker's limit on gaps, if the role may not read it.")
]
AtOnce = Annotated[int, Option("--concurrency", min=1, max=256, help="Concurrent requests.")]


def every_ms_of(every: str) -> int:
    """Return ``--every`` in milliseconds; an interval below one second is a usage error."""
    every_ms = parse_duration(every)
    if every_ms < LEAST_EVERY_MS:
        raise typer.BadParameter("at least 1s", param_hint="--every")
    return every_ms


def repeated(clock: Clock, every_ms: int | None, times: int | None = None) -> Iterator[None]:
    """Yield once; or with an interval as often as asked, or until Ctrl-C."""
    for number in count(1):
        yield
        if every_ms is None or number == times:
            return
        try:
            pause(clock, every_ms)
        except KeyboardInterrupt:
            return


def names_and_plans(targets: Sequence[str]) -> tuple[list[str], list[Plan]]:
    """Separate targets into names of topics, namespaces and tenants, and plans loaded from files."""
    is_plan = {target: target.endswith(".toml") or Path(target).is_file() for target in targets}
    names = [target for target in targets if not is_plan[target]]
    return names, [Plan.load(Path(target)) for target in targets if is_plan[target]]


def type_words(subscription_type: str) -> str:
    """Describe a subscription's type; the broker knows no type if no consumer has been connected."""
    return "no consumer" if subscription_type == "None" else subscription_type


def entries_wait(entries: int, of: str, listing: str) -> str:
    """Describe the entries that wait for an operator: the broker counts these, and a batch is a single entry."""
    waits = counted(entries, f"entry of {of} waits", f"entries of {of} wait")
    return f"{waits} for you, with one or many in each: {listing}"


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIME = re.compile(r".+[T ]\d\d(:?\d\d)?(:?\d\d)?(?:[.,](\d+))?(?:Z|[+-][\d:.]+)?", re.ASCII)
_NUMBER = re.compile(r"\d{9,30}", re.ASCII)


def moment_ms(text: str | None, option: str) -> int | None:
    """Parse UTC milliseconds, or ISO 8601, which is UTC if it has no offset, to UTC milliseconds. None stays None."""
    if text is None:
        return None
    try:
        at_ms = int(text) if _NUMBER.fullmatch(text) else _iso_ms(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither like 2026-11-23T08:00:00Z nor milliseconds since 1970", param_hint=option
        ) from None
    if (mistake := unit_mistake(at_ms)) is not None:
        raise typer.BadParameter(f"{text!r} is {mistake}", param_hint=option)
    return at_ms


def _iso_ms(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def precision_ms(text: str | None) -> int:
    """Return the span that a text for `moment_ms` stands for, in ms: ``...T08:00Z`` is a minute; 1 if it is exact."""
    if text is None or _NUMBER.fullmatch(text):
        return 1
    if (time := _TIME.fullmatch(text)) is None:
        return DAY_MS
    minutes, seconds, fraction = time.groups(default="")
    if fraction:
        return int(SECOND_MS // 10 ** min(len(fraction), 3))
    return SECOND_MS if seconds else MINUTE_MS if minutes else HOUR_MS


def at_second(at_ms: int) -> str:
    """Format a point in time for people, in UTC."""
    return f"{_EPOCH + dt.timedelta(milliseconds=at_ms):%Y-%m-%d %H:%M:%S}"


def at(at_ms: int) -> str:
    """Format a point in time to the millisecond, in a form that options accept."""
    moment = _EPOCH + dt.timedelta(milliseconds=at_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03d}Z"
