"""`timewheel shadow`: relieves a topic of gaps while its producers and consumers stay unchanged."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from timewheel.cli.connecting import AdminOptions, ConnectionOptions, warn
from timewheel.cli.options import (
    ATTENTION,
    FAILED,
    AsJson,
    PlanFile,
    at,
    command_group,
    entries_wait,
    every_ms_of,
    repeated,
    type_words,
)
from timewheel.cli.planning import console_for
from timewheel.cli.relay import ShadowServiceOptions, await_empty, run_service
from timewheel.cli.terminal import (
    print_error,
    print_line,
    progress_bar,
    render,
    say,
    show_finding,
    show_line,
    show_rows,
)
from timewheel.core.clock import SystemClock
from timewheel.core.durations import parse_duration, span, spelled
from timewheel.core.errors import AdminError, AdminMissing, PlanError, TopologyError
from timewheel.core.escapes import timewheel_command, visible
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan, Tiered
from timewheel.core.plurals import counted
from timewheel.core.steps import far_ms, spare_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.shadow.desired_state import State
    from timewheel.shadow.machine.audit import Trouble
    from timewheel.shadow.overview import PartitionOverview, Queue, ShadowOverview
    from timewheel.shadow.survey import Survey
    from timewheel.shadow.verification import Verification

shadow = command_group("shadow", "Cure a topic without a change to its producers and consumers.")


def plan_with_intake(file: Path) -> Plan:
    from timewheel.core.planfile import load_plan

    plan = load_plan(file)
    if not plan.intake:
        limit = "a shadow needs the topics that come with intake = true"
        raise PlanError("intake", plan.intake, limit).in_file(file)
    return plan


def need_shadow(admin: AdminClient, plan: Plan, plan_file: Path) -> State:
    """Return the desired state of a topic; refuse a plan for whose topic no shadow was started."""
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


def note(admin: AdminClient, plan: Plan, state: State, before: State | None = None) -> str:
    """Store the desired state, from now on, for every process that shadows the plan's topic."""
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
    """List the decisions of pending entries with their counts."""
    named = DECISIONS | {"moved": f"far from due ({'not moved yet' if moves else 'would be moved by a shadow'})"}
    return ", ".join(f"{count:,} {named.get(decision, decision)}" for decision, count in decisions.items())


def journal_words(
    plan: Plan, plan_file: str, *, kept: int, since_ms: int, now_ms: int, reached_by: Sequence[str] = ()
) -> Iterator[str]:
    """Describe whether `shadow run` must go on after an abort, why, and until when."""
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
    for text in _survey_lines(found):
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
    for one in found.findings:
        say(console, "")
        show_finding(console, one, "refused" if one.severity.word == "error" else one.severity.word)


def _survey_lines(found: Survey) -> Iterator[str]:
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


def bare_plan(admin: AdminClient, topic: str) -> Plan:
    """Make a plan with the topic's own subscriptions and partitions, by which its waiting entries are read."""
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
    """Make the plan of a topic, surveyed by its `bare_plan`, for its delays.

    Without a window: the longest, up to half a day, that leaves few gaps; the shortest if none does.
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


@shadow.command()
def start(
    target: Annotated[
        str,
        Argument(
            metavar="PLAN|TOPIC",
            help="A plan file; or, with --out, persistent://tenant/namespace/topic to make a plan for.",
            show_default=False,
        ),
    ],
    *,
    dry_run: Annotated[bool, Option("--dry-run", help="Start nothing, show the timers that would be moved.")] = False,
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="With a topic: write the plan that is made for it here.", dir_okay=False),
    ] = None,
    window: Annotated[
        str | None, Option(help="Write this window, and matching tiers, into the plan before the start.")
    ] = None,
    yes: Annotated[bool, Option("--yes", help="With a topic: start without asking.")] = False,
    entries: Annotated[int, Option(min=100, max=100_000_000, help="Entries to read in each partition.")] = 100_000,
    ignoring: Annotated[bool, Option("--ignore-refusals", help="Start in spite of refusals.")] = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Make a plan's topics and start shadowing its due topic; with --dry-run only show the effect.

    `timewheel shadow run` moves the timers, also timers that an earlier plan left in the topic. With a topic instead of
    a plan, the longest window that leaves few enough gaps of its waiting timers is chosen, the plan is written to
    --out, and the command asks before it starts. Exit status: 3 if there are reasons against a shadow, and nothing was
    started; 1 if the topic cannot be seen.
    """
    from timewheel.core.planfile import save_plan
    from timewheel.shadow.curing import with_window
    from timewheel.shadow.survey import read_topic, survey_facts

    is_topic = _is_topic(target, out)
    window_ms = None if window is None else parse_duration(window)

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
            save_plan(plan, out)
            if not as_json:
                say(console, "")
                say(console, f"plan    {out}", style="bold")
                for line in out.read_text(encoding="utf-8").splitlines():
                    show_line(console, line)
        if not as_json:
            show_survey(console, found)
        begins = not dry_run and (ignoring or not found.is_refused)
        if begins and is_topic and not yes:
            with suppress(typer.Abort):  # without a terminal the answer is no
                begins, topic = False, visible(plan.due_topic)
                begins = typer.confirm(f"Create the plan's topics, and start to shadow {topic}?", err=True)
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
    """Describe the change of the window in a plan's file that was or would be made, and its effect on shadows."""
    from timewheel.shadow.curing import lines_of

    change = f"{visible(file)}: {lines_of(plan)} (before: {lines_of(before) or f'revision = {before.revision}'})"
    if is_written:
        runs = "Each shadow run that reads this file follows it within seconds"
        return f"Written into {change}. {runs}; where several run, a timer may come twice meanwhile."
    runs = "each shadow run would follow it within seconds; end all but one first, else a timer may come twice"
    return f"Nothing was written. A start would write into {change}, and {runs}."


def _edited(target: str, made: Plan, plan: Plan) -> str:
    """Return the new text of the plan's file, empty without a change; before any topic, since it may be refused."""
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


def _begin(admin: AdminClient, plan: Plan, file: str, text: str) -> str:
    """Make the topics, write a new text into the plan's file and store the request; return the result as a sentence."""
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


@shadow.command()
def status(
    plan_file: PlanFile,
    *,
    watch: Annotated[bool, Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[str, Option(help="With --watch: interval between snapshots.")] = "10s",
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Show a shadow: its state, its moving processes, lag, gaps, waiting entries and entries not moved. Nothing is
    changed.

    Exit status: 3 if there are problems that need attention; 1 if not all topics could be seen.
    """
    from timewheel.shadow.overview import overview_facts, overview_of

    every_ms = every_ms_of(every)
    plan = plan_with_intake(plan_file)
    access, code = cluster.access(), 0
    with unseen_is_an_exit(), access.admin() as admin:
        need_shadow(admin, plan, plan_file)
        for _ in repeated(admin.clock, every_ms if watch else None):
            dialer = access.dialer(access.service_url_of(plan.due_topic, admin))
            found = overview_of(admin, dialer, plan, target=str(plan_file), reached_by=cluster.words)
            render(overview_facts(found), partial(show_overview, found=found), as_json=as_json)
            code = ATTENTION if found.warnings else FAILED if found.unread else 0
    raise typer.Exit(code)


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
            known = {name: amount.text for name, amount in found.timers.items() if amount is not None}
            unknown = "not known, one or many in an entry"
            lines = [(name.rpartition("/")[2], f"{held[name]:,}", known.get(name, unknown)) for name in held]
            show_rows(console, caption, ("topic", "entries", "timers"), lines)
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


def _queue(queue: Queue) -> str:
    return f"{queue.entries:,}" + ("" if queue.oldest_ms is None else f", {span(queue.oldest_ms)} old")


def _notes(found: ShadowOverview) -> Iterator[str]:
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
        yield f"Not seen: {one.what} ({one.reason})"


@shadow.command()
def verify(plan_file: PlanFile, *, cluster: ConnectionOptions, as_json: AsJson = False) -> None:
    """Verify that each timer of a shadowed topic is in exactly one place: read all its entries and all copies in the
    journal.

    Nothing is consumed or changed, and clients and shadows may run meanwhile: a suspect entry is checked again. The
    command reads some 10,000 entries a second. Exit status: 3 if the audit does not balance or a partition makes no
    progress; 1 if not all entries could be seen.
    """
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
    """Print the verdict, then the places of all entries, then the errors."""
    from timewheel.shadow.machine.audit import Place, Wrong
    from timewheel.shadow.verification import shown

    say(console, _verdict(found), style="bold green" if found.is_balanced else "bold red")
    for text in _audit_notes(found, plan_file):
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


def _audit_notes(found: Verification, plan_file: str) -> Iterator[str]:
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
        yield f"Not seen: {one.what} ({one.reason}); its entries would count as lost."


@shadow.command()
def run(asked: ShadowServiceOptions) -> None:
    """Shadow the due topics of all given plans until SIGTERM or Ctrl-C, as requested by start, pause and abort.

    Timers far from due are moved out of the topic, wait in holding topics, and come back near their due time;
    producers and consumers do not notice. The process is also the relay of these plans. Several such processes share
    the partitions and take over from each other. A process that is stuck ends itself, so run it under a supervisor that
    restarts it. Plan files are read again when they change, as in `timewheel relay run`. The log goes to standard
    error.
    """
    run_service(asked)


@shadow.command()
def pause(plan_file: PlanFile, *, cluster: AdminOptions) -> None:
    """Stop moving; moved timers go on and come back in time. `shadow start` resumes moving."""
    from timewheel.shadow.desired_state import State

    plan = plan_with_intake(plan_file)
    with cluster.admin() as admin:
        before = need_shadow(admin, plan, plan_file)
        if before in (State.PROVISIONED, State.NATIVE):  # a pause would only hide that nothing is moved or held
            fact = f"is {before.value}: nothing is moved, so there is nothing to pause"
            begin = timewheel_command("shadow", "start", str(plan_file))
            raise TopologyError(plan.due_topic, fact, f"to begin: {begin}")
        print_line(note(admin, plan, State.PAUSED, before))


SETTLE_MS = 5_000  # by then every running shadow has seen that it must move no more timers


@shadow.command()
def abort(plan_file: PlanFile, *, cluster: ConnectionOptions) -> None:
    """End the shadow: send all moved timers back to the topic, under their exact due times.

    First all shadows stop moving; then this process, and those that run, send back all waiting timers, in order. The
    command may be killed and run again. Keep `shadow run` running until `shadow status` reports an empty journal: until
    then a broker that is killed may deliver originals again, and only a shadow can acknowledge these. At its end the
    command prints the latest time until which this is necessary.
    """
    from rich.console import Console

    from timewheel.provision.former_topics import FormerTopics
    from timewheel.shadow.desired_state import State
    from timewheel.shadow.draining import Stalls, journaled, waiting, waiting_timers
    from timewheel.shadow.shadow import Shadow

    plan = plan_with_intake(plan_file)
    access, told = cluster.access(), Console(stderr=True)
    with access.client_and_admin(plan.due_topic) as (client, admin, url):
        before = need_shadow(admin, plan, plan_file)
        timers = waiting_timers(admin, plan)  # first: from the request on, every running shadow sends timers back
        show_line(told, note(admin, plan, State.DRAINING, before))
        # Timers that were moved before the plan changed also go back, even if no other shadow runs to drain them.
        former = FormerTopics(admin, plan)
        here = Shadow(client, plan, access.dialer(url), admin, hooks=(warn,), former_topics=former)
        here.start()
        try:
            stalls = Stalls(admin, plan)
            await_empty(told, lambda: waiting(admin, plan), settle_ms=SETTLE_MS, why_stalled=stalls)
        finally:
            here.stop()
        print_line(note(admin, plan, State.NATIVE))
        kept, now_ms = journaled(admin, plan), admin.clock.now_ms()
    for line in last_words(plan, str(plan_file), timers, kept=kept, now_ms=now_ms, reached_by=cluster.words):
        print_line(line)


def last_words(
    plan: Plan, plan_file: str, timers: str, *, kept: int, now_ms: int, reached_by: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the result of an abort, whether `shadow run` must go on, and until when."""
    yield f"put back into {plan.due_topic}: {timers}"
    yield from journal_words(plan, plan_file, kept=kept, since_ms=now_ms, now_ms=now_ms, reached_by=reached_by)
    if kept:
        yield f"whether it is: {timewheel_command('shadow', 'status', plan_file, *reached_by)}"
