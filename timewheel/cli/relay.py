"""`timewheel relay`: runs the relays of any number of plans as a separate process, and aborts a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import ConnectionOptions, warn
from timewheel.cli.options import FAILED, command_group, keep_plan_file, with_options
from timewheel.cli.relay_service import ServiceOptions, run_service
from timewheel.cli.terminal import print_line, show_line
from timewheel.core.clock import SystemClock, pause
from timewheel.core.durations import format_duration, span
from timewheel.core.errors import PlanError, TopologyError
from timewheel.core.escapes import timewheel_command, visible
from timewheel.core.plan import Native
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.cli.access import Access
    from timewheel.core.former_topics import FormerTopic
    from timewheel.core.plan import Plan
    from timewheel.relay import Relay
    from timewheel.relay.status import PartitionStatus

relay = command_group("relay", "Run relays as a service; leave a plan.")


@relay.command()
@with_options
def run(asked: ServiceOptions) -> None:
    """Hold and forward the timers of all given plans until SIGTERM or Ctrl-C.

    Several such processes share the partitions and take over from each other. A process that is stuck ends itself, so
    run it under a supervisor that restarts it. The relay drains holding topics of earlier plans by the routing of the
    present plan; to find them it lists topics (--admin-url) at the start and once a minute. The log goes to standard
    error.

    Plan files are read again when they change, and at SIGHUP: relays of added plans start, relays of removed plans
    drain and end, relays of changed plans do both. An invalid file changes nothing. A folder stands for all its *.toml
    files.

    With --processes N the command starts N processes, restarts those that end, and is ready when all are ready.
    """
    run_service(asked)


@relay.command()
@with_options
def abort(
    plan_file: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="The plan file, now native.", show_default=False, callback=keep_plan_file),
    ],
    *,
    cluster: ConnectionOptions,
) -> None:
    """Leave a plan: send all timers in holding topics back to the due topic, under their exact due times.

    First make the plan native, run `topics ensure`, and restart the services with it. Then this process, and all relays
    that have the plan, send back at once the timers in tiers and rings of the earlier plan. The command may be killed
    and run again. From then on the broker delays all timers, and gaps come back.

    Exit status 1 if producers of an earlier plan are connected, or if timers wait where no client of this plan reads.
    """
    complete = put_back(plan_file, cluster.access())
    if not complete:
        raise typer.Exit(FAILED)


LOOK_MS = 500
EMPTY_LOOKS = 2
"""A timer that moves from one topic to another is in neither for a moment."""
REPORT_MS = 15_000
"""Interval between two progress lines if the output is no terminal."""
STALLED_MS = 15_000
"""The reason is shown after this time without progress."""


def await_empty(
    console: Console,
    waiting: Callable[[], int],
    *,
    settle_ms: int = 0,
    why_stalled: Callable[[], str] = lambda: "",
) -> None:
    """Poll until no entry waits outside the due topic.

    Args:
        console: Shows the progress.
        waiting: Counts entries outside the due topic.
        settle_ms: Shortest time to poll.
        why_stalled: Returns the reason for no progress, as a clause; empty: the reason is unknown.
    """
    from rich.text import Text

    clock = SystemClock()
    began_ms = moved_ms = reported_ms = clock.monotonic_ms()
    first = least = waiting()
    entries, empty_looks, reason = first, 0, ""
    with console.status("looking") as shown:
        while True:
            now_ms = clock.monotonic_ms()
            if entries < least:
                least, moved_ms, reason = entries, now_ms, ""
            empty_looks = 0 if entries else empty_looks + 1
            if empty_looks >= EMPTY_LOOKS and now_ms >= began_ms + settle_ms:
                return
            if entries and now_ms - moved_ms >= STALLED_MS:
                reason, moved_ms = why_stalled(), now_ms
            done, took_ms = first - entries, now_ms - began_ms
            left = f", about {span(entries * took_ms / done)} left" if done > 0 and entries and took_ms else ""
            waits = counted(entries, "entry waits", "entries wait")
            line = f"{waits} outside the topic{left}" + (f": {reason}" if reason else "")
            shown.update(Text(visible(line)))
            if not console.is_terminal and now_ms - reported_ms >= REPORT_MS:
                reported_ms = now_ms
                show_line(console, line)
            pause(clock, LOOK_MS)
            entries = waiting()


def put_back(plan_file: Path, access: Access) -> bool:
    """Run a relay of the `native` plan until no holding topic of an earlier plan has anything, and verify it.

    Args:
        plan_file: Of the plan.
        access: Makes the clients.

    Returns:
        Whether the way out is complete: nothing waits, nothing became a dead letter, and no client of an earlier plan
        is connected.

    Raises:
        PlanError: The plan is not `native`.
        TopologyError: Its topics are not as it needs them.
    """
    from rich.console import Console

    from timewheel.core.planfile import load_plan
    from timewheel.provision.former_topics import FormerTopics, findings_of
    from timewheel.provision.provisioned import provisioned, with_noted_namespaces
    from timewheel.relay import Relay

    plan, clock, console = load_plan(plan_file), SystemClock(), Console(stderr=True)
    file = str(plan_file)
    _check_native(plan, file)
    with access.client(plan.due_topic) as client, access.admin() as admin:
        # A native plan need not name the namespace in which an earlier plan held its timers.
        plan = with_noted_namespaces(plan, provisioned(admin, plan.due_topic))
        _check_topics(admin, plan, clock.now_ms(), file)
        inspect = FormerTopics(admin, plan)
        relay = Relay(client, plan, hooks=(warn,), former_topics=inspect)
        # A relay releases a partition that stays empty, and drops its counts.
        partitions: dict[str, PartitionStatus] = {}

        def waiting() -> int:
            partitions.update({partition.topic: partition for partition in relay.status().partitions})
            return sum(topic.backlog for topic in inspect() if topic.holding is not None)

        began_ms = clock.monotonic_ms()
        relay.start()
        try:
            await_empty(console, waiting, why_stalled=lambda: _why_stalled(admin, plan, inspect(), relay))
        finally:
            relay.stop()
        waiting()
        took = span(clock.monotonic_ms() - began_ms)
        moved, cancelled, dead = (
            sum(getattr(partition, count) for partition in partitions.values())
            for count in ("forwarded", "dropped", "dead")
        )
        print_line(f"{plan.due_topic}: nothing waits in holding topics")
        back, dead_letters = counted(moved, "timer"), counted(dead, "dead letter")
        print_line(f"put back by this process in {took}: {back}; {cancelled:,} cancelled, {dead_letters}")
        former = inspect()
    others = [topic for topic in former if topic.holding is None and topic.backlog]
    for finding in findings_of(plan, others):
        print_line(f"{finding.level}: {finding.where}: {finding.problem}; {finding.remedy}")
    senders = [topic for topic in former if topic.producers]
    if senders:
        print_line(
            f"producers of an earlier plan are connected to {_named(senders)}: restart those services with this plan, "
            f"then run again: {timewheel_command('relay', 'abort', file)}"
        )
    if dead:
        print_line(f"see why there are dead letters: {timewheel_command('dead-letters', 'list', file)}")
    if not senders and not others:
        print_line(f"remove the empty topics: {timewheel_command('topics', 'ensure', file, '--remove-drained')}")
    return not senders and not dead and all(topic.is_followed for topic in others)


def _check_native(plan: Plan, file: str) -> None:
    if plan.intake:
        way_out = timewheel_command("shadow", "abort", file)
        raise PlanError("intake", plan.intake, f"false here; the way out of a shadow is {way_out}").in_file(file)
    if not isinstance(plan.scheme, Native):
        raise PlanError(
            "scheme",
            type(plan.scheme).__name__.lower(),
            "native to leave: write [native] in place of that table, run timewheel topics ensure PLAN "
            "--ignore-former-topics, restart the services with it, then run this again",
        ).in_file(file)


def _check_topics(admin: AdminClient, plan: Plan, now_ms: int, file: str) -> None:
    """Verify, before any timer moves, that the broker would accept all timers that come back."""
    from timewheel.provision.provisioning import ensure

    report = ensure(admin, plan, now_ms=now_ms, dry_run=True, ignore_former_topics=True, target=file)
    for finding in report.errors:
        raise TopologyError(finding.where, finding.problem, finding.remedy)
    if report.steps:
        step = report.steps[0]
        remedy = f"run: {timewheel_command('topics', 'ensure', file, '--ignore-former-topics')}"
        raise TopologyError(step.topic, f"is not as the native plan needs it ({step})", remedy)


def _why_stalled(admin: AdminClient, plan: Plan, former: Iterable[FormerTopic], relay: Relay) -> str:
    """Return why a holding topic does not become empty: other clients, or the broker; empty: no reason can be seen."""
    from timewheel.broker.admin.policies import DELAYED_DELIVERY
    from timewheel.provision.foreign_settings import set_delayed_delivery

    topics = [topic for topic in former if topic.holding is not None and topic.backlog]
    senders = [topic for topic in topics if topic.producers]
    if senders:
        return f"producers of an earlier plan still send to {_named(senders)}; restart them with this plan"
    readers = {other for topic in topics for other in topic.relays} - {relay.relay_id}
    if readers:
        return f"other relays read there too ({', '.join(sorted(readers))}); restart those that run an earlier plan"
    delays = admin.topic_policies.get(plan.due_topic, DELAYED_DELIVERY, applied=True)
    if delays is not None and delays.max_delay_ms > 0:
        return (
            f"the broker takes delays up to {format_duration(delays.max_delay_ms)} in {plan.due_topic}, and refuses a "
            f"timer that is due later; {set_delayed_delivery(plan.due_topic, delays)}"
        )
    return next((part.reason for part in relay.status().partitions if part.reason is not None), "")


def _named(topics: Iterable[FormerTopic]) -> str:
    return ", ".join(topic.name for topic in topics)
