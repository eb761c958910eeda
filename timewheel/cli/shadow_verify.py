"""`timewheel shadow verify`: audits a shadow entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.moments import at
from timewheel.cli.options import ATTENTION, FAILED, AsJson, PlanFile, with_options
from timewheel.cli.shadow_common import unseen_is_an_exit
from timewheel.cli.terminal import progress_bar, render, say, show_line, show_rows
from timewheel.core.durations import span
from timewheel.core.escapes import timewheel_command
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from timewheel.shadow.machine.audit import Trouble
    from timewheel.shadow.verification import Verification


@with_options
def verify(
    plan_file: PlanFile,
    *,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Verify that each timer of a shadowed topic is in exactly one place: read all its entries and all copies in the
    journal.

    Nothing is consumed or changed, and clients and shadows may run meanwhile: a suspect entry is checked again. The
    command reads some 10,000 entries a second. Exit status: 3 if the audit does not balance or a partition makes no
    progress; 1 if not all entries could be seen.
    """
    from timewheel.cli.shadow_common import need_shadow, plan_with_intake
    from timewheel.shadow.verification import verification_facts
    from timewheel.shadow.verification import verify as inspect

    plan = plan_with_intake(plan_file)
    access = cluster.access()
    with unseen_is_an_exit(), access.admin() as admin, progress_bar("reading entries") as on_progress:
        need_shadow(admin, plan, plan_file)
        dialer = access.dialer(access.service_url_of(plan.due_topic, admin))
        found = inspect(admin, dialer, plan, on_progress=on_progress)

    def show(console: Console) -> None:
        show_audit(console, found, str(plan_file), reached_by=cluster.words)

    render(verification_facts(found), show, as_json=as_json)
    if not found.is_balanced:
        raise typer.Exit(ATTENTION)
    if found.missing or found.unread:
        raise typer.Exit(FAILED)


def show_audit(console: Console, found: Verification, plan_file: str, *, reached_by: Sequence[str] = ()) -> None:
    """Print the verdict, then the places of all entries, then the errors.

    Args:
        console: The terminal.
        found: The result.
        plan_file: The path as the user typed it.
        reached_by: Options by which a command reaches the cluster.
    """
    from timewheel.shadow.machine.audit import Place, Wrong
    from timewheel.shadow.verification import shown

    say(console, _verdict(found), style="bold green" if found.is_balanced else "bold red")
    for text in _notes(found, plan_file):
        say(console, text)
    header = ("partition", "entries", "acknowledged", "pending", "journal", *(place.value for place in Place))
    rows = [
        (
            part.topic.rpartition("/")[2],
            f"{part.entries:,}",
            f"{part.acked:,}",
            f"{sum(part.decisions.values()):,}",
            f"{part.journal:,}",
            *(f"{part.places[place]:,}" for place in Place),
        )
        for part in found.parts
    ]
    show_rows(console, "Entries, and where the journal's copies are", header, rows)
    wrong = [(part, one) for part in found.parts for one in shown(part)]
    if wrong:
        header = ("partition", "wrong", "original", "in the journal", "due")
        lines = [(part.topic.rpartition("/")[2], *_line(one)) for part, one in wrong]
        show_rows(console, "What is wrong", header, lines)
        for kind in Wrong:
            if found.wrong[kind]:
                say(console, f"{kind.value}: {_MEANS[kind.value]}")
    if not found.is_balanced:
        status = timewheel_command("shadow", "status", plan_file, *reached_by)
        show_line(console, f"Movers, relays and their problems: {status}")


_MEANS = {
    "lost": "due in the future, acknowledged in the topic, and in no other place",
    "double": "it would be handled twice: its original is pending and a copy is on its way, or two copies are",
    "unacked_originals": "its copy is stored, its original unacknowledged on a subscription: is a shadow running?",
    "left": "far from due and pending, and not moved: is a shadow running, by this plan? Its event "
    "shadow_stays_native names the reasons",
}


def _line(one: Trouble) -> tuple[str, ...]:
    places = ["-" if place is None else place.text for place in (one.original, one.copy)]
    return (one.wrong.value, *places, at(one.due_ms) if one.due_ms else "-")


def _verdict(found: Verification) -> str:
    copies = sum(part.journal for part in found.parts)
    if found.is_balanced:
        kept = counted(copies, "copy", "copies")
        return f"The audit balances: {kept} in the journal, each accounted for; nothing is lost or doubled."
    counts = [f"{count:,} {wrong.value}" for wrong, count in found.wrong.items() if count]
    if found.stuck:
        counts.append(counted(len(found.stuck), "partition makes no progress", "partitions make no progress"))
    return f"The audit does not balance: {', '.join(counts)}."


def _notes(found: Verification, plan_file: str) -> Iterator[str]:
    from timewheel.cli.shadow_common import decision_words
    from timewheel.shadow.desired_state import moves

    since = f" since {at(found.desired.since_ms)}" if found.desired.since_ms else ""
    times = "once" if found.looks == 1 else f"{found.looks} times"
    yield f"State: {found.desired.state.value}{since}; looked at {times}, last at {at(found.at_ms)}."
    behind = [part.topic for part in found.parts if not part.is_caught_up]
    if behind and moves(found.desired.state):
        yield f"{len(behind)} of {len(found.parts)} partitions have not caught up: pending timers are no error yet."
    decisions: dict[str, int] = {}
    for part in found.parts:
        for decision, count in part.decisions.items():
            decisions[decision] = decisions.get(decision, 0) + count
    if decisions:
        yield f"Pending: {decision_words(decisions, moves=moves(found.desired.state))}."
    unshown = sum(part.entries - part.read for part in found.parts)
    if unshown:
        of_broker = counted(unshown, "entry is", "entries are")
        yield f"{of_broker} the broker's own, or of open transactions, which readers do not receive."
    yield f"Memory for the copies: {sum(part.memory_bytes for part in found.parts) / 1_000_000:,.1f} MB at most."
    for stuck in found.stuck:
        since = f"it should have moved on from {stuck.head.text} {span(stuck.late_ms)} ago"
        yield f"No progress: {stuck.topic}; {since}. See the log of its relay."
    for name in found.missing:
        yield f"Missing: {name} ({timewheel_command('topics', 'ensure', plan_file)} creates it)."
    for one in found.unread:
        yield f"Not seen: {one.subject} ({one.reason}); its entries would count as lost."
