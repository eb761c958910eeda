"""`timewheel whereis`, `timer`, `cancellations`: locate, cancel and reschedule timers; list cancellations."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.options import (
    ALARM,
    ATTENTION,
    FAILED,
    AsJson,
    PlanFile,
    at,
    command_group,
    keep_plan_file,
    moment_ms,
    precision_ms,
)
from timewheel.cli.terminal import render, say, show_rows, terminal
from timewheel.core.clock import SystemClock
from timewheel.core.durations import parse_duration, span
from timewheel.core.errors import CancelRefused, TimewheelError, TopologyError
from timewheel.core.escapes import with_plan_file
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.cli.connecting import Access
    from timewheel.client.cancellation_log import CancellationLog
    from timewheel.core.cancellations import Cancellation, CancellationTable, CancelResult
    from timewheel.dead_letters import DeadLetter
    from timewheel.inspect.whereis import Wanted, Whereabouts

READ_TIMEOUT_MS = 120_000
ASIDE_TIMEOUT_MS = 30_000  # read timeout of a command whose result does not depend on the log
DEFAULT_LIMIT = 100

cancellations = command_group("cancellations", "List cancellations; compact their log.")


@cancellations.command("list")
def list_(
    plan_file: PlanFile,
    names: Annotated[
        list[str] | None, Argument(metavar="[NAME]...", help="Only these ids or groups.", show_default=False)
    ] = None,
    *,
    most: Annotated[
        int, Option("--limit", min=1, help="Number of cancellations to show, the newest first.")
    ] = DEFAULT_LIMIT,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """List the cancellations in effect: until when timers of an id or a group are cancelled. Changes nothing."""
    access = cluster.access()
    with reading(Plan.load(plan_file), access) as (log, _):
        wanted = set(names or ())
        live = [one for one in log.table.live() if not wanted or one.name in wanted]
    live.sort(key=lambda one: one.cut, reverse=True)
    shown = live[:most]

    def show(console: Console) -> None:
        if shown:
            rows = tuple((one.name, one.kind, at(one.cut // 1_000), at(one.forget_ms)) for one in shown)
            header = ("name", "of a", "cancelled until", "remembered until")
            show_rows(console, log.topic, header, rows)
        say(console, f"{len(shown):,} of {counted(len(live), 'cancellation')} in effect shown.")

    facts = [{one.kind: one.name, "cut": one.cut, "forget_ms": one.forget_ms} for one in shown]
    render({"live": len(live), "cancellations": facts}, show, as_json=as_json)


@cancellations.command()
def compact(plan_file: PlanFile, *, cluster: ConnectionOptions, as_json: AsJson = False) -> None:
    """Compact the log of cancellations: rewrite the cancellations in effect in packs, and let the broker remove all
    earlier entries.

    Relays do this by themselves when it is worthwhile. Exit status 1 if another process is compacting the log now, or
    if the log cannot be read.
    """
    from timewheel.relay.compactor import compact as pack

    access = cluster.access()
    with reading(Plan.load(plan_file), access) as (log, client):
        live = pack(client, log)
    written = counted(live or 0, "cancellation in effect was", "cancellations in effect were")
    if live is not None or as_json:
        render({"live": live}, f"{written} written in packs to {log.topic}", as_json=as_json)
    else:
        why = "another process is compacting it, or it could not be read to its end"
        say(terminal(to_stderr=True), f"{log.topic} was not compacted: {why}.")
    raise typer.Exit(FAILED if live is None else 0)


def known_cancellations(plan: Plan, access: Access) -> CancellationTable | None:
    """What is cancelled, for a command that has more to tell; None: nothing can be, or it is told why nobody knows."""
    import pulsar

    if plan.cancel is None:
        return None
    try:
        with reading(plan, access, timeout_ms=ASIDE_TIMEOUT_MS, connecting_s=5) as (log, _):
            return log.table
    except (TimewheelError, pulsar.PulsarException) as error:
        say(terminal(to_stderr=True), f"Not seen: the log of cancellations ({error})")
        return None


def cancellation_text(cancellation: Cancellation) -> str:
    """Describe the effect of a cancellation in a few words."""
    by = "under this id" if cancellation.kind == "timer" else f"with the group {cancellation.name}"
    cut, until = at(cancellation.cut // 1_000), at(cancellation.forget_ms)
    return f"timers sent {by} before {cut} are not delivered; remembered until {until}"


@contextmanager
def reading(
    plan: Plan, access: Access, *, timeout_ms: int = READ_TIMEOUT_MS, connecting_s: int = 20
) -> Iterator[tuple[CancellationLog, Any]]:
    """Open the log of a plan, read it to its end, and yield the log and the client."""
    from timewheel.cli.connecting import warn
    from timewheel.client.cancellation_log import CancellationLog
    from timewheel.client.hooks import Hooks

    if plan.cancel is None:
        raise CancelRefused(plan.due_topic, "the plan has no [cancel], and so no log of cancellations")
    with access.client(plan.due_topic, operation_timeout_seconds=connecting_s) as client:
        log = CancellationLog(client, plan, SystemClock(), Hooks((warn,)))
        log.start()
        try:
            if not log.await_answer(log.ask(), timeout_ms):
                raise TopologyError(log.topic, "could not be read to its end", "see the broker's log, and try again")
            yield log, client
        finally:
            log.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a command that locates a timer: a group for `timewheel.cli.options.with_options`."""

    sent_at: Annotated[
        str | None,
        Option(
            help="Time of sending: ISO 8601 or milliseconds. Generated ids contain it; other ids need it, or --due."
        ),
    ] = None
    within: Annotated[str, Option(help="Largest error of --sent-at.")] = "1s"
    due: Annotated[
        str | None,
        Option(
            help="Due time: to the millisecond, a single route is searched; 2026-11-23T08:00Z is any time of that "
            "minute. With an id of your own and without --sent-at, all stored entries are read."
        ),
    ] = None
    key: Annotated[str | None, Option(help="The timer's partition key: only its partition is searched.")] = None
    max_reads: Annotated[int, Option(min=1, help="Most entries to read.")] = 500

    def wanted(self, timer_id: str) -> Wanted:
        """Return the description of a timer; a time that is not to the millisecond is a span."""
        from timewheel.inspect.whereis import Wanted

        return Wanted.of(
            timer_id,
            sent_ms=moment_ms(self.sent_at, "--sent-at"),
            within_ms=max(parse_duration(self.within), precision_ms(self.sent_at)),
            due_ms=moment_ms(self.due, "--due"),
            due_within_ms=precision_ms(self.due) - 1,
            key=self.key,
        )


def whereis(
    plan_file: Annotated[
        Path,
        Argument(
            metavar="PLAN", help="Plan file by which the timer was sent.", show_default=False, callback=keep_plan_file
        ),
    ],
    timer_ids: Annotated[list[str], Argument(metavar="ID...", help="Timer ids.", show_default=False)],
    *,
    search: SearchOptions,
    cluster: ConnectionOptions,
    as_json: Annotated[bool, Option("--json", help="Print a line of JSON for each timer.")] = False,
) -> None:
    """Locate a timer: held, due, to be retried, parked, handled, cancelled or dead, with its past and future hops.
    Nothing is consumed or changed.

    The timer's route is computed from the plan, and only the places on it are searched. If the plan has [cancel], the
    log of cancellations is read first, by the service URL. Exit status: 0 found, parked, handled or cancelled; 3 it is
    a dead letter; 4 not found; 1 not found, and not all places could be searched.
    """
    from timewheel.inspect.whereis import whereis as find
    from timewheel.inspect.whereis.search import whereabouts_facts

    plan = Plan.load(plan_file)
    wanted = [search.wanted(timer_id) for timer_id in timer_ids]
    status = 0
    access = cluster.access()
    cancellations = known_cancellations(plan, access)
    with access.admin() as admin:
        for one in wanted:
            found = find(admin, plan, one, max_reads=search.max_reads, cancellations=cancellations)
            status = max(status, exit_status(found))
            show = partial(show_whereabouts, found=found, plan_file=str(plan_file))
            render(whereabouts_facts(found), show, as_json=as_json)
    raise typer.Exit(status)


def exit_status(found: Whereabouts) -> int:
    """Return the exit status of a command that looked for a timer."""
    from timewheel.inspect.whereis import State

    if found.state is State.DEAD:
        return ATTENTION
    if found.state is State.NOT_FOUND:
        return FAILED if found.unseen else ALARM
    return 0


def show_whereabouts(console: Console, found: Whereabouts, plan_file: str) -> None:
    """Print all that is known of a timer's place; the plan's file is named as the user typed it."""
    say(console, f"{found.wanted.timer_id}: {with_plan_file(_verdict(found), plan_file)}", style="bold")
    for name, text in _lines(found):
        say(console, f"{name:9}{text}", indent=2)


def _verdict(found: Whereabouts) -> str:
    from timewheel.inspect.whereis import State

    match found.state:
        case State.CANCELLED if not found.sightings:
            return "cancelled: no copy is stored any more; handled only if the cancellation came too late"
        case State.CANCELLED:
            return "cancelled: the copies that are still stored are not delivered"
        case State.HANDLED:
            return _acknowledged(found)
        case State.REMOVED:
            return "handled, if it was ever sent: no entry of its due time is stored any more"
        case State.NOT_FOUND:
            return "not found, and not all places could be searched" if found.unseen else "not found"
        case _:
            return _place(found)


def _acknowledged(found: Whereabouts) -> str:
    if found.cancellation is not None:
        return "every subscription has acknowledged it: cancelled, and handled only if the cancellation came too late"
    if found.reason:
        return "acknowledged in the due topic by every subscription"
    return "handled: every subscription has acknowledged it"


def _place(found: Whereabouts) -> str:
    from timewheel.inspect.whereis import State

    here, left = found.here, "" if found.due_ms is None else _from_now(found.due_ms - found.at_ms)
    assert here is not None, "each of these states is one of a copy that was seen"
    match found.state:
        case State.HELD:
            return f"held in {here.topic}, due {left}"
        case State.DUE:
            rest = f", already handled by {', '.join(here.done_by)}" if here.done_by else ""
            return f"in {here.topic} for {', '.join(here.waits_for)}, due {left}{rest}"
        case State.RETRYING:
            return f"not handled: {here.waits_for[0]} tries it again, from {here.topic}, due {left}"
        case State.PARKED:
            return f"not handled: parked in {here.topic}, see `timewheel parked list PLAN`"
        case _:
            done = "" if here.waits_for else ", and was replayed or dropped from there"
            return f"dead: it is in {here.topic}{done}"


def _from_now(left_ms: int) -> str:
    return f"in {span(left_ms)}" if left_ms >= 0 else f"{span(-left_ms)} ago"


def _lines(found: Whereabouts) -> Iterator[tuple[str, str]]:
    sent = found.wanted.sent
    if found.wanted.knows_sent:
        is_exact = sent.first_ms == sent.last_ms
        yield "sent", at(sent.first_ms) if is_exact else f"{at(sent.first_ms)} to {at(sent.last_ms)}"
    due_ms, within_ms = found.wanted.due_ms, found.wanted.due_within_ms
    if found.due_ms is not None:
        yield "due", at(found.due_ms)
    elif due_ms is not None:
        yield "due", f"{at(due_ms)} to {at(due_ms + within_ms)}"
    if found.reason:
        yield "reason", found.reason
    if found.cancellation is not None:
        yield "cancel", cancellation_text(found.cancellation)
    for one in found.sightings:
        yield "seen", f"{one.topic} {one.position.text}, hop {one.envelope.hops}"
    for stop in found.way:
        is_there = stop.entered.first_ms <= found.at_ms
        passed = "was in" if stop.leaves_ms <= found.at_ms else "is in" if is_there else "goes to"
        yield "way", f"{at(stop.entered.first_ms)} {passed} {stop.topic}"
    yield from _search_lines(found)


def _search_lines(found: Whereabouts) -> Iterator[tuple[str, str]]:
    if found.here is None:
        reads_at: Counter[tuple[str, int]] = Counter()  # a place may be looked at again, for its neighbours
        for searched in found.searched:
            reads_at[searched.topic, searched.entered_ms] += searched.reads
        for (topic, entered_ms), reads in reads_at.items():
            about = f" about {at(entered_ms)}" if entered_ms else ""
            yield "searched", f"{topic}{about}: {counted(reads, 'entry', 'entries')}"
    for unseen in found.unseen:
        if unseen.reason != found.reason:  # or else it stands above: the search was given up
            yield "not seen", f"{unseen.what}: {unseen.reason}"
    read, seeks = counted(found.cost.reads, "entry", "entries"), counted(found.cost.seeks, "search", "searches")
    yield "cost", f"{read} read, {seeks} by the broker, {counted(found.cost.partitions, 'partition')}"


TimerId = Annotated[str, Argument(metavar="ID", help="The timer's id.", show_default=False)]

timer = command_group("timer", "Show, cancel or reschedule a timer.")


@timer.command()
def cancel(
    plan_file: PlanFile,
    timer_ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Timer ids.", show_default=False)] = None,
    *,
    groups: Annotated[
        list[str] | None, Option("--group", help="All timers of this group so far; may be given again.")
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
                    kind, name, _, forget_ms = done[-1].cancellation
                    what = name if kind == "timer" else f"group {name}"
                    until = at(forget_ms)
                    say(terminal(), f"{what}  timers not delivered yet will not be delivered; remembered until {until}")
        finally:
            # Also after a failure: cancellations that were stored before it are in effect.
            if as_json:
                print(json.dumps([_cancel_facts(one) for one in done]))


@timer.command()
def reschedule(
    plan_file: PlanFile,
    timer_id: TimerId,
    *,
    content: Annotated[Path, Option(help="The payload: a file, or - for standard input.", show_default=False)],
    after: Annotated[str | None, Option(help="Delay from now, such as 2h.", show_default=False)] = None,
    moment: Annotated[
        str | None, Option("--at", help="Due time: ISO 8601 or milliseconds.", show_default=False)
    ] = None,
    key: Annotated[str | None, Option(help="The timer's partition key, as before.", show_default=False)] = None,
    properties: Annotated[
        list[str] | None, Option("--property", help="A property, NAME=VALUE; may be given again.", show_default=False)
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
    try:
        payload = sys.stdin.buffer.read() if str(content) == "-" else content.read_bytes()
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--content") from None
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


def _cancel_facts(one: CancelResult) -> dict[str, Any]:
    return {
        one.cancellation.kind: one.cancellation.name,
        "answer": one.answer.value,
        "confirmed_ms": one.confirmed_ms,
        "cut": one.cancellation.cut,
        "forget_ms": one.cancellation.forget_ms,
    }
