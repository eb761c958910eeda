"""`timewheel cancellations`: lists cancellations, and compacts their log so that it can be read in seconds."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.moments import at
from timewheel.cli.options import FAILED, AsJson, PlanFile, command_group, with_options
from timewheel.cli.terminal import render, say, show_rows, terminal
from timewheel.core.clock import SystemClock
from timewheel.core.errors import CancelRefused, TimewheelError, TopologyError
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.cli.access import Access
    from timewheel.client.cancellation_log import CancellationLog
    from timewheel.core.cancellation_table import CancellationTable
    from timewheel.core.cancellations import Cancellation

READ_TIMEOUT_MS = 120_000
ASIDE_TIMEOUT_MS = 30_000
"""Read timeout of a command whose result does not depend on the log."""
DEFAULT_LIMIT = 100

cancellations = command_group("cancellations", "List cancellations; compact their log.")


@cancellations.command("list")
@with_options
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
    from rich.console import Console

    access = cluster.access()
    with reading(_plan(plan_file), access) as (log, _):
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

    render({"live": len(live), "cancellations": [_facts(one) for one in shown]}, show, as_json=as_json)


@cancellations.command()
@with_options
def compact(plan_file: PlanFile, *, cluster: ConnectionOptions, as_json: AsJson = False) -> None:
    """Compact the log of cancellations: rewrite the cancellations in effect in packs, and let the broker remove all
    earlier entries.

    Relays do this by themselves when it is worthwhile. Exit status 1 if another process is compacting the log now, or
    if the log cannot be read.
    """
    from timewheel.relay.compactor import compact as pack

    access = cluster.access()
    with reading(_plan(plan_file), access) as (log, client):
        live = pack(client, log)
    written = counted(live or 0, "cancellation in effect was", "cancellations in effect were")
    if live is not None or as_json:
        render({"live": live}, f"{written} written in packs to {log.topic}", as_json=as_json)
    else:
        why = "another process is compacting it, or it could not be read to its end"
        say(terminal(to_stderr=True), f"{log.topic} was not compacted: {why}.")
    raise typer.Exit(FAILED if live is None else 0)


def _plan(plan_file: Path) -> Plan:
    return Plan.load(plan_file)


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


def _facts(one: Cancellation) -> dict[str, Any]:
    return {one.kind: one.name, "cut": one.cut, "forget_ms": one.forget_ms}
