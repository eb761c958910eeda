"""`timewheel status`: shows a plan's timers by due time and place, late timers, and the topics of each relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.options import ALARM, ATTENTION, FAILED, PlanFile, at, entries_wait
from timewheel.cli.terminal import progress_bar, render, say, show_line, show_rows
from timewheel.cli.timer import known_cancellations
from timewheel.core.durations import parse_duration, span
from timewheel.core.escapes import admin_options, timewheel_command
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from timewheel.inspect.status import Amount, Status, TopicStatus

FIRST_STRETCHES = 4
"""Overdue, next minute, hour and day: columns of the topics' table; all later days are a single column."""


def status(
    plan_file: PlanFile,
    *,
    samples: Annotated[
        int, Option(min=1, max=1_000_000, help="Entries to sample; a sample of all entries is exact.")
    ] = 2_000,
    seed: Annotated[int, Option(help="Seed of the sample.")] = 0,
    heads: Annotated[bool, Option("--heads", help="Show the head of every partition.")] = False,
    fail_late: Annotated[str | None, Option(help="A time such as 1m: see exit status.", show_default=False)] = None,
    cluster: ConnectionOptions,
    as_json: Annotated[bool, Option("--json", help="Print one line of JSON instead of tables.")] = False,
) -> None:
    """Show timers by due time and place, relay lag, heads, and each relay's partitions. Nothing is consumed or changed.

    Exit status 1 if topics of the plan do not exist; 4 if timers wait in the intake or the journal and no relay is
    connected to it. With --fail-late also: 3 if the head of a partition is later than the given time; 4 if in addition
    no relay is connected to this partition; 1 if not all topics could be seen.
    """
    from timewheel.inspect.status import status_of
    from timewheel.inspect.status.places import status_facts

    plan = Plan.load(plan_file)
    limit_ms = None if fail_late is None else parse_duration(fail_late)
    access = cluster.access()
    cancellations = known_cancellations(plan, access)
    with access.admin() as admin, progress_bar("looking at entries") as on_progress:
        is_cancelled = None if cancellations is None else cancellations.is_cancelled
        found = status_of(admin, plan, reads=samples, seed=seed, is_cancelled=is_cancelled, on_progress=on_progress)
    code = _exit_status(found, limit_ms)

    def show(console: Console) -> None:
        _show(console, found, str(plan_file), limit_ms or 0, code=code, heads=heads)
        if code in (ATTENTION, ALARM):
            doctor = timewheel_command("doctor", str(plan_file), *admin_options(cluster.words))
            show_line(console, f"What is wrong, with its cure: {doctor}")

    render(status_facts(found), show, as_json=as_json)
    raise typer.Exit(code)


def _exit_status(found: Status, limit_ms: int | None) -> int:
    unattended = found.unattended(limit_ms or 0)
    if any(one.is_entrance or limit_ms is not None for one in unattended):
        return ALARM
    if limit_ms is None:
        return FAILED if found.missing else 0
    if found.late(limit_ms):
        return ATTENTION
    return FAILED if found.unseen or found.missing else 0


def _show(console: Console, found: Status, plan_file: str, limit_ms: int, *, code: int, heads: bool) -> None:
    style = "red" if code or found.unattended(limit_ms) else ""
    say(console, f"{at(found.at_ms)}: {_verdict(found, plan_file, limit_ms)}", style=style)
    rows = tuple(_due_rows(found))
    if rows:
        show_rows(console, "Timers by due time", ("due", "timers"), rows)
    topics = [one for one in found.topics() if one.entries]
    if topics:
        names = [bucket.name for bucket in found.horizon.buckets[:FIRST_STRETCHES]]
        header = ("topic", "kind", "timers", *names, "later", "head late", "connected")
        show_rows(console, "By topic", header, map(_row, topics))
    if heads:
        _show_heads(console, found)
    for text in _notes(found, plan_file):
        say(console, text)


def _due_rows(found: Status) -> Iterator[tuple[str, str]]:
    """Yield a row per stretch; stretches whose figure may be 0 share a row: in a plan of 60 days these are most."""
    from timewheel.inspect.status.places import summed

    small: list[Amount] = []
    for bucket, amount in zip(found.horizon.buckets, found.by_stretch(), strict=True):
        if amount.count > amount.error:
            yield bucket.name, amount.text
        elif amount.error:
            small.append(amount)
    others = summed(small)
    if round(others.count):
        yield f"in {counted(len(small), 'other')}", others.text


def _row(one: TopicStatus) -> tuple[str, ...]:
    from timewheel.inspect.status.places import summed

    first, later = one.by_stretch[:FIRST_STRETCHES], summed(one.by_stretch[FIRST_STRETCHES:])
    return (
        one.topic.rpartition("/")[2],
        one.kind,
        one.timers.text,
        *(amount.text for amount in first),
        later.text,
        span(one.late_ms) if one.late_ms else "-",
        f"{one.consumers}",
    )


def _show_heads(console: Console, found: Status) -> None:
    rows = []
    for place in found.places:
        head = place.head
        leaves = "-" if head is None else at(head.leaves_ms)
        due = "-" if head is None else at(head.due_ms)
        position = "-" if head is None else head.position.text
        held_by = ", ".join(one.name for one in place.consumers if one.is_active) or "nobody"
        rows.append((place.topic.rpartition("/")[2], f"{place.entries:,}", position, leaves, due, held_by))
    header = ("partition", "entries", "head", "leaves", "due", "read by")
    show_rows(console, "Heads", header, rows)


def _verdict(found: Status, plan_file: str, limit_ms: int) -> str:
    from timewheel.inspect.status.places import summed

    entries = counted(found.former_entries, "entry waits", "entries wait")
    former = f"{entries} in topics of earlier plans" if found.former else ""
    if found.missing and not found.places:
        nothing = "no topic of the plan can be seen"
        return f"{nothing}, and {former}." if former else f"nothing can wait: {nothing}."
    waiting = found.timers.counted("timer waits", "timers wait")
    overdue = found.by_stretch()[0]
    if overdue.count:
        waiting += f", {overdue.counted('of them is', 'of them are')} overdue"
    if found.cancelled is not None and (found.cancelled.count or found.cancelled.error):
        waiting += f", {found.cancelled.counted('is', 'are')} cancelled and will not be handed out"
    if former:
        waiting += f", {former}"
    if found.missing:
        waiting += f", and {counted(len(found.missing), 'topic', 'topics')} of the plan missing"
    unattended = found.unattended(limit_ms)
    entrances = [one for one in unattended if one.is_entrance]
    if entrances:
        timers = summed(one.timers for one in entrances).text
        places = " and the ".join(dict.fromkeys(one.kind for one in entrances))
        run = timewheel_command("shadow", "run", plan_file)
        return f"{waiting}. {timers} of them wait in the {places}, which no relay reads: {run}"
    if any(place.begins_anew for place in unattended):
        late = f"heads should have left {span(found.relay_late_ms)} ago"
        return f"{waiting}. A relay keeps restarting, or has just ended, where {late}: see its log."
    if unattended:
        others = f"; see the log of {', '.join(found.relays())}, which reads other partitions" if found.relays() else ""
        return f"{waiting}. No relay is connected where heads should have left {span(found.relay_late_ms)} ago{others}."
    return f"{waiting}; {_lateness(found, limit_ms)}."


def _lateness(found: Status, limit_ms: int) -> str:
    late = found.late(limit_ms)
    clauses = [f"relays are {span(found.relay_late_ms)} behind"] if any(one.is_held for one in late) else []
    due = [(one.head.late_ms, one.topic) for one in late if one.head is not None and not one.is_held]
    if due:
        late_ms, topic = max(due)
        clauses.append(f"the first timer in {topic.rpartition('/')[2]} is {span(late_ms)} late")
    if clauses:
        return " and ".join(clauses)
    nothing = f"nothing is later than {span(limit_ms)}" if limit_ms else "nothing is late"
    # A ring's slots have a relay only while they are swept, so an idle plan is no finding.
    is_idle = found.plan.needs_relay and not found.relays()
    return f"{nothing}, and no relay is connected to a holding topic now" if is_idle else nothing


def _notes(found: Status, plan_file: str) -> Iterator[str]:
    from timewheel.provision.former_topics import findings_of

    if found.plan.needs_relay:
        for name, places in found.relays().items():
            timers = sum(place.timers.count for place in places)
            has = f"{counted(len(places), 'partition')} with about {counted(round(timers), 'timer')}"
            yield f"Relay {name} has {has}."
    for former in findings_of(found.plan, found.former):
        yield f"{former.subject}: {former.read}."
    if found.dead_letters:
        yield entries_wait(found.dead_letters, "dead letters", timewheel_command("dead-letters", "list", plan_file))
    if found.parked:
        yield entries_wait(found.parked, "parked timers", timewheel_command("parked", "list", plan_file))
    exact = not any(place.timers.error for place in found.places)
    yield f"{counted(found.read, 'entry was', 'entries were')} looked at: " + (
        "all of them, so all figures are exact." if exact else "errors are at 95 %."
    )
    for name in found.missing:
        yield f"Missing: {name} ({timewheel_command('topics', 'ensure', plan_file)} creates it)."
    for one in found.unseen:
        yield f"Not seen: {one.what} ({one.reason})"
