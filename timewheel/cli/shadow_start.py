"""`timewheel shadow start`: shows the effect of a shadow on a topic, and starts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.options import ATTENTION, AsJson, with_options
from timewheel.cli.shadow_common import show_survey, unseen_is_an_exit
from timewheel.cli.terminal import progress_bar, say, show_line
from timewheel.core.durations import parse_duration
from timewheel.core.errors import PlanError
from timewheel.core.escapes import timewheel_command, visible
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan, Tiered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.shadow.survey import Survey


def bare_plan(admin: AdminClient, topic: str) -> Plan:
    """Make a plan with the topic's own subscriptions and partitions, by which its waiting entries are read.

    Args:
        admin: Admin client of any broker.
        topic: Full name of a persistent topic, partitioned or not.

    Raises:
        BadParameter: The topic already has a shadow.
        NothingToSample: The topic does not exist, or has no subscription.
        AdminError: The role may not read the topic's stats.
    """
    from timewheel.broker.admin.stats import is_users
    from timewheel.inspect.errors import NothingToSample
    from timewheel.inspect.missing_topics import no_such_topic, shadow_of
    from timewheel.inspect.profile import profile_of
    from timewheel.shadow.curing import first_plan

    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, no_such_topic(admin, topic))
    if (state := shadow_of(admin, topic)) is not None:
        there = f"it has a shadow already ({state}): name the plan file that it was started with"
        raise typer.BadParameter(f"{visible(topic)}: {there}", param_hint="PLAN")
    every = [admin.topics.stats(part).subscriptions for part in parts_of(topic, partitions)]
    names = {name for found in every for name, one in found.items() if one.is_durable and is_users(name)}
    if not names:
        raise NothingToSample(topic, "it has no subscription, so nothing waits there and there are no gaps")
    return first_plan(topic, sorted(names), partitions, profile_of(admin).tick_ms)


def plan_of_topic(found: Survey, window_ms: int | None) -> Plan:
    """Make the plan of a topic for its delays.

    Args:
        found: The topic, surveyed by its `bare_plan`.
        window_ms: The plan's window; None: the longest, up to half a day, that leaves few gaps; the shortest if none
            does.

    Raises:
        NothingToSample: No message with a delay waits in the topic.
        PlanError: No plan can have this window.
    """
    from timewheel.inspect.errors import NothingToSample
    from timewheel.shadow.curing import fitted, windows

    plan = found.plan
    if found.delays is None:
        raise NothingToSample(
            plan.due_topic,
            "no message with a delay waits there now, so there is nothing to choose a window by: look again while some "
            "wait, or choose by a history of sends: timewheel plan HISTORY --shadow --out PLAN",
        )
    if window_ms is None:
        scheme = (found.fitting or windows(plan)[-1]).scheme
        assert isinstance(scheme, Tiered), "a shadow's first plan and its windows are tiers"
        window_ms = scheme.window_ms
    return fitted(plan, window_ms, found.delays.longest_ms)


@with_options
def start(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|TOPIC",
            help="A plan file; or, with --out, persistent://tenant/namespace/topic to make a plan for.",
            show_default=False,
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing, show the timers that would be moved.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="With a topic: write the plan that is made for it here.", dir_okay=False),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", help="Write this window, and matching tiers, into the plan before the start."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With a topic: start without asking.")] = False,
    entries: Annotated[
        int, typer.Option("--entries", min=100, max=100_000_000, help="Entries to read in each partition.")
    ] = 100_000,
    ignoring: Annotated[bool, typer.Option("--ignore-refusals", help="Start in spite of refusals.")] = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Make a plan's topics and start shadowing its due topic; with --dry-run only show the effect.

    `timewheel shadow run` moves the timers, also timers that an earlier plan left in the topic. With a topic instead of
    a plan, the longest window that leaves few enough gaps of its waiting timers is chosen, the plan is written to
    --out, and the command asks before it starts. Exit status: 3 if there are reasons against a shadow, and nothing was
    started; 1 if the topic cannot be seen.
    """
    from timewheel.cli.planning import console_for
    from timewheel.shadow.curing import with_window

    is_topic = _is_topic(target, out)
    window_ms = None if window is None else parse_duration(window)
    from timewheel.shadow.survey import read_topic, survey_facts

    access = cluster.access()
    console = console_for(as_json=as_json)
    file = target if out is None else str(out)
    with access.admin() as admin:
        with unseen_is_an_exit(), progress_bar("reading entries") as on_progress:
            # Also without an intake: the survey reports this with all other findings.
            given = None if is_topic else Plan.load(Path(target))
            url = access.service_url_of(target if given is None else given.due_topic, admin)
            bare = given or bare_plan(admin, target)
            read = read_topic(admin, access.dialer(url), bare, target=file, most=entries, on_progress=on_progress)
            made = given or plan_of_topic(read.survey(bare), window_ms)
            plan = made if window_ms is None or is_topic else with_window(made, window_ms)
            text = "" if is_topic else _edited(target, made, plan)
            found = read.survey(plan)
        if out is not None:
            _write(plan, out, console, as_json=as_json)
        if not as_json:
            show_survey(console, found)
        begins = not dry_run and (ignoring or not found.is_refused)
        if begins and is_topic and not yes:
            begins = _asked(plan)
        done = _begin(admin, plan, file, text) if begins else ""
        is_moved = bool(done) and _is_moved(admin, plan)
    if as_json:
        print(json.dumps({**survey_facts(found), "plan_file": file, "revision": plan.revision, "started": begins}))
    else:
        if text:
            say(console, written_words(plan, made, file, is_written=begins))
        next_words = _next_words(
            file, done, cluster.words, is_new=is_topic, is_refused=found.is_refused, is_moved=is_moved
        )
        show_line(console, next_words)
    if found.is_refused and not begins:
        raise typer.Exit(ATTENTION)


def written_words(plan: Plan, before: Plan, file: str, *, is_written: bool) -> str:
    """Describe the change of the window in a plan's file, and its effect on running shadows; or the change that a start
    would make.
    """
    from timewheel.shadow.curing import lines_of

    change = f"{visible(file)}: {lines_of(plan)} (before: {lines_of(before) or f'revision = {before.revision}'})"
    if is_written:
        runs = "Each shadow run that reads this file follows it within seconds"
        return f"Written into {change}. {runs}; where several run, a timer may come twice meanwhile."
    runs = "each shadow run would follow it within seconds; end all but one first, else a timer may come twice"
    return f"Nothing was written. A start would write into {change}, and {runs}."


def _edited(target: str, made: Plan, plan: Plan) -> str:
    """Return the new text of the plan's file, before any topic is made, since the edit may be refused; empty: no
    change.
    """
    from timewheel.core.planfile import edit_plan, read_plan_text

    if plan == made:
        return ""
    try:
        return edit_plan(read_plan_text(Path(target)), plan)
    except PlanError as error:
        error.in_file(target)
        raise


def _next_words(
    file: str, done: str, reached_by: Sequence[str], *, is_new: bool, is_refused: bool, is_moved: bool
) -> str:
    """Describe the result, and give the next command."""
    if done and is_moved:
        return f"{done}. A shadow run is connected, and follows it within seconds."
    if done:
        return f"{done}. Now let it run: {timewheel_command('shadow', 'run', file, *reached_by)}"
    begun = f"Nothing was begun{f'; the plan is in {visible(file)}' if is_new else ''}."
    if is_refused:
        return f"{begun} See the refusals above, and their cures."
    return f"{begun} To begin: {timewheel_command('shadow', 'start', file, *reached_by)}"


def _is_topic(target: str, out: Path | None) -> bool:
    """Return whether the target is a topic; contradicting options are a usage error."""
    is_topic = "://" in target
    if is_topic and out is None:
        raise typer.BadParameter("a plan is made for the topic: give the file to write it to", param_hint="--out")
    if not is_topic and out is not None:
        raise typer.BadParameter(
            f"only with a topic, such as persistent://acme/crm/orders; {visible(target)} is taken for a plan file",
            param_hint="--out",
        )
    if out is not None and (out.exists() or not out.parent.is_dir()):
        problem = f"there is no folder {out.parent}"
        if out.exists():
            begin = timewheel_command("shadow", "start", str(out))
            problem = (
                f"{visible(str(out))} is there already: {begin} begins its plan; for another topic name another file"
            )
        raise typer.BadParameter(problem, param_hint="--out")
    return is_topic


def _write(plan: Plan, file: Path, console: Console, *, as_json: bool) -> None:
    """Write the plan's file, and print it."""
    from timewheel.core.planfile import save_plan

    save_plan(plan, file)
    if not as_json:
        say(console, "")
        say(console, f"plan    {file}", style="bold")
        for line in file.read_text(encoding="utf-8").splitlines():
            show_line(console, line)


def _asked(plan: Plan) -> bool:
    """Ask whether to begin; without a terminal the answer is no."""
    try:
        return typer.confirm(f"Create the plan's topics, and start to shadow {visible(plan.due_topic)}?", err=True)
    except typer.Abort:
        return False


def _begin(admin: AdminClient, plan: Plan, file: str, text: str) -> str:
    """Make the topics, write a new text into the plan's file and store the request; return the result as a sentence."""
    from timewheel.cli.shadow_common import note
    from timewheel.provision.provisioning import ensure
    from timewheel.shadow.desired_state import State

    ensure(admin, plan, now_ms=admin.clock.now_ms(), target=file)
    if text:
        Path(file).write_text(text, encoding="utf-8", newline="")
    return note(admin, plan, State.SHADOWING)


def _is_moved(admin: AdminClient, plan: Plan) -> bool:
    """Return whether a mover is connected to every partition of the journal."""
    from timewheel.inspect.missing_topics import mover_in

    parts = parts_of(Names(plan).journal, plan.own_partitions)
    return all(mover_in(admin.topics.stats(part, clients=True)) is not None for part in parts)
