"""`timewheel timer`: shows, cancels or reschedules a timer by hand."""

from __future__ import annotations

import datetime as dt
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.cancellations import cancellation_text, reading
from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.moments import at, moment_ms
from timewheel.cli.options import AsJson, PlanFile, command_group, with_options
from timewheel.cli.terminal import render, say, terminal
from timewheel.cli.whereis import SearchOptions, exit_status, show_whereabouts
from timewheel.core.durations import parse_duration
from timewheel.core.plan import Plan

if TYPE_CHECKING:
    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.cancellations import Cancellation, CancelResult
    from timewheel.dead_letters import DeadLetter

TimerId = Annotated[str, typer.Argument(metavar="ID", help="The timer's id.", show_default=False)]

timer = command_group("timer", "Show, cancel or reschedule a timer.")


@timer.command()
@with_options
def cancel(
    plan_file: PlanFile,
    timer_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Timer ids.", show_default=False)
    ] = None,
    *,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="All timers of this group so far; may be given again.")
    ] = None,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Cancel timers by their ids, or all timers of a group sent so far. Timers that were not delivered yet will not be
    delivered.

    The command does not check whether a timer exists, or when it is due, and so promises nothing more.
    """
    from timewheel.producers import DelayedProducer

    if not timer_ids and not groups:
        raise typer.BadParameter("name timer ids, or --group", param_hint="ID")
    plan = Plan.load(plan_file)
    access = cluster.access()
    with (
        access.client(plan.due_topic, operation_timeout_seconds=20) as client,
        DelayedProducer(client, plan) as producer,
    ):
        cancels = [partial(producer.cancel, timer_id) for timer_id in timer_ids or ()]
        cancels += [partial(producer.cancel_group, group) for group in groups or ()]
        done: list[CancelResult] = []
        try:
            for cancel_one in cancels:
                done.append(cancel_one())
                if not as_json:
                    _say_cancelled(done[-1])
        finally:
            # Also after a failure: cancellations that were stored before it are in effect.
            if as_json:
                print(json.dumps([_facts(one) for one in done]))


def _say_cancelled(one: CancelResult) -> None:
    kind, name, _, forget_ms = one.cancellation
    what = name if kind == "timer" else f"group {name}"
    said = f"{what}  timers not delivered yet will not be delivered; remembered until {at(forget_ms)}"
    say(terminal(), said)


@timer.command()
@with_options
def reschedule(
    plan_file: PlanFile,
    timer_id: TimerId,
    *,
    content: Annotated[
        Path,
        typer.Option("--content", help="The payload: a file, or - for standard input.", show_default=False),
    ],
    after: Annotated[
        str | None, typer.Option("--after", help="Delay from now, such as 2h.", show_default=False)
    ] = None,
    moment: Annotated[
        str | None, typer.Option("--at", help="Due time: ISO 8601 or milliseconds.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The timer's partition key, as before.", show_default=False)
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="A property, NAME=VALUE; may be given again.", show_default=False),
    ] = None,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Reschedule a timer: send it under its id for another time; earlier sends under this id are cancelled.

    The content is required and is sent as plain bytes: the command cannot read the old content, which may have any
    form.
    """
    import sys

    from timewheel.producers import DelayedProducer

    if (after is None) == (moment is None):
        raise typer.BadParameter("give either --after or --at", param_hint="--after")
    pairs = [text.partition("=") for text in properties or ()]
    if not all(name and sign for name, sign, _ in pairs):
        raise typer.BadParameter("NAME=VALUE", param_hint="--property")
    payload = sys.stdin.buffer.read() if str(content) == "-" else _read(content)
    due_ms = moment_ms(moment, "--at")
    plan = Plan.load(plan_file)
    access = cluster.access()
    with (
        access.client(plan.due_topic, operation_timeout_seconds=20) as client,
        DelayedProducer(client, plan) as producer,
    ):
        found = producer.send(
            payload,
            deliver_at=due_ms,
            deliver_after=None if after is None else dt.timedelta(milliseconds=parse_duration(after)),
            timer_id=timer_id,
            partition_key=key,
            properties={name: value for name, _, value in pairs},
            replace=True,
        )
    text = f"{found.id}  due {at(found.due_ms)}; earlier timers under this id are cancelled"
    render({"timer": found.id, "due_ms": found.due_ms, "generation": found.generation}, text, as_json=as_json)


@timer.command()
@with_options
def show(
    plan_file: PlanFile,
    timer_id: TimerId,
    *,
    search: SearchOptions,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Show all that is known about a timer: whether its id is cancelled, whether it is parked, and where it is.

    To locate the timer, like `timewheel whereis`, the command needs its time of sending or its due time. Exit status:
    that of `timewheel whereis`; 0 if the timer is not located.
    """
    from rich.console import Console

    from timewheel.inspect.errors import SendTimeUnknown
    from timewheel.inspect.whereis import whereis as find
    from timewheel.inspect.whereis.search import whereabouts_facts

    plan = Plan.load(plan_file)
    access = cluster.access()
    table = None
    if plan.cancel is not None:
        with reading(plan, access) as (log, _):
            table = log.table
    with access.admin() as admin:
        parked = _parked(admin, plan, timer_id)
        try:
            wanted = search.wanted(timer_id)
        except SendTimeUnknown:
            there = None
        else:
            there = find(admin, plan, wanted, max_reads=search.max_reads, cancellations=table)
    by_id = None if table is None else table.of_timer(timer_id)
    # Cancelled also by its group, which only its envelope names.
    cancellation = by_id if there is None else there.cancellation
    status = 0 if there is None or parked else exit_status(there)
    cancelled = None if cancellation is None else {"cut": cancellation.cut, "forget_ms": cancellation.forget_ms}
    facts = {
        "timer": timer_id,
        "cancellation": cancelled,
        "parked": [{"subscription": name, "reason": one.reason} for name, one in parked],
        "whereis": None if there is None else whereabouts_facts(there),
    }

    def print_all(console: Console) -> None:
        if plan.cancel is not None:
            say(console, f"{timer_id}: {_describe(cancellation, is_seen=there is not None and bool(there.sightings))}")
        for name, dead_letter in parked:
            say(console, f"{timer_id}: parked by {name} since {at(dead_letter.since_ms)}: {dead_letter.reason}")
        if there is None:
            say(console, "To locate the timer, give --due or --sent-at: its id does not contain the time of sending.")
        else:
            show_whereabouts(console, there, str(plan_file))

    render(facts, print_all, as_json=as_json)
    raise typer.Exit(status)


def _describe(cancellation: Cancellation | None, *, is_seen: bool) -> str:
    if cancellation is None:
        return "not cancelled" if is_seen else "not cancelled under this id; its group is not known"
    return f"cancelled: {cancellation_text(cancellation)}"


def _parked(admin: AdminClient, plan: Plan, timer_id: str) -> list[tuple[str, DeadLetter]]:
    from timewheel.dead_letters import DeadLetterFilter, dead_letters, parked_box

    if not plan.keeps_back:
        return []
    wish = DeadLetterFilter(timer_ids=frozenset({timer_id}))
    return [
        (name, one)
        for name in plan.subscriptions
        for one in dead_letters(admin, parked_box(plan, name), wish).dead_letters
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--content") from None


def _facts(one: CancelResult) -> dict[str, Any]:
    return {
        one.cancellation.kind: one.cancellation.name,
        "answer": one.answer.value,
        "confirmed_ms": one.confirmed_ms,
        "cut": one.cancellation.cut,
        "forget_ms": one.cancellation.forget_ms,
    }
