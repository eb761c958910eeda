"""`timewheel gaps`: shows how near each subscription is to losing acknowledgements, on any Pulsar cluster."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.exit_status import ALARM, ATTENTION, FAILED
from timewheel.cli.gaps_text import show_snapshot
from timewheel.cli.looks import AtOnce, Everything, GapLimit, every_ms_of, names_and_plans
from timewheel.cli.options import with_options
from timewheel.cli.terminal import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.inspect.gaps import GapSnapshot
    from timewheel.inspect.gaps.limit import Limit
    from timewheel.inspect.gaps.log import GapHistory
    from timewheel.inspect.gaps.messages import AgainMessages

__all__ = ["gaps"]

FAIL_AT = ("never", "watch", "alarm")


@with_options
def gaps(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="persistent://tenant/namespace/topic, tenant/namespace, tenant, or a plan file.",
            show_default=False,
        ),
    ] = None,
    *,
    everything: Everything = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", help="With --watch: interval between snapshots.")] = "10s",
    times: Annotated[
        int | None, typer.Option("--times", min=1, help="With --watch: number of snapshots; else until Ctrl-C.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Log of snapshots, for growth: read first, then appended to.", dir_okay=False),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of subscriptions to show, the worst first.")] = 20,
    fail_at: Annotated[
        str, typer.Option("--fail-at", help="never, watch (80 % of the limit) or alarm: see exit status.")
    ] = "never",
    limit: GapLimit = None,
    at_once: AtOnce = 16,
    cluster: AdminOptions,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Also write a row for each subscription to this file.", dir_okay=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each snapshot.")] = False,
) -> None:
    """Show gaps beside the broker's limit, and the entries that an unload now would deliver again. Nothing is changed.

    Works for any topic, whichever clients produce to it. Exit status 1 if a target, or a topic of a plan, does not
    exist or may not be read. With --fail-at also: 3 if a subscription is above 80 % of the limit; 4 if a subscription
    is at the limit or an unload would deliver entries again; 1 if any target or topic could not be seen.
    """
    from rich.console import Console

    every_ms = every_ms_of(every)
    _refuse(targets, fail_at, everything=everything, files={"--log": log, "--csv": csv_file})
    console = Console(highlight=False)
    with (
        cluster.admin() as admin,
        _screen(console, live=watch and not as_json) as show,
    ):
        status = 0
        seeing = _Seeing(admin, targets or [], everything=everything, limit=limit, at_once=at_once, log=log)
        for snapshot, messages in seeing.snapshots_of(every_ms if watch else None, times):
            status = exit_status(snapshot, fail_at)
            if csv_file is not None:
                _write_csv(csv_file, snapshot, seeing.snapshots)
            if as_json:
                _print_json(snapshot, seeing.limit, seeing.snapshots, messages)
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
    if status:
        raise typer.Exit(status)


def _refuse(targets: Sequence[str] | None, fail_at: str, *, everything: bool, files: Mapping[str, Path | None]) -> None:
    """Refuse invalid options before any request."""
    if fail_at not in FAIL_AT:
        raise typer.BadParameter(f"one of {', '.join(FAIL_AT)}, not {fail_at}", param_hint="--fail-at")
    if bool(targets) == everything:
        raise typer.BadParameter("name topics, namespaces, tenants or plan files, or give --all", param_hint="TARGET")
    for option, path in files.items():
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}", param_hint=option)


def exit_status(snapshot: GapSnapshot, fail_at: str) -> int:
    """Return the exit status for a scheduled job; a target that could not be seen is never "ok".

    Args:
        snapshot: The last snapshot.
        fail_at: A value of `FAIL_AT`.
    """
    from timewheel.inspect.gaps import Level

    asked = fail_at != "never"
    if asked and snapshot.level is Level.ALARM:
        return ALARM
    if snapshot.level is Level.WATCH and fail_at == "watch":
        return ATTENTION
    return FAILED if not snapshot.is_whole or (asked and snapshot.unseen) else 0


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
        from timewheel.inspect.gaps.limit import limit_of
        from timewheel.inspect.gaps.log import GapHistory, read_snapshots

        self._admin = admin
        self._names, self._plans = names_and_plans(targets)
        files = [target for target in targets if target not in self._names]
        self.plan_files = {
            plan.due_topic: file for file, plan in zip(files, self._plans, strict=True) if not plan.intake
        }
        self._everything = everything
        self._at_once = at_once
        self._log = log
        self.snapshots: GapHistory = GapHistory() if log is None else read_snapshots(log)
        self.limit: Limit = limit_of(admin, gap_limit_ranges=limit)

    def snapshots_of(
        self, every_ms: int | None, times: int | None
    ) -> Iterator[tuple[GapSnapshot, dict[tuple[str, str], AgainMessages]]]:
        """Yield a single snapshot, or snapshots until Ctrl-C.

        Args:
            every_ms: Interval between snapshots; None: a single snapshot.
            times: Number of snapshots; None: until Ctrl-C.
        """
        for number in count(1):
            yield self._look(quiet=every_ms is not None)
            if every_ms is None or number == times:
                return
            try:
                _pause(self._admin, every_ms)
            except KeyboardInterrupt:
                return

    def _look(self, *, quiet: bool) -> tuple[GapSnapshot, dict[tuple[str, str], AgainMessages]]:
        """Look once; for a single topic also count the messages that an unload would deliver again."""
        from timewheel.inspect.errors import NoSuchTarget
        from timewheel.inspect.gaps import inspect_gaps, topics_of
        from timewheel.inspect.gaps.log import append_snapshot
        from timewheel.inspect.gaps.messages import messages_again
        from timewheel.inspect.gaps.snapshot import with_lost, with_shadows
        from timewheel.inspect.gaps.targets import EVERYTHING
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


def _pause(admin: AdminClient, every_ms: int) -> None:
    from timewheel.core.clock import pause

    pause(admin.clock, every_ms)


@contextmanager
def _screen(console: Console, *, live: bool) -> Iterator[Callable[[Callable[[Console], None]], None]]:
    """Show looks in the same place on a terminal, elsewhere one after the other."""
    if not (live and console.is_terminal):
        yield lambda shown: shown(console)
        return
    from io import StringIO

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


def _print_json(
    snapshot: GapSnapshot, limit: Limit, snapshots: GapHistory, messages: dict[tuple[str, str], AgainMessages]
) -> None:
    import json

    from timewheel.inspect.gaps.facts import snapshot_facts

    print(json.dumps(snapshot_facts(snapshot, limit, snapshots, messages)), flush=True)


def _write_csv(path: Path, snapshot: GapSnapshot, snapshots: GapHistory) -> None:
    import csv

    from timewheel.core.escapes import spreadsheet_cell
    from timewheel.inspect.gaps.facts import subscription_facts

    facts = [{"at_ms": snapshot.at_ms, **subscription_facts(one, snapshots)} for one in snapshot.subscriptions]
    rows = [{name: spreadsheet_cell(value) for name, value in row.items()} for row in facts]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            if rows:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--csv") from error
