"""Writes the result of `timewheel plan`, and prints the next command, or that a plan alone cures no full topic."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from timewheel.cli.connecting import typed_again
from timewheel.cli.exit_status import ATTENTION, FAILED
from timewheel.cli.terminal import say, show_line
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import Native
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.core.plan import Plan
    from timewheel.spark_planner import Planned, Prices
    from timewheel.spark_planner.estimating import Estimated
    from timewheel.spark_planner.history.sampled import SampleNote

__all__ = ["show_next", "show_with_room", "status_of", "style_of", "write_planned"]

SHADOW_FILE = "shadow.toml"
NEW_TOPIC = "-timers"
"""Suffix for a new topic beside a full topic, and for the files of the new topic's plan."""


def write_planned(
    context: typer.Context,
    reached_by: Sequence[str],
    console: Console,
    planned: Planned,
    out: Path | None,
    report: Path | None,
    prices: Prices,
    note: SampleNote | None,
) -> None:
    """Write the plan and the report to the given paths, and print these paths and the next command.

    Args:
        context: Context of the command.
        reached_by: Options by which a command reaches the cluster.
        console: The terminal.
        planned: The result.
        out: The plan's file.
        report: The report's file.
        prices: Prices for a month's cost.
        note: The note of the history, if it is a sample.
    """
    from timewheel.core.planfile import save_plan

    if out is not None:
        save_plan(planned.plan, out)
        show_line(console, f"plan    {out}")
    if report is not None:
        from timewheel.spark_planner import report_page

        page = report_page(planned, plan_file=str(out) if out else "plan.toml", prices=prices)
        report.write_text(page, encoding="utf-8")
        show_line(console, f"report  {report}")
    if out is not None:
        show_next(context, reached_by, console, planned.plan, out, note)
    elif report is None:
        _show_line(console, "nothing written: ", typed_again(context, out="plan.toml", report="report.html"))
    if planned.is_short_of_room:
        show_with_room(context, console)


def show_with_room(context: typer.Context, console: Console) -> None:
    """Print the command again, for a plan with room for a second burst."""
    from timewheel.spark_planner.choice.constraints import TWICE

    _show_line(console, "room", typed_again(context, growth=f"{TWICE:g}"))


def style_of(planned: Planned | Estimated) -> str:
    """Return the style of a verdict."""
    color = "red" if not planned.keeps_limits else "yellow" if planned.is_short_of_room else "green"
    return f"bold {color}"


def status_of(planned: Planned | Estimated) -> int:
    """Return the exit status of an answer."""
    if not planned.keeps_limits:
        return FAILED
    return ATTENTION if planned.is_short_of_room else 0


def show_next(
    context: typer.Context,
    reached_by: Sequence[str],
    console: Console,
    plan: Plan,
    file: Path,
    note: SampleNote | None,
) -> None:
    """Print the follow-up commands of a plan, complete and ready to copy; a plan for native delays needs none.

    Args:
        context: Context of the command.
        reached_by: Options by which a command reaches the cluster.
        console: The terminal.
        plan: The chosen plan.
        file: The plan's file.
        note: The note of the sample from which the plan was made; None: the plan was made from a history.
    """
    is_there = note is not None and note.topic == plan.due_topic
    partitions = max(note.partitions, 1) if note is not None and is_there else 1
    if isinstance(plan.scheme, Native) and plan.own_partitions == partitions:
        return
    reached = [*(note.reached_by if note else ()), *reached_by]
    if plan.intake:
        _show_line(console, "next", ["shadow", "start", str(file), "--dry-run", *reached])
    elif note is not None and is_there and note.native and note.shadow is None:
        assert note.native_until_ms is not None, "some wait"
        until = dt.datetime.fromtimestamp(note.native_until_ms / 1_000, dt.UTC)
        held = ("about " if note.scale > 1 else "") + counted(note.native, "timer")
        say(
            console,
            f"FIRST   {note.topic} holds {held} under the broker's own delay. This plan moves "
            f"none of them: their gaps stay until the last is due, {until:%Y-%m-%d %H:%M} UTC. So begin with a shadow, "
            "which takes them out of the topic; or plan for a new topic, and let consumers of the old one go on until "
            "then.",
            style="bold red",
        )
        _show_line(console, "shadow", ["shadow", "start", note.topic, "-o", SHADOW_FILE, "--dry-run", *reached])
        report: Path | None = context.params.get("report")
        files = {"out": _beside(file)} | ({} if report is None else {"report": _beside(report)})
        _show_line(console, "new", typed_again(context, due_topic=note.topic + NEW_TOPIC, **files))
    else:
        grow = ["--grow"] if is_there and plan.own_partitions > partitions else []
        _show_line(console, "next", ["topics", "ensure", str(file), *grow, *reached])


def _beside(file: Path) -> Path:
    """Return the file name for the new topic's plan, so that the old topic's plan stays."""
    return file.with_stem(f"{file.stem}{NEW_TOPIC}")


def _show_line(console: Console, name: str, words: list[str]) -> None:
    show_line(console, f"{name:8}{timewheel_command(*words)}")
