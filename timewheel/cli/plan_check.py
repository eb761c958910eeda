"""`timewheel plan check`: monitors a live plan, as a scheduled job."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from typer import Option

from timewheel.cli import planning
from timewheel.cli.connecting import AdminOptions, typed_again
from timewheel.cli.options import ALARM, ATTENTION, PlanFile, need_folders
from timewheel.cli.terminal import progress_bar, say, show_line, show_table
from timewheel.core.durations import parse_duration
from timewheel.core.errors import TimewheelError
from timewheel.core.escapes import timewheel_command, with_plan_file
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from timewheel.spark_planner import Statistic
    from timewheel.watch import Change, Checked, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedBroker(AdminOptions):
    """The connection of a check."""

    admin_option: ClassVar[str] = "--broker"

    admin_url: Annotated[
        str | None,
        Option(
            "--broker",
            metavar="URL",
            help="Web service of any broker: topics and settings; else PULSAR_ADMIN_URL.",
            show_default="http://localhost:8080",
        ),
    ] = None


def check(
    context: typer.Context,
    plan_file: PlanFile,
    *,
    cluster: CheckedBroker,
    profile: Annotated[
        Path | None, Option(help="A file of `timewheel profile`, if the role may not read settings.")
    ] = None,
    stat: Annotated[
        Path | None, Option(help="Source of the plan: a folder of `timewheel survey`, or a statistic's file.")
    ] = None,
    topic: Annotated[
        str | None, Option(help="Topic of the statistic, if it has several and none is the plan's.")
    ] = None,
    log: Annotated[Path | None, Option(help="Log of checks: earlier checks are read, this check is appended.")] = None,
    horizon: Annotated[str, Option(help="How far ahead a limit matters: 30d.")] = "30d",
    out: Annotated[
        Path | None, Option("-o", "--out", help="Write the changed plan here, if one is needed.", dir_okay=False)
    ] = None,
    samples: Annotated[
        int, Option(min=1, max=1_000_000, help="Entries of due topics to sample, and as many of holding topics.")
    ] = 10_000,
    seed: Annotated[int, Option(help="Seed of the sample.")] = 0,
    gap_fraction: planning.GapFraction = WATCH_SHARE,
    max_silence: planning.MaxSilence = "10s",
    change: Annotated[
        bool, Option("--change/--no-change", help="Plan again if a limit is or will be reached; needs Spark.")
    ] = True,
    cores: planning.Cores = None,
    memory: planning.Memory = "2g",
    as_json: planning.PlannerJson = False,
) -> None:
    """Check a live plan: counted gaps against predicted gaps, drift of rate and delays, and when limits are reached.

    If a limit is reached, or will be, a change of the plan that keeps it is proposed. Nothing is consumed or changed.
    Exit status: 0 the plan holds; 3 it needs attention soon (a limit within the horizon, drift, or an unexpected
    count); 4 a limit is broken now; 1 and 2 the check was not made.
    """
    from timewheel.inspect.profile import profile_of
    from timewheel.spark_planner import Constraints
    from timewheel.watch import append_check, read_checks
    from timewheel.watch import check as inspect
    from timewheel.watch.text import change_facts, checked_facts

    plan = Plan.load(plan_file)
    horizon_ms = parse_duration(horizon)
    need_folders({"--out": out, "--log": log})
    constraints = Constraints(gap_fraction=gap_fraction, silence_seconds=planning.limit_s(max_silence))
    console = planning.console_for(as_json=as_json)
    with cluster.admin() as admin, _stat_errors():
        evaluated_by = profile_of(admin) if profile is None else planning.stored_profile(str(profile))
        statistic = None if stat is None else load_statistic(stat)
        earlier = () if log is None else read_checks(log, plan.due_topic)
        with progress_bar("looking at entries") as on_progress:
            checked = inspect(
                admin,
                plan,
                evaluated_by,
                statistic=statistic,
                topic=topic,
                earlier=earlier,
                constraints=constraints,
                horizon_ms=horizon_ms,
                samples=samples,
                seed=seed,
                on_progress=on_progress,
            )
    if log is not None:
        append_check(log, checked.line())
    _show(console, checked, str(plan_file))
    found: Change | None = None
    if change and checked.needs_change:
        found = _change(console, checked, cores, memory)
        if found is not None:
            _show_change(context, cluster, console, found, plan_file, out)
    if as_json:
        facts = {**checked_facts(checked), "change": None if found is None else change_facts(found, str(plan_file))}
        print(json.dumps(facts, indent=1))
    raise typer.Exit(exit_status(checked.level))


def exit_status(level: Level) -> int:
    """Return the exit status for a scheduled job."""
    from timewheel.watch import Level

    return {Level.FINE: 0, Level.ATTENTION: ATTENTION, Level.BROKEN: ALARM}[level]


def load_statistic(path: Path) -> Statistic:
    """Load the statistic that a plan was made from, from a survey's folder or a statistic's file."""
    from timewheel.spark_planner import Statistic, load_survey

    return load_survey(path).statistic if path.is_dir() else Statistic.load(path)


@contextmanager
def _stat_errors() -> Iterator[None]:
    from timewheel.spark_planner.errors import NoSuchTopic, SeveralTopics, StatisticUnreadable

    try:
        yield
    except (NoSuchTopic, SeveralTopics, StatisticUnreadable) as error:
        raise typer.BadParameter(str(error), param_hint="--stat") from error


def _show(console: Console, checked: Checked, plan_file: str) -> None:
    from timewheel.watch import Level
    from timewheel.watch.text import comparison_table, describe_sends, headline

    style = {Level.FINE: "bold green", Level.ATTENTION: "bold yellow", Level.BROKEN: "bold red"}[checked.level]
    say(console, headline(checked), style=style)
    for finding in checked.findings:
        mark = {Level.FINE: "note", Level.ATTENTION: "ATTENTION", Level.BROKEN: "BROKEN"}[finding.level]
        say(console, f"{mark}  {with_plan_file(finding.text, plan_file)}", indent=2)
    console.print()
    for name, text in describe_sends(checked):
        say(console, f"{name:8}{text}")
    show_table(console, comparison_table(checked))


def _change(console: Console, checked: Checked, cores: int | None, memory: str) -> Change | None:
    """Plan a change; if there is none, print the reason and return None: the check itself is made."""
    from timewheel.watch import change_for

    stopped = "stopped: the check is made, no change was planned"
    try:
        spark_session = planning.session(cores, memory, when_stopped=stopped)
        with spark_session as spark, planning.progress_on(console) as on_progress:
            found = change_for(spark, checked, on_progress=on_progress)
    except (TimewheelError, typer.BadParameter) as error:
        say(console, f"no change was planned: {error}", style="bold")
        return None
    if found is None:
        say(console, "no change was planned: too few sends were seen to plan from", style="bold")
    return found


def _show_change(
    context: typer.Context, cluster: AdminOptions, console: Console, change: Change, plan_file: Path, out: Path | None
) -> None:
    from timewheel.core.planfile import save_plan
    from timewheel.watch.text import describe_change

    if out is not None and change.is_one:
        save_plan(change.after, out)
    console.print()
    new = out or Path(f"new-{plan_file.name}")
    write = "" if out is not None else timewheel_command(*typed_again(context, out=new))
    for text in describe_change(change, str(plan_file), str(new), write, cluster.words):
        show_line(console, text)
