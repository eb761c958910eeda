"""`timewheel parked`: lists, shows, replays and discards parked timers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import (
    AdminUrl,
    ConnectionFile,
    ServiceUrl,
    Token,
    TokenFile,
    TrustFile,
    access_to,
    admin_client,
)
from timewheel.cli.groups import command_group
from timewheel.cli.letters import (
    DEFAULT_MOST,
    PARKED,
    AsJson,
    DryRun,
    Everything,
    Ids,
    Most,
    PlanFile,
    Positions,
    Reason,
    Source,
    end,
    show_letters,
    show_list,
    wish_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.ops.letters import Dealt, Letter, Letters, Wish

__all__ = ["parked"]

parked = command_group("parked", "Look at parked timers, have them handled again, discard them.")

Subscription = Annotated[
    str | None,
    typer.Option("--subscription", help="Whose; needed where the plan has several.", show_default=False),
]


@parked.command("list")
def list_(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_MOST,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: AsJson = False,
) -> None:
    """List parked timers that are neither replayed nor discarded yet. Nothing is consumed or changed."""
    wish = wish_of(positions, timer_ids, reason, source)
    plan = _plan(plan_file)
    with admin_client(admin_url, token, token_file, tls_ca, connection) as admin:
        found = _found(admin, plan, _whose(plan, subscription), wish, most)
        now_ms = admin.clock.now_ms()
    show_list(PARKED, found, now_ms, as_json=as_json)


@parked.command()
def show(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_MOST,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: AsJson = False,
) -> None:
    """Show parked timers in full, with properties and payload. Nothing is consumed or changed."""
    wish = wish_of(positions, timer_ids, reason, source)
    plan = _plan(plan_file)
    with admin_client(admin_url, token, token_file, tls_ca, connection) as admin:
        found = _found(admin, plan, _whose(plan, subscription), wish, most)
    show_letters(PARKED, found, as_json=as_json)


@parked.command()
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
    most: Most = DEFAULT_MOST,
    dry_run: DryRun = False,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: AsJson = False,
) -> None:
    """Replay parked timers: send them to their own subscription again, as first attempts, and then remove them.

    Cancelled timers are also handled. Each timer is published and confirmed before its parked copy is removed: a crash
    in between leaves a copy, never a loss. Exit status: 1 if some timers could not be sent, and remain; 4 if a position
    or an id was not found.
    """
    from timewheel.core.chance import system_chance
    from timewheel.ops.letters import replay_parked

    wish = wish_of(positions, timer_ids, reason, source, must_say=not everything)
    plan = _plan(plan_file)
    whose = _whose(plan, subscription)
    if rate is not None and not math.isfinite(rate):
        raise typer.BadParameter("a number of timers", param_hint="--rate")
    access = access_to(service_url, admin_url, token, token_file, tls_ca, connection)
    with access.admin() as admin:
        found = _found(admin, plan, whose, wish, most)
        if dry_run:
            dealt = _would(plan, whose, found.letters, admin.clock.now_ms(), rate)
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                dealt = replay_parked(client, admin, plan, whose, found.letters, chance=system_chance(), per_s=rate)
    end(dealt, found, wish, "would be handled again" if dry_run else "sent to be handled again", as_json=as_json)


@parked.command()
def discard(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    subscription: Subscription = None,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    most: Most = DEFAULT_MOST,
    dry_run: DryRun = False,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove parked timers without handling them. The timers are lost.

    Exit status 4 if a position or an id was not found.
    """
    from timewheel.ops.letters import Dealt, drop, parked_box

    wish = wish_of(positions, timer_ids, reason, source, must_say=not everything)
    plan = _plan(plan_file)
    whose = _whose(plan, subscription)
    access = access_to(service_url, admin_url, token, token_file, tls_ca, connection)
    with access.admin() as admin:
        found = _found(admin, plan, whose, wish, most)
        if dry_run:
            dealt = [Dealt(letter=letter) for letter in found.letters]
        else:
            with access.client(plan.due_topic, operation_timeout_seconds=20) as client:
                dealt = drop(client, parked_box(plan, whose), found.letters, clock=admin.clock)
    end(dealt, found, wish, "would be discarded" if dry_run else "discarded", as_json=as_json)


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


def _found(admin: AdminClient, plan: Plan, subscription: str, wish: Wish, most: int) -> Letters:
    from timewheel.ops.letters import letters, parked_box

    return letters(admin, parked_box(plan, subscription), wish, most=most)


def _would(plan: Plan, subscription: str, letters: Sequence[Letter], now_ms: int, rate: float | None) -> list[Dealt]:
    from timewheel.core.routing import Router
    from timewheel.ops.letters import Dealt, Refused, handled_again, spread

    router, dealt = Router(plan), []
    for letter, due_ms in zip(letters, spread(len(letters), now_ms, rate), strict=True):
        decision = handled_again(router, letter, subscription, due_ms, now_ms, 1)
        refused = decision.reason if isinstance(decision, Refused) else None
        dealt.append(
            Dealt(letter=letter, sent_to=None if isinstance(decision, Refused) else decision.topic, refused=refused)
        )
    return dealt
