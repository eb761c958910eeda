"""`timewheel shadow status`: shows the work and progress of a shadow, and problems that need attention."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.moments import at
from timewheel.cli.options import (
    ATTENTION,
    FAILED,
    AsJson,
    PlanFile,
    entries_wait,
    every_ms_of,
    type_words,
    with_options,
)
from timewheel.cli.shadow_common import unseen_is_an_exit
from timewheel.cli.terminal import render, say, show_line, show_rows
from timewheel.core.clock import pause
from timewheel.core.durations import span
from timewheel.core.escapes import timewheel_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from timewheel.inspect.status import Amount
    from timewheel.shadow.overview import PartitionOverview, Queue, ShadowOverview


@with_options
def status(
    plan_file: PlanFile,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", help="With --watch: interval between snapshots.")] = "10s",
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Show a shadow: its state, its moving processes, lag, gaps, waiting entries and entries not moved. Nothing is
    changed.

    Exit status: 3 if there are problems that need attention; 1 if not all topics could be seen.
    """
    from timewheel.cli.shadow_common import need_shadow, plan_with_intake
    from timewheel.shadow.overview import overview_facts, overview_of

    every_ms = every_ms_of(every)
    plan = plan_with_intake(plan_file)
    access = cluster.access()
    with unseen_is_an_exit(), access.admin() as admin:
        need_shadow(admin, plan, plan_file)
        while True:
            dialer = access.dialer(access.service_url_of(plan.due_topic, admin))
            found = overview_of(admin, dialer, plan, target=str(plan_file), reached_by=cluster.words)
            render(overview_facts(found), partial(show_overview, found=found), as_json=as_json)
            if not watch:
                break
            try:
                pause(admin.clock, every_ms)
            except KeyboardInterrupt:
                break
    if found.warnings:
        raise typer.Exit(ATTENTION)
    if found.unread:
        raise typer.Exit(FAILED)


def show_overview(console: Console, found: ShadowOverview) -> None:
    """Print the whole status, problems first."""
    since = f" since {at(found.desired.since_ms)}" if found.desired.since_ms else ""
    say(console, f"{found.plan.due_topic}: {found.desired.state.value}{since}; looked at {at(found.at_ms)}")
    for warning in found.warnings:
        show_line(console, warning, style="bold red")
    columns = ("partition", "", "lag p50", "lag p99", "intake", "to move on", "journal", "not moved")
    rows = tuple(_row(part) for part in found.parts)
    caption = "By partition; intake and journal in entries, each of one or many timers"
    show_rows(console, caption, columns, rows)
    cursors = tuple(
        (
            f"{part.topic.rpartition('/')[2]} {one.name}",
            type_words(one.type),
            f"{one.pending:,}",
            f"{one.gaps:,}",
            f"{one.delayed:,}",
            f"{one.stale_entries:,}",
        )
        for part in found.parts
        for one in part.subscriptions
    )
    caption = f"Subscriptions; the broker's gap limit is {found.gap_limit:,}"
    header = ("subscription", "type", "pending", "gaps", "delayed", "stale index entries, at least")
    show_rows(console, caption, header, cursors)
    for caption, held in (("Held", found.holding), ("Held by an earlier plan's topics", found.former)):
        if held:
            rows = tuple(_held_row(name, entries, found.timers.get(name)) for name, entries in held.items())
            show_rows(console, caption, ("topic", "entries", "timers"), rows)
    for text in _notes(found):
        say(console, text)


def _row(part: PartitionOverview) -> tuple[str, ...]:
    lag = part.lag
    return (
        part.topic.rpartition("/")[2],
        part.phase.value,
        "-" if lag is None else span(lag.p50_ms),
        "-" if lag is None else span(lag.p99_ms),
        _queue(part.intake),
        _queue(part.copies),
        _queue(part.journal),
        part.not_moved.text,
    )


def _held_row(name: str, entries: int, timers: Amount | None) -> tuple[str, str, str]:
    known = "not known, one or many in an entry" if timers is None else timers.text
    return (name.rpartition("/")[2], f"{entries:,}", known)


def _queue(queue: Queue) -> str:
    return f"{queue.entries:,}" + ("" if queue.oldest_ms is None else f", {span(queue.oldest_ms)} old")


def _notes(found: ShadowOverview) -> Iterator[str]:
    from timewheel.cli.shadow_common import decision_words, journal_words
    from timewheel.shadow.desired_state import State, moves

    kept = sum(part.journal.entries for part in found.parts)
    if found.desired.state is State.NATIVE and (kept or any(part.mover for part in found.parts)):
        words = {"kept": kept, "since_ms": found.desired.since_ms, "now_ms": found.at_ms}
        yield from journal_words(found.plan, found.target, **words, reached_by=found.reached_by)

    not_moved: Counter[str] = Counter()
    for part in found.parts:
        not_moved += Counter({"moved": part.left, **part.stays})
    about = "" if all(part.is_whole for part in found.parts) else "about "
    if not_moved:
        yield f"Not moved: {about}{decision_words(not_moved, moves=moves(found.desired.state))}."
    if about:
        sampled = sum(part.sampled for part in found.parts)
        all_of_them = timewheel_command("shadow", "verify", found.target, *found.reached_by)
        yield (
            f"Not moved in all: {found.not_moved.text} at 95 %, by {sampled:,} sampled entries; to read all: "
            f"{all_of_them}"
        )
    yield "Stale index entries are acknowledged entries that the broker still counts as delayed."
    if found.writes is not None:
        yield f"A recently moved timer is written {found.writes:.3g} times more: journal, holding topics, due topic."
    if found.dead_letters:
        letters = timewheel_command("dead-letters", "list", found.target, *found.asked_by)
        yield entries_wait(found.dead_letters, "dead letters", letters)
    for one in found.unread:
        yield f"Not seen: {one.subject} ({one.reason})"
