"""`timewheel gaps`: shows how near each subscription is to losing acknowledgements, and why, on any Pulsar cluster."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from timewheel.cli import options
from timewheel.cli.connecting import AdminOptions
from timewheel.cli.terminal import progress_bar, render, say, show_line, show_rows, terminal
from timewheel.core.escapes import spreadsheet_cell, timewheel_command
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.inspect.gaps import GapSnapshot
    from timewheel.inspect.gaps.explain import Advice, Explained
    from timewheel.inspect.gaps.gap_status import GapStatus, SubscriptionGaps
    from timewheel.inspect.gaps.snapshot import AgainMessages, GapHistory
    from timewheel.inspect.profile import Limit

FAIL_AT = ("never", "watch", "alarm")


def gaps(
    targets: Annotated[
        list[str] | None,
        Argument(
            metavar="[TARGET]...",
            help="persistent://tenant/namespace/topic, tenant/namespace, tenant, or a plan file.",
            show_default=False,
        ),
    ] = None,
    *,
    everything: options.Everything = False,
    watch: Annotated[bool, Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[str, Option(help="With --watch: interval between snapshots.")] = "10s",
    times: Annotated[int | None, Option(min=1, help="With --watch: number of snapshots; else until Ctrl-C.")] = None,
    log: Annotated[
        Path | None, Option(help="Log of snapshots, for growth: read first, then appended to.", dir_okay=False)
    ] = None,
    top: Annotated[int, Option(min=1, help="Number of subscriptions to show, the worst first.")] = 20,
    fail_at: Annotated[str, Option(help="never, watch (80 % of the limit) or alarm: see exit status.")] = "never",
    limit: options.GapLimit = None,
    at_once: options.AtOnce = 16,
    cluster: AdminOptions,
    csv_file: Annotated[
        Path | None, Option("--csv", help="Also write a row for each subscription to this file.", dir_okay=False)
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print a line of JSON for each snapshot.")] = False,
) -> None:
    """Show gaps beside the broker's limit, and the entries that an unload now would deliver again. Nothing is changed.

    Works for any topic, whichever clients produce to it. Exit status 1 if a target, or a topic of a plan, does not
    exist or may not be read. With --fail-at also: 3 if a subscription is above 80 % of the limit; 4 if a subscription
    is at the limit or an unload would deliver entries again; 1 if any target or topic could not be seen.
    """
    from timewheel.inspect.gaps.snapshot import snapshot_facts

    every_ms = options.every_ms_of(every)
    if fail_at not in FAIL_AT:
        raise typer.BadParameter(f"one of {', '.join(FAIL_AT)}, not {fail_at}", param_hint="--fail-at")
    if bool(targets) == everything:
        raise typer.BadParameter("name topics, namespaces, tenants or plan files, or give --all", param_hint="TARGET")
    options.need_folders({"--log": log, "--csv": csv_file})
    console = terminal()
    with cluster.admin() as admin, _screen(console, live=watch and not as_json) as show:
        status = 0
        seeing = _Seeing(admin, targets or [], everything=everything, limit=limit, at_once=at_once, log=log)
        for _ in options.repeated(admin.clock, every_ms if watch else None, times):
            snapshot, messages = seeing.look(quiet=watch)
            status = exit_status(snapshot, fail_at)
            if csv_file is not None:
                _write_csv(csv_file, snapshot, seeing.snapshots)
            if as_json:
                facts = snapshot_facts(snapshot, seeing.limit, seeing.snapshots, messages)
                print(json.dumps(facts), flush=True)
            else:
                show(
                    partial(
                        show_snapshot,
                        snapshot=snapshot,
                        limit=seeing.limit,
                        snapshots=seeing.snapshots,
                        messages=messages,
                        top=top,
                        reached_by=cluster.words,
                        plan_files=seeing.plan_files,
                    )
                )
    raise typer.Exit(status)


def exit_status(snapshot: GapSnapshot, fail_at: str) -> int:
    """Return the exit status for a scheduled job; a target that could not be seen is never "ok"."""
    from timewheel.inspect.gaps import Level

    asked = fail_at != "never"
    if asked and snapshot.level is Level.ALARM:
        return options.ALARM
    if snapshot.level is Level.WATCH and fail_at == "watch":
        return options.ATTENTION
    return options.FAILED if not snapshot.is_whole or (asked and snapshot.unseen) else 0


class _Seeing:
    """Looks at the same targets, and finds their topics again each time."""

    def __init__(
        self,
        admin: AdminClient,
        targets: Sequence[str],
        *,
        everything: bool,
        limit: int | None,
        at_once: int,
        log: Path | None,
    ) -> None:
        from timewheel.inspect.gaps.snapshot import GapHistory, read_snapshots
        from timewheel.inspect.profile import limit_of

        self._admin = admin
        self._names, self._plans = options.names_and_plans(targets)
        files = [target for target in targets if target not in self._names]
        self.plan_files = {
            plan.due_topic: file for file, plan in zip(files, self._plans, strict=True) if not plan.intake
        }
        self._everything = everything
        self._at_once = at_once
        self._log = log
        self.snapshots: GapHistory = GapHistory() if log is None else read_snapshots(log)
        self.limit: Limit = limit_of(admin, gap_limit_ranges=limit)

    def look(self, *, quiet: bool) -> tuple[GapSnapshot, dict[tuple[str, str], AgainMessages]]:
        """Look once; for a single topic also count the messages that an unload would deliver again."""
        from timewheel.inspect.errors import NoSuchTarget
        from timewheel.inspect.gaps import inspect_gaps, topics_of
        from timewheel.inspect.gaps.snapshot import EVERYTHING, append_snapshot, messages_again, with_lost, with_shadows
        from timewheel.inspect.missing_topics import no_such_topic

        found = topics_of(self._admin, [EVERYTHING] if self._everything else self._names, self._plans)
        with progress_bar("looking at topics", quiet=quiet) as on_progress:
            seen = inspect_gaps(
                self._admin,
                found.topics,
                self.limit.profile,
                unseen=found.unseen,
                missing=found.missing,
                at_once=self._at_once,
                on_progress=on_progress,
            )
        if seen.gone and not seen.topics and not seen.unseen and not seen.missing:
            raise NoSuchTarget(
                ", ".join(seen.gone), f"{no_such_topic(self._admin, seen.gone[0])}, or nothing has used it yet"
            )
        seen = with_shadows(self._admin, with_lost(seen, found.named))
        self.snapshots.add(seen)
        if self._log is not None:
            append_snapshot(self._log, seen)
        alone = len({one.topic for one in seen.subscriptions}) == 1
        messages = {
            (one.topic, one.subscription): messages_again(self._admin, one, shadowed=one.topic in seen.shadowed)
            for one in (seen.subscriptions if alone else ())
            if one.again_entries
        }
        return seen, messages


@contextmanager
def _screen(console: Console, *, live: bool) -> Iterator[Callable[[Callable[[Console], None]], None]]:
    """Show looks in the same place on a terminal, elsewhere one after the other."""
    if not (live and console.is_terminal):
        yield lambda shown: shown(console)
        return

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def show(shown: Callable[[Console], None]) -> None:
        # Into a separate console: the live console moves the cursor with all text that it receives.
        text = StringIO()
        shown(Console(file=text, width=console.width, force_terminal=True, highlight=False))
        screen.update(Text.from_ansi(text.getvalue()), refresh=True)

    with Live(console=console, auto_refresh=False) as screen:
        yield show


def _write_csv(path: Path, snapshot: GapSnapshot, snapshots: GapHistory) -> None:
    import csv

    from timewheel.inspect.gaps.snapshot import subscription_facts

    facts = [{"at_ms": snapshot.at_ms, **subscription_facts(one, snapshots)} for one in snapshot.subscriptions]
    rows = [{name: spreadsheet_cell(value) for name, value in row.items()} for row in facts]
    with options.writing(path, "--csv"), path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


STYLES = ("green", "yellow", "red")  # style by level
AID = "yellow"
HEADER = (
    "subscription", "level", "gaps", "of limit", "in all", "backlog", "delayed", "again", "an hour", "hours left",
)  # fmt: skip
MAX_NAMES = 5  # highest number of topics that a sentence names


def show_snapshot(
    console: Console,
    snapshot: GapSnapshot,
    limit: Limit,
    snapshots: GapHistory,
    messages: Mapping[tuple[str, str], AgainMessages],
    *,
    top: int,
    reached_by: Sequence[str],
    plan_files: Mapping[str, str] | None = None,
) -> None:
    say(
        console,
        f"{options.at_second(snapshot.at_ms)} UTC: {verdict(snapshot)}",
        style=STYLES[snapshot.level] if snapshot.is_whole else "red",
    )
    if len(snapshot.subscriptions) == 1:
        (one,) = snapshot.subscriptions
        for name, text in lines_of(one, limit, snapshots, messages.get((one.topic, one.subscription))):
            say(console, f"{name:10}{text}")
    else:
        say(console, f"The limit is {limit.profile.gap_limit_ranges:,} gaps of a partition, {limit.source}.")
        if snapshot.subscriptions:
            _show_worst(console, snapshot, snapshots, top)
    for text in notes_of(snapshot):
        say(console, text, style=AID)
    for text in aid_of(snapshot, reached_by, plan_files or {}):
        show_line(console, text, style=AID)


def verdict(snapshot: GapSnapshot) -> str:
    """Count the subscriptions by level."""
    subscriptions = snapshot.subscriptions
    lacking = _lacking(snapshot)
    if not subscriptions:
        return f"no subscription was seen{lacking}."
    again = [one for one in subscriptions if one.again_entries]
    full = [one for one in subscriptions if one.level.word == "alarm" and not one.again_entries]
    near = [one for one in subscriptions if one.level.word == "watch"]
    said = []
    if again:
        entries = counted(sum(one.again_entries for one in again), "acknowledged entry", "acknowledged entries")
        said.append(f"an unload now would deliver {entries} again, of {_some(len(again))}")
    if full:
        said.append(f"{_some(len(full))} at the limit")
    if near:
        said.append(f"{_some(len(near))} above 80 % of the limit")
    of = f"{_some(len(subscriptions))} of {counted(snapshot.topics, 'topic or partition', 'topics and partitions')}"
    return (f"{'; '.join(said)}; seen: {of}" if said else f"all is well with {of}") + f"{lacking}."


def _lacking(snapshot: GapSnapshot) -> str:
    """Return the targets that were not seen, as the end of a sentence."""
    targets = sum(one.is_target for one in snapshot.unseen)
    said = [f"{counted(len(snapshot.missing), 'topic', 'topics')} of the plan missing"] if snapshot.missing else []
    said += [f"{counted(targets, 'target', 'targets')} not seen"] if targets else []
    return f"; {', '.join(said)}" if said else ""


def lines_of(
    one: SubscriptionGaps, limit: Limit, snapshots: GapHistory, messages: AgainMessages | None
) -> Iterator[tuple[str, str]]:
    """Yield all details of a subscription, a line each."""
    worst, several = one.worst, len(one.parts) > 1
    yield "topic", one.topic + (f", {len(one.parts)} partitions" if several else "")
    yield "cursor", f"{one.subscription} ({options.type_words(worst.type)})"
    total = f"; {one.gap_count:,} in all partitions" if several else ""
    where = f" in {worst.topic.rpartition('/')[2]}, the worst" if several else ""
    yield "gaps", f"{worst.gap_count:,}{where}{total}"
    yield "limit", f"{worst.gap_limit:,}, {limit.source}; {100 * worst.share:.0f} % of it used"
    yield "span", _span(worst)
    written = f", {_bytes(worst.written_bytes)} when last written" if worst.written_bytes else ""
    yield "written", f"as {'a bitmap by ledger' if worst.form == 'bitmap' else 'ranges'}{written}"
    yield "backlog", _backlog(one)
    yield "memory", f"{_bytes(one.index_bytes)} for the index of delayed messages"
    ledgers = sum(part.pinned_ledgers for part in one.parts)
    yield (
        "disk",
        f"{_bytes(one.pinned_bytes)} in {counted(ledgers, 'ledger', 'ledgers')} cannot be deleted until the "
        "mark-delete position moves on",
    )
    yield "unload", _again(one, messages)
    growth = snapshots.growth(one)
    if growth is not None:
        yield (
            "growth",
            f"{growth.per_hour:,.0f} gaps an hour over {growth.snapshots} snapshots; {_until(growth.hours_to_limit)}",
        )


def notes_of(snapshot: GapSnapshot) -> Iterator[str]:
    """Yield notes on topics that were not seen, do not exist, or have no subscription."""
    if snapshot.unseen:
        yield f"Not seen: {_named([f'{one.what} ({one.reason})' for one in snapshot.unseen])}."
    if snapshot.missing:
        yield f"Missing: {_named(snapshot.missing)}. timewheel topics ensure PLAN creates them."
    if snapshot.gone:
        yield f"Missing, or never used: {_named(snapshot.gone)}."
    if snapshot.bare:
        yield f"Without a durable subscription, so messages sent there are not kept: {_named(snapshot.bare)}."


def aid_of(
    snapshot: GapSnapshot, reached_by: Sequence[str] = (), plan_files: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yield first aid for the worst subscription: if delays may be why it is near its limit, the command for another
    plan where timewheel's clients have one, elsewhere that for a shadow; else the command that explains its gaps. Each
    command ends a line.
    """
    from timewheel.inspect.gaps.gap_status import PLAN_HELPS, may_need_shadow, plan_command, shadow_helps
    from timewheel.provision.shadow_commands import shadow_commands

    worst = next(filter(may_need_shadow, snapshot.subscriptions), None)
    if worst is None:
        near = next((one for one in snapshot.subscriptions if one.level.word != "ok"), None)
        if near is not None:
            words = ("gaps", "explain", near.topic, "--subscription", near.subscription, *reached_by)
            yield f"To explain the gaps of subscription {near.subscription}: {timewheel_command(*words)}"
        return
    shadow, file = snapshot.shadowed.get(worst.topic), plan_files.get(worst.topic)
    if file and not shadow:
        yield f"If delays are the cause, {PLAN_HELPS}: {plan_command(file, reached_by)}"
    else:
        yield f"{'Beside this' if shadow else 'If delays are the cause'}, {shadow_helps(worst.topic, shadow)}."
        for command in shadow_commands(worst.topic, shadow, reached_by)[:1]:
            yield f"Begin with: {command}"
    yield f"To see whether delays are the cause: {timewheel_command('gaps', 'explain', worst.topic, *reached_by)}"


def _show_worst(console: Console, snapshot: GapSnapshot, snapshots: GapHistory, top: int) -> None:
    shown = snapshot.subscriptions[:top]
    growths = [snapshots.growth(one) for one in shown]
    namespaces = {one.topic.rpartition("/")[0] for one in shown}
    common = f"{namespaces.pop()}/" if len(namespaces) == 1 else "persistent://"
    rows = []
    for one, growth in zip(shown, growths, strict=True):
        worst = one.worst
        rows.append(
            (
                f"{one.topic.removeprefix(common)} {one.subscription}",
                one.level.word,
                f"{worst.gap_count:,}",
                f"{100 * worst.share:.0f}%",
                f"{one.gap_count:,}",
                f"{one.backlog:,}",
                f"{one.delayed:,}",
                f"{one.again_entries:,}",
                "" if growth is None else f"{growth.per_hour:,.0f}",
                "" if growth is None or growth.hours_to_limit is None else f"{growth.hours_to_limit:,.1f}",
            )
        )
    left = len(snapshot.subscriptions) - len(shown)
    of = "" if common == "persistent://" else f" of {common.removeprefix('persistent://').rstrip('/')}"
    more = f" ({left:,} more are no worse: --top)" if left else ""
    # Most snapshots are the first, without a growth: without its two columns there is more room for names.
    columns = len(HEADER) if any(growths) else len(HEADER) - 2
    show_rows(console, f"Subscriptions{of}, the worst first{more}", HEADER[:columns], [row[:columns] for row in rows])


def _backlog(one: SubscriptionGaps) -> str:
    from timewheel.inspect.gaps.gap_status import stale_index_words

    known = {"delayed": one.delayed, "in consumers' hands": one.unacked, "ready": one.ready}
    said = [f"{count:,} {state}" for state, count in known.items() if count or not one.unknown]
    if one.unknown:
        said.append(f"{one.unknown:,} delayed or ready: which is not known, as no consumer is connected")
    most = "at most " if one.stale_entries else ""
    return f"{counted(one.backlog, 'entry', 'entries')}: {most}{', '.join(said)}{stale_index_words(one)}"


def _span(worst: GapStatus) -> str:
    if not worst.gap_count:
        return "nothing is acknowledged out of order"
    return (
        f"{counted(worst.acked_entries, 'entry is', 'entries are')} acknowledged beyond the mark-delete position, "
        f"within {counted(worst.span_entries, 'entry', 'entries')}"
    )


def _again(one: SubscriptionGaps, messages: AgainMessages | None) -> str:
    if not one.again_entries:
        return "would deliver no acknowledged entry again"
    said = f"would deliver {counted(one.again_entries, 'acknowledged entry', 'acknowledged entries')} again"
    if messages is None:
        return said
    error = f" +- {messages.error:,}" if messages.error else ""
    noun = "message" if messages.messages == 1 and not error else "messages"
    said = f"{said}: {messages.messages:,}{error} {noun}"
    if not messages.originals:
        return said
    return (
        f"{said}; {messages.originals:,} of these are originals of timers that the shadow has moved, which it "
        "acknowledges again before they are due, as long as it runs"
    )


def _until(hours: float | None) -> str:
    if hours is None:
        return "the limit is not coming nearer"
    if hours <= 0:
        return "the limit is reached"
    return f"the limit is reached in {f'{hours:,.1f} hours' if hours < 48 else f'{hours / 24:,.1f} days'}"


def _named(names: list[str] | tuple[str, ...]) -> str:
    left = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {left:,} more" if left > 0 else "")


def _some(count: int) -> str:
    return counted(count, "subscription", "subscriptions")


def _bytes(size: int) -> str:
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} bytes"


def explain(
    topic: Annotated[str, Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic.", show_default=False)],
    *,
    subscription: Annotated[
        str | None, Option(help="Subscription to explain; else the subscription with the most gaps.")
    ] = None,
    holes: Annotated[int, Option(min=1, max=100_000, help="Stretches of open entries to sample.")] = 400,
    entries: Annotated[
        int, Option("--samples", min=1, max=100_000, help="Entries of the topic to sample for their delays.")
    ] = 2_000,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 0,
    limit: options.GapLimit = None,
    cluster: AdminOptions,
    as_json: options.AsJson = False,
) -> None:
    """Explain why a subscription has gaps: mixed delays, slow consumers, hot keys or single acknowledgements; and the
    cure.

    The command samples open entries between acknowledged entries, and looks at the connected consumers. Nothing is
    consumed or changed.
    """
    from timewheel.inspect.gaps.explain import advice_on
    from timewheel.inspect.gaps.explain import explain as look_into
    from timewheel.inspect.gaps.snapshot import full_name
    from timewheel.inspect.profile import limit_of

    with cluster.admin() as admin, progress_bar("looking at entries") as on_progress:
        known = limit_of(admin, gap_limit_ranges=limit)
        found = look_into(
            admin,
            full_name(topic),
            subscription,
            known.profile,
            holes=holes,
            entries=entries,
            seed=seed,
            on_progress=on_progress,
        )
    advice = advice_on(found, known.profile, gap_limit=limit, reached_by=cluster.words)
    gap_limit = f"{known.profile.gap_limit_ranges:,}, {known.source}"
    render(_facts(found, advice), lambda console: _show(console, found, advice, gap_limit), as_json=as_json)


def _show(console: Console, found: Explained, advice: Sequence[Advice], limit: str) -> None:
    gaps = found.gaps
    found_gaps = counted(gaps.gap_count, "gap")
    say(
        console,
        f"{gaps.topic}, subscription {gaps.subscription} ({options.type_words(gaps.worst.type)}): {found_gaps}.",
    )
    say(console, f"The limit is {limit}; {100 * gaps.worst.share:.0f} % of it used by the fullest partition.")
    if not advice:
        say(console, "Nothing is acknowledged out of order: there is nothing to explain.")
        return
    if found.inspected < found.holes:
        say(console, f"Of {found.holes:,} stretches of open entries {found.inspected:,} were sampled.")
    if found.unreadable:
        say(console, f"In {found.unreadable:,} of them the sampled entry could not be read, and is not counted.")
    for one in advice:
        error = f" +- {100 * one.share.error:.0f}" if one.share.error else ""
        say(console, "")
        say(console, f"{100 * one.share.share:.0f}{error} % of the gaps: {one.share.cause.value}", style="bold")
        for name, texts in (("seen", one.evidence), ("helps", one.helps)):
            for text in texts:
                say(console, f"{name:6}{text}", indent=2)
        for some in one.tries:
            if some.when:
                say(console, f"{some.when}:", indent=2)
            for command in some.commands:
                show_line(console, f"  {'try':6}{command}")


def _facts(found: Explained, advice: Sequence[Advice]) -> dict[str, Any]:
    gaps = found.gaps
    return {
        "topic": gaps.topic,
        "subscription": gaps.subscription,
        "shadow": found.shadow,
        "type": gaps.worst.type,
        "at_ms": found.at_ms,
        "gaps": gaps.gap_count,
        "gaps_of_worst": gaps.worst.gap_count,
        "gap_limit": gaps.worst.gap_limit,
        "holes": found.holes,
        "looked_into": found.inspected,
        "unreadable": found.unreadable,
        "delayed": gaps.delayed,
        "stale_at_least": gaps.stale_entries,
        "unknown": gaps.unknown,
        "unacked": gaps.unacked,
        "causes": [
            {
                "cause": one.share.cause.name.lower(),
                "share": round(one.share.share, 4),
                "error": round(one.share.error, 4),
                "seen": list(one.evidence),
                "helps": list(one.helps),
                "try": [{"when": some.when, "commands": list(some.commands)} for some in one.tries],
            }
            for one in advice
        ],
    }
