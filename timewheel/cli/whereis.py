"""`timewheel whereis`: locates a timer, with its past and future hops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.cancellations import cancellation_text, known_cancellations
from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.moments import at, moment_ms, precision_ms
from timewheel.cli.options import ALARM, ATTENTION, FAILED, keep_plan_file, with_options
from timewheel.cli.terminal import render, say
from timewheel.core.durations import parse_duration, span
from timewheel.core.escapes import with_plan_file
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from timewheel.inspect.whereis import Wanted, Whereabouts


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a command that locates a timer: a group for `timewheel.cli.options.with_options`."""

    sent_at: Annotated[
        str | None,
        typer.Option(
            "--sent-at",
            help="Time of sending: ISO 8601 or milliseconds. Generated ids contain it; other ids need it, or --due.",
        ),
    ] = None
    within: Annotated[str, typer.Option("--within", help="Largest error of --sent-at.")] = "1s"
    due: Annotated[
        str | None,
        typer.Option(
            "--due",
            help="Due time: to the millisecond, a single route is searched; 2026-11-23T08:00Z is any time of that "
            "minute. With an id of your own and without --sent-at, all stored entries are read.",
        ),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", help="The timer's partition key: only its partition is searched.")
    ] = None
    max_reads: Annotated[int, typer.Option("--max-reads", min=1, help="Most entries to read.")] = 500

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


@with_options
def whereis(
    plan_file: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="Plan file by which the timer was sent.", show_default=False, callback=keep_plan_file
        ),
    ],
    timer_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Timer ids.", show_default=False)],
    *,
    search: SearchOptions,
    cluster: ConnectionOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each timer.")] = False,
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
        passed = (
            "was in"
            if stop.leaves_ms <= found.at_ms
            else "is in"
            if stop.entered.first_ms <= found.at_ms
            else ("goes to")
        )
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
