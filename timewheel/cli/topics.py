"""`timewheel topics`: makes a plan's topics, and rolls a calendar's topics."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.long_running import Format, Level, LogFormat, LogLevel, call_at_end, log_to_stderr
from timewheel.cli.options import FAILED, DryRun, PlanFile, command_group
from timewheel.cli.terminal import print_line
from timewheel.core.clock import SystemClock
from timewheel.core.plan import Calendar, Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.provision.calendar_life import Rolled
    from timewheel.provision.former_topics import Removal
    from timewheel.provision.provision_steps import Step
    from timewheel.provision.provisioning import Report

topics = command_group("topics", "Create a plan's topics; roll the topics of a calendar.")

AT_LATEST = ", for what reaches the due topic from now on"
Verbose = Annotated[bool, Option("--verbose", help="Show each step, not a line for each topic.")]
AsJson = Annotated[bool, Option("--json", help="Print one line of JSON instead of a table.")]


@topics.command()
def ensure(
    plan_file: PlanFile,
    *,
    cluster: AdminOptions,
    create_namespaces: Annotated[bool, Option("--create-namespaces", help="Create missing namespaces.")] = False,
    grow: Annotated[
        bool, Option("--grow", help="Raise the partitions of topics that have fewer than the plan.")
    ] = False,
    ignore_former_topics: Annotated[
        bool,
        Option(
            "--ignore-former-topics",
            help="Only warn of timers in topics of an earlier plan that no relay would move on: you take care of them.",
        ),
    ] = False,
    remove_drained: Annotated[
        bool, Option("--remove-drained", help="Remove empty topics of earlier plans that no client uses.")
    ] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Create or update topics, subscriptions and topic policies of a plan; a second run changes only the differences.

    Exit status 1 if it finds a problem that it cannot repair and that can lose messages. If timers wait in topics of an
    earlier plan and no relay would move them on, nothing is created; --remove-drained still removes empty topics, and
    all results are shown.
    """
    from timewheel.core.topology import UndrainedTopics
    from timewheel.provision.former_topics import remove_drained as remove_topics
    from timewheel.provision.provisioning import ensure as ensure_topics

    plan = Plan.load(plan_file)
    make = partial(
        ensure_topics,
        plan=plan,
        now_ms=SystemClock().now_ms(),
        create_namespaces=create_namespaces,
        grow=grow,
        target=str(plan_file),
    )
    refused: UndrainedTopics | None = None
    with cluster.admin() as admin:
        try:
            report = make(admin, dry_run=dry_run, ignore_former_topics=ignore_former_topics)
        except UndrainedTopics as error:
            if not (dry_run or remove_drained):
                raise
            # No topic is made; everything else that was requested is done and shown.
            refused, report = error, make(admin, dry_run=True, ignore_former_topics=True)
        removals = remove_topics(admin, plan, dry_run=dry_run, waits_for=_report_of_wait) if remove_drained else ()
    if as_json:
        removed = [
            {"topic": one.topic, "stage": one.stage.value, "backlog": one.backlog, "clients": one.clients}
            for one in removals
        ]
        print(json.dumps({**_report_json(report), "removals": removed}))
    else:
        _print_report(report, verbose=verbose)
        for removal in removals:
            print_line(f"{removal.topic}: {removal}")
    if refused is not None:
        raise refused
    if report.errors:
        raise typer.Exit(FAILED)


@topics.command()
def roll(
    plan_file: PlanFile,
    *,
    cluster: AdminOptions,
    watch: Annotated[bool, Option("--watch", help="Run until Ctrl-C.")] = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    log_format: LogFormat = Format.AUTO,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Create a calendar's topics ahead; terminate and delete passed topics once they are drained and left.

    Run it more than once per interval, from cron or with --watch, whose log goes to standard error.
    """
    from timewheel.hooks import log_event
    from timewheel.provision.calendar_life import CalendarRoller
    from timewheel.provision.calendar_life import roll as roll_topics

    plan = Plan.load(plan_file)
    if not isinstance(plan.scheme, Calendar):
        raise typer.BadParameter(f"{plan_file} is no calendar plan: its topics do not roll", param_hint="PLAN")
    if watch and dry_run:
        raise typer.BadParameter("--watch and --dry-run exclude each other", param_hint="--watch")
    clock = SystemClock()
    if watch:
        log_to_stderr(log_format, log_level)
    with cluster.admin(hooks=(log_event,) if watch else None) as admin:
        if not watch:
            rolled = roll_topics(admin, plan, clock.now_ms(), dry_run=dry_run)
            _print_rolled(rolled, verbose=verbose, as_json=as_json)
            return
        keeper = CalendarRoller(admin, plan, clock)
        for _ in _until_interrupted(keeper.pause_ms / 1000):
            turned = keeper.tick()
            if turned is not None:
                _print_rolled(turned, verbose=verbose, as_json=as_json)


def _until_interrupted(pause_s: float) -> Iterator[None]:
    """Yield at once and then after every pause, until SIGINT or SIGTERM."""
    ended = threading.Event()
    call_at_end(ended.set)
    yield
    while not ended.wait(pause_s):
        yield


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "topics": list(report.topics),
        "steps": [{"topic": step.topic, "step": str(step)} for step in report.steps],
        "findings": [finding.facts() for finding in report.findings],
    }


def _report_of_wait(removal: Removal) -> None:
    from timewheel.provision.former_topics import LET_GO_MS

    clients = counted(removal.clients, "client")
    print_line(f"{removal.topic}: empty, waiting up to {LET_GO_MS // 1_000} s for {clients} to leave", to_stderr=True)


def _print_report(report: Report, *, verbose: bool) -> None:
    for line in (f"{step.topic}: {step}" for step in report.steps) if verbose else _steps_by_topic(report):
        print_line(line)
    would = "would take" if report.dry_run else "took"
    state = f"{would} {counted(len(report.steps), 'step')}" if report.steps else "all as it should be"
    print_line(f"{counted(len(report.topics), 'topic')}: {state}")
    for finding in report.findings:
        print_line(str(finding))


def _steps_by_topic(report: Report) -> Iterator[str]:
    """Yield a line for each topic, unbroken on a terminal of any width, so that the topic's name can be copied."""
    from timewheel.provision.provision_steps import CreateSubscription, SetPolicy

    of_topic: dict[str, list[Step]] = {}
    for step in report.steps:
        of_topic.setdefault(step.topic, []).append(step)
    for topic, steps in of_topic.items():
        said = [str(step) for step in steps if not isinstance(step, CreateSubscription | SetPolicy)]
        made = [step for step in steps if isinstance(step, CreateSubscription)]
        if names := [f"{step.subscription}{AT_LATEST * (step.start == 'latest')}" for step in made]:
            said.append(f"{'subscription' if len(names) == 1 else 'subscriptions'} {', '.join(names)}")
        if policies := sum(isinstance(step, SetPolicy) for step in steps):
            said.append(counted(policies, "policy", "policies"))
        yield f"{topic}: {', '.join(said)}"


def _print_rolled(rolled: Rolled, *, verbose: bool, as_json: bool) -> None:
    if as_json:
        retired = [
            {"topic": topic.topic, "stage": topic.stage.value, "backlog": dict(topic.backlog), "note": topic.note}
            for topic in rolled.retired
        ]
        facts = {"made": _report_json(rolled.made), "retired": retired, "open_topics": rolled.open_topics}
        print(json.dumps(facts), flush=True)
        return
    if rolled.made.steps or rolled.made.findings:
        _print_report(rolled.made, verbose=verbose)
    for topic in rolled.retired:
        waiting = ", ".join(f"{name} {count}" for name, count in topic.backlog.items() if count)
        print_line("  ".join(filter(None, (topic.topic, topic.stage.value, waiting, topic.note))))
    print_line(f"{rolled.open_topics} open, {len(rolled.retired)} passed")
