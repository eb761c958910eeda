"""Shared parts of the shadow's commands: the plan, the desired state beside its journal, and their output."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from timewheel.cli.moments import at
from timewheel.cli.options import FAILED, type_words
from timewheel.cli.terminal import STYLES, print_error, say, show_rows
from timewheel.core.clock import SystemClock
from timewheel.core.durations import span, spelled
from timewheel.core.errors import AdminError, AdminMissing, PlanError, TopologyError
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import Names
from timewheel.core.plurals import counted
from timewheel.core.steps import far_ms, spare_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.inspect.doctor import Finding
    from timewheel.shadow.desired_state import State
    from timewheel.shadow.survey import Survey


def plan_with_intake(file: Path) -> Plan:
    """Load the plan of a file.

    Raises:
        PlanError: The file is no plan, or the plan has no intake.
    """
    from timewheel.core.planfile import load_plan

    plan = load_plan(file)
    if not plan.intake:
        limit = "a shadow needs the topics that come with intake = true"
        raise PlanError("intake", plan.intake, limit).in_file(file)
    return plan


def need_shadow(admin: AdminClient, plan: Plan, plan_file: Path) -> State:
    """Return the desired state of a topic; refuse a plan for whose topic no shadow was started.

    Raises:
        TopologyError: There is no due topic, or no journal beside it.
        AdminError: The broker refused the request.
    """
    from timewheel.shadow.desired_state import desired_in

    journal = Names(plan).journal
    try:
        return desired_in(admin.topics.properties(journal)).state
    except AdminMissing as error:
        if admin.topics.partitions(plan.due_topic) is None:
            remedy = f"correct due_topic in {plan_file}, or its namespace, or the brokers that the command asks"
            raise TopologyError(plan.due_topic, "does not exist", remedy) from error
        start = timewheel_command("shadow", "start", str(plan_file))
        fact = f"has no shadow: there is no {journal}"
        raise TopologyError(plan.due_topic, fact, f"to start one: {start}; or correct {plan_file}") from error


def refuse_pause(plan: Plan, plan_file: Path, state: State) -> None:
    """Refuse to pause a topic of which nothing is moved or held, for a pause would only hide that.

    Raises:
        TopologyError: The shadow was never started, or its abort is complete.
    """
    from timewheel.shadow.desired_state import State

    if state in (State.PROVISIONED, State.NATIVE):
        start = timewheel_command("shadow", "start", str(plan_file))
        fact = f"is {state.value}: nothing is moved, so there is nothing to pause"
        raise TopologyError(plan.due_topic, fact, f"to begin: {start}")


def note(admin: AdminClient, plan: Plan, state: State, before: State | None = None) -> str:
    """Store the desired state, from now on, for every process that shadows the plan's topic.

    Args:
        admin: Its role administers the tenant.
        plan: Its journal must exist.
        state: The desired state.
        before: The stored state, if it was read just before; None: it is read.

    Returns:
        The result as a sentence.

    Raises:
        AdminError: The broker refused the request; `AdminMissing`: there is no journal.
    """
    from timewheel.shadow.desired_state import desired_for

    before = desired_for(admin, plan, state, now_ms=SystemClock().now_ms(), before=before)
    if before is state:
        return f"{plan.due_topic} was {state.value} already"
    return f"{plan.due_topic}: {before.value} -> {state.value}"


@contextmanager
def unseen_is_an_exit() -> Iterator[None]:
    """End the command with `FAILED`, and the broker's reason on stderr, if the topic cannot be seen."""
    from timewheel.broker.protocol.errors import BinaryProtocolError

    try:
        yield
    except (AdminError, BinaryProtocolError) as error:
        print_error(error)
        raise typer.Exit(FAILED) from error


MEGABYTE = 1_000_000
DECISIONS = {
    "moved": "far from due (moved)",
    "near": "due soon (not moved)",
    "undelayed": "without a delay (not moved)",
    "acknowledged_by_some": "acknowledged on some subscriptions (not moved)",
    "nudge": "the shadow's own",
    "marker": "the broker's own",
    "beyond_max_delay": "due later than the plan's max_delay (not moved)",
    "batch": "in a batch (not moved)",
    "encrypted": "encrypted (not moved)",
    "chunk": "a chunk of a larger message (not moved)",
    "key_of_bytes": "with a key of bytes (not moved)",
    "unreadable_metadata": "with unreadable metadata (not moved)",
    "no_text": "with a key or property that is no text (not moved)",
    "transaction": "of a transaction (not moved)",
    "schema_refused": "of a missing schema, a schema that the journal's registry refuses, or one schema too many (not "
    "moved)",
    "unknown_compression": "compressed in an unknown way (not moved)",
    "large": "too large for a copy (not moved)",
    "damaged": "with a damaged payload (not moved)",
    "unreadable_envelope": "with an unreadable tw-id or tw-timer (not moved)",
}


def decision_words(decisions: Mapping[str, int], *, moves: bool) -> str:
    """List the decisions of pending entries with their counts.

    Args:
        decisions: Number of entries by decision.
        moves: Whether the shadow is to move; False: no process moves.
    """
    named = DECISIONS | {"moved": f"far from due ({'not moved yet' if moves else 'would be moved by a shadow'})"}
    return ", ".join(f"{count:,} {named.get(decision, decision)}" for decision, count in decisions.items())


def journal_words(
    plan: Plan, plan_file: str, *, kept: int, since_ms: int, now_ms: int, reached_by: Sequence[str] = ()
) -> Iterator[str]:
    """Describe whether `shadow run` must go on after an abort, why, and until when.

    Args:
        plan: Has an intake.
        plan_file: The path as the user typed it.
        kept: Entries in the journals.
        since_ms: When the abort was complete, UTC milliseconds.
        now_ms: UTC milliseconds.
        reached_by: Options by which a command reaches the cluster.
    """
    from timewheel.shadow.machine.journal import HOLD_MS

    if not kept:
        yield "the journal is empty: the shadow run of this plan can end"
        return
    far = far_ms(plan)
    until_ms = since_ms + far + HOLD_MS
    yield (
        f"the journal still has {counted(kept, 'entry', 'entries')}: copies of timers whose originals a broker that is "
        "killed may deliver again, which only a shadow can acknowledge"
    )
    run = timewheel_command("shadow", "run", plan_file, *reached_by)
    yield f"so let this go on until it is empty, then end it: {run}"
    longer = "consumers are behind, or a message is never acknowledged, or a later message could not be moved"
    if until_ms <= now_ms:
        yield f"it was to be empty by about {at(until_ms)}, so {longer}: status names the subscription"
        return
    yield (
        f"at the latest that is about {at(until_ms)}: what was due within {spelled(far)} was not moved, and is in the "
        f"topic before those originals until it is handled. It takes longer only where {longer}: status names the "
        "subscription"
    )


def show_survey(console: Console, found: Survey) -> None:
    """Print the whole survey, with its findings last."""
    for text in _lines(found):
        say(console, text)
    if found.decisions:
        rows = [
            (DECISIONS.get(decision, decision), f"{amount.entries:,}", f"{amount.size_bytes / MEGABYTE:,.1f} MB")
            for decision, amount in found.decisions.items()
        ]
        show_rows(console, "Pending entries", ("decision", "entries", "bytes"), rows)
    per_cursor = [
        (
            f"{part.topic.rpartition('/')[2]} {one.name}",
            type_words(one.type),
            f"{one.pending:,}",
            f"{one.acked:,}",
            f"{one.gaps:,}",
            f"{'' if part.is_whole else '~'}{one.gaps_after:,}",
        )
        for part in found.parts
        for one in part.subscriptions
    ]
    if per_cursor:
        header = ("subscription", "type", "pending", "acknowledged", "gaps", "gaps after")
        caption = f"Gaps; the broker's gap limit is {found.gap_limit:,}"
        show_rows(console, caption, header, per_cursor)
    show_findings(console, found.findings)


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print each finding with its reading, its reason and its cure."""
    for one in findings:
        say(console, "")
        said = "refused" if one.severity.word == "error" else one.severity.word
        say(console, f"{said}: {one.slug}: {one.subject}", style=STYLES[one.severity.word])
        for name, text in (("read", one.read), ("why", one.why), ("cure", one.cure)):
            say(console, f"{name:5} {text}", indent=2)


def _lines(found: Survey) -> Iterator[str]:
    entries, read = sum(part.entries for part in found.parts), sum(part.read for part in found.parts)
    part = "all of them were read" if found.is_whole else f"{read:,} were read, the rest is estimated by them"
    yield f"{found.plan.due_topic}: {entries:,} entries from the first that is pending; {part}."
    delays = found.delays
    if delays is not None:
        shares = f"half up to {span(delays.p50_ms)}, 90 % up to {span(delays.p90_ms)}, 99 % up to {span(delays.p99_ms)}"
        yield f"Delays of pending entries: {shares}, the longest {span(delays.longest_ms)}."
    moved = found.moved
    yield f"With {span(found.far_ms)} or more to its due time an entry is moved: {moved.entries:,} now."
    every = [one for part in found.parts for one in part.subscriptions]
    worst = max(every, key=lambda one: one.gaps_after, default=None)
    if worst is not None:
        gaps = f"{worst.gaps:,} now, {worst.gaps_after:,} once the shadow has caught up"
        yield f"Gaps of subscription {worst.name}: {gaps}; the broker keeps {found.gap_limit:,}."
    if found.delays is not None:
        yield window_words(found)
    cost = found.cost
    if cost is not None:
        read_rate = f"{cost.entries_per_s:,.0f} entries were read a second"
        yield f"Estimated: {span(cost.catch_up_ms)} to catch up ({read_rate}), {cost.memory_bytes / MEGABYTE:,.0f} MB."
        if cost.writes:
            yield f"Each moved timer is written {cost.writes:.3g} times more: journal, holding topics, due topic."


def window_words(found: Survey) -> str:
    """Describe the cost of the window, and the gaps with other windows."""
    seen = f"about {found.native_per_hour:,.0f} messages an hour, by those of the last {span(found.native_seen_ms)},"
    native = f"{seen} have a delay below {span(found.far_ms)}"
    spare = f"a standby may take over {span(spare_ms(found.plan))} late before a moved timer comes late"
    others = ", ".join(f"{gaps:,} with a window of {span(window_ms)}" for window_ms, gaps in found.gaps_with.items())
    gaps = f" Gaps would be {others}." if others else ""
    return (
        f"What the window costs: {native}, and stay; {spare}, and {span(found.far_ms)} before one may come twice.{gaps}"
    )
