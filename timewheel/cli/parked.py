"""`timewheel parked`: lists, shows, replays and discards parked timers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import AdminOptions, ConnectionOptions
from timewheel.cli.groups import command_group
from timewheel.cli.options import AsJson, DryRun, PlanFile, with_options
from timewheel.cli.set_aside import (
    DEFAULT_LIMIT,
    PARKED,
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
    from collections.abc import Sequence
    from pathlib import Path

    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.ops.dead_letters import DeadLetter, DeadLetterFilter, DeadLetters, ReplayResult

__all__ = ["parked"]

parked = command_group("parked", "Look at parked timers, have them handled again, discard them.")

Subscription = Annotated[
    str | None,
    typer.Option("--subscription", help="Whose; needed where the plan has several.", show_default=False),
]


@parked.command("list")
@with_options
def list_(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """List parked timers that are neither replayed nor discarded yet. Nothing is consumed or changed."""
    wanted = desired_of(positions, timer_ids, reason, source)
    plan = _plan(plan_file)
    with cluster.admin() as admin:
        found = _found(admin, plan, _whose(plan, subscription), wanted, most)
        now_ms = admin.clock.now_ms()
    show_list(PARKED, found, now_ms, as_json=as_json)


@parked.command()
@with_options
def show(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """Show parked timers in full, with properties and payload. Nothing is consumed or changed."""
    wanted = desired_of(positions, timer_ids, reason, source)
    plan = _plan(plan_file)
    with cluster.admin() as admin:
        found = _found(admin, plan, _whose(plan, subscription), wanted, most)
    show_dead_letters(PARKED, found, as_json=as_json)


@parked.command()
@with_options
def replay(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="So many become due each second.", show_default="at once")
    ] = None,
    most: Most = DEFAULT_LIMIT,
    dry_run: DryRun = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Replay parked timers: send them to their own subscription again, as first attempts, and then remove them.

    Cancelled timers are also handled. Each timer is published and confirmed before its parked copy is removed: a crash
    in between leaves a copy, never a loss. Exit status: 1 if some timers could not be sent, and remain; 4 if a position
    or an id was not found.
    """
    from timewheel.core.rng import system_random
    from timewheel.ops.dead_letters import replay_parked

    wanted = desired_of(positions, timer_ids, reason, source, must_say=not everything)
    plan = _plan(plan_file)
    whose = _whose(plan, subscription)
    if rate is not None and not math.isfinite(rate):
        raise typer.BadParameter("a number of timers", param_hint="--rate")
    access = cluster.access()
    with access.admin() as admin:
        found = _found(admin, plan, whose, wanted, most)
        if dry_run:
            results = _would(plan, whose, found.dead_letters, admin.clock.now_ms(), rate)
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                results = replay_parked(client, admin, plan, whose, found.dead_letters, rng=system_random(), per_s=rate)
    end(results, found, wanted, "would be handled again" if dry_run else "sent to be handled again", as_json=as_json)


@parked.command()
@with_options
def discard(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_LIMIT,
    dry_run: DryRun = False,
    cluster: ConnectionOptions,
    as_json: AsJson = False,
) -> None:
    """Remove parked timers without handling them. The timers are lost.

    Exit status 4 if a position or an id was not found.
    """
    from timewheel.ops.dead_letters import ReplayResult, drop, parked_box

    wanted = desired_of(positions, timer_ids, reason, source, must_say=not everything)
    plan = _plan(plan_file)
    whose = _whose(plan, subscription)
    access = cluster.access()
    with access.admin() as admin:
        found = _found(admin, plan, whose, wanted, most)
        if dry_run:
            results = [ReplayResult(dead_letter=dead_letter) for dead_letter in found.dead_letters]
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                results = drop(client, parked_box(plan, whose), found.dead_letters, clock=admin.clock)
    end(results, found, wanted, "would be discarded" if dry_run else "discarded", as_json=as_json)


def _plan(plan_file: Path) -> Plan:
    from timewheel.core.plan import Plan

    return Plan.load(plan_file)


def _whose(plan: Plan, subscription: str | None) -> str:
    if subscription is not None:
        return subscription
    first, *others = plan.subscriptions
    if others:
        known = ", ".join(plan.subscriptions)
        raise typer.BadParameter(f"the plan has several: {known}", param_hint="--subscription")
    return first


def _found(admin: AdminClient, plan: Plan, subscription: str, wanted: DeadLetterFilter, most: int) -> DeadLetters:
    from timewheel.ops.dead_letters import dead_letters, parked_box

    return dead_letters(admin, parked_box(plan, subscription), wanted, most=most)


def _would(
    plan: Plan, subscription: str, dead_letters: Sequence[DeadLetter], now_ms: int, rate: float | None
) -> list[ReplayResult]:
    from timewheel.core.routing import Router
    from timewheel.ops.dead_letters import Refused, ReplayResult, handled_again, spread

    router, results = Router(plan), []
    for dead_letter, due_ms in zip(dead_letters, spread(len(dead_letters), now_ms, rate), strict=True):
        decision = handled_again(router, dead_letter, subscription, due_ms, now_ms, 1)
        refused = decision.reason if isinstance(decision, Refused) else None
        results.append(
            ReplayResult(
                dead_letter=dead_letter,
                sent_to=None if isinstance(decision, Refused) else decision.topic,
                refused=refused,
            )
        )
    return results
