"""`timewheel dead-letters`: lists, shows, replays and drops dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import AdminOptions, ConnectionOptions
from timewheel.cli.groups import command_group
from timewheel.cli.options import AsJson, DryRun, PlanFile, with_options
from timewheel.cli.set_aside import (
    DEAD,
    DEFAULT_LIMIT,
    Everything,
    Ids,
    Most,
    Positions,
    Reason,
    Source,
    desired_of,
    end,
    show_dead_letters,
    show_list,
)

if TYPE_CHECKING:
    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.ops.dead_letters import DeadLetterFilter, DeadLetters, ReplayResult

__all__ = ["dead_letters"]

dead_letters = command_group("dead-letters", "Look at dead letters, send them again, drop them.")


@dead_letters.command("list")
@with_options
def list_(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """List dead letters that are neither replayed nor dropped yet. Nothing is consumed or changed."""
    wanted = desired_of(positions, timer_ids, reason, source)
    with cluster.admin() as admin:
        found = _found(admin, plan_file, wanted, most)
        now_ms = admin.clock.now_ms()
    show_list(DEAD, found, now_ms, as_json=as_json)


@dead_letters.command()
@with_options
def show(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """Show dead letters in full, with properties and payload. Nothing is consumed or changed."""
    wanted = desired_of(positions, timer_ids, reason, source)
    with cluster.admin() as admin:
        found = _found(admin, plan_file, wanted, most)
    show_dead_letters(DEAD, found, as_json=as_json)


@dead_letters.command()
@with_options
def replay(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    due_now: Annotated[bool, typer.Option("--now", help="They are due now, whatever they say.")] = False,
    most: Most = DEFAULT_LIMIT,
    dry_run: DryRun = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Replay dead letters: send them again under their ids, to the topic that their producer would choose now, and then
    remove them.

    Each message is published and confirmed before its dead letter is removed: a crash in between leaves a copy, never a
    loss. Exit status: 1 if some dead letters could not be sent, and remain; 4 if a position or an id was not found.
    """
    from timewheel.ops.dead_letters import Refused, again
    from timewheel.ops.dead_letters import replay as send_again

    wanted = desired_of(positions, timer_ids, reason, source, must_say=not everything)
    access = cluster.access()
    with access.admin() as admin:
        found, plan = _found(admin, plan_file, wanted, most), _plan(plan_file)
        if dry_run:
            results = _would(found, plan, admin, again, Refused, due_now=due_now)
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                results = send_again(client, admin, plan, found.dead_letters, due_now=due_now)
    end(results, found, wanted, "would be sent again" if dry_run else "sent again", as_json=as_json)


@dead_letters.command()
@with_options
def drop(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    dry_run: DryRun = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters without sending them again. Their messages are lost.

    Exit status 4 if a position or an id was not found.
    """
    from timewheel.ops.dead_letters import ReplayResult, dead_letter_box
    from timewheel.ops.dead_letters import drop as take_out

    wanted = desired_of(positions, timer_ids, reason, source, must_say=not everything)
    access = cluster.access()
    with access.admin() as admin:
        found, plan = _found(admin, plan_file, wanted, most), _plan(plan_file)
        if dry_run:
            results = [ReplayResult(dead_letter=dead_letter) for dead_letter in found.dead_letters]
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                results = take_out(client, dead_letter_box(plan), found.dead_letters, clock=admin.clock)
    end(results, found, wanted, "would be dropped" if dry_run else "dropped", as_json=as_json)


def _plan(plan_file: Path) -> Plan:
    from timewheel.core.plan import Plan

    return Plan.load(plan_file)


def _found(admin: AdminClient, plan_file: Path, wanted: DeadLetterFilter, most: int) -> DeadLetters:
    from timewheel.ops.dead_letters import dead_letter_box, dead_letters

    return dead_letters(admin, dead_letter_box(_plan(plan_file)), wanted, most=most)


def _would(
    found: DeadLetters, plan: Plan, admin: AdminClient, again: Any, refused: Any, *, due_now: bool
) -> list[ReplayResult]:
    from timewheel.core.routing import Router
    from timewheel.ops.dead_letters import ReplayResult

    router, now_ms = Router(plan), admin.clock.now_ms()
    results = []
    for dead_letter in found.dead_letters:
        decision = again(router, dead_letter, now_ms, due_now=due_now)
        is_refused = isinstance(decision, refused)
        results.append(
            ReplayResult(
                dead_letter=dead_letter,
                sent_to=None if is_refused else decision.topic,
                refused=decision.reason if is_refused else None,
            )
        )
    return results
