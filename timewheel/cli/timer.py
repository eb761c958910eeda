"""`timewheel timer`: cancel timers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import (
    AdminUrl,
    ConnectionFile,
    ServiceUrl,
    Token,
    TokenFile,
    TrustFile,
    access_of,
    connection_of,
)
from timewheel.cli.moments import at
from timewheel.cli.terminal import say

if TYPE_CHECKING:
    from timewheel.core.cut_offs import Cancellation

__all__ = ["timer"]

timer = typer.Typer(name="timer", no_args_is_help=True, help="Cancel timers.")


@timer.callback()
def _timer() -> None:
    """Cancel timers."""


@timer.command()
def cancel(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file.", show_default=False)],
    timer_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Timer ids.", show_default=False)
    ] = None,
    *,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="All timers of this group so far; may be given again.")
    ] = None,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of text.")] = False,
) -> None:
    """Cancel timers by their ids, or whole groups. What was not handed out yet will not be.

    Nobody knows here whether there is such a timer, nor when it is due, so nothing more is promised.
    """
    import json

    from rich.console import Console

    from timewheel.core.plan import Plan
    from timewheel.producers import DelayedProducer

    if not timer_ids and not groups:
        raise typer.BadParameter("name timer ids, or --group", param_hint="ID")
    plan = Plan.load(plan_file)
    urls = {"service_url": service_url, "admin_url": admin_url}
    given: dict[str, Any] = {**urls, "token": token, "token_file": token_file, "tls_ca": tls_ca, "file": connection}
    with (
        access_of(connection_of(**given)).client(operation_timeout_seconds=20) as client,
        DelayedProducer(client, plan) as producer,
    ):
        done = [producer.cancel(timer_id) for timer_id in timer_ids or ()]
        done += [producer.cancel_group(group) for group in groups or ()]
    if as_json:
        print(json.dumps([_facts(one) for one in done]))
        return
    console = Console(highlight=False)
    for one in done:
        kind, name, _, forget_ms = one.cut_off
        what = name if kind == "timer" else f"group {name}"
        say(console, f"{what}  what was not handed out yet will not be; remembered until {at(forget_ms)}")


def _facts(one: Cancellation) -> dict[str, Any]:
    return {
        one.cut_off.kind: one.cut_off.name,
        "answer": one.answer.value,
        "confirmed_ms": one.confirmed_ms,
        "cut": one.cut_off.cut,
        "forget_ms": one.cut_off.forget_ms,
    }
