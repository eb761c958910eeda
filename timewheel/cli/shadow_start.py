"""`timewheel shadow start`: what a shadow of a topic would do; and that it is to be done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import AdminUrl, ConnectionFile, ServiceUrl, Token, TokenFile, TrustFile
from timewheel.cli.shadow_looks import EXIT_ATTENTION, AsJson, access_to, reading_entries
from timewheel.cli.shadow_said import show_survey

if TYPE_CHECKING:
    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan

__all__ = ["start"]


def start(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|TOPIC",
            help="A plan file; or, with --out, persistent://tenant/namespace/topic to make a plan for.",
            show_default=False,
        ),
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be moved.")] = False,
    entries: Annotated[
        int, typer.Option("--entries", min=100, max=100_000_000, help="Entries to read in each partition.")
    ] = 100_000,
    despite: Annotated[
        bool, typer.Option("--despite-refusals", help="Start although something stands against it: you know better.")
    ] = False,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a plan's topics and begin to shadow its due topic; with --dry-run only show what that would do.

    Moving is what `timewheel shadow run` does. Exit status 3 if something stands against it, and nothing was changed.
    """
    import json

    from rich.console import Console

    from timewheel.core.plan import Plan
    from timewheel.shadow.survey import survey_facts
    from timewheel.shadow.surveying import survey

    plan = Plan.load(Path(target))
    urls = {"service_url": service_url, "admin_url": admin_url}
    given: dict[str, Any] = {**urls, "token": token, "token_file": token_file, "tls_ca": tls_ca, "file": connection}
    access = access_to(**given)
    console = Console(highlight=False)
    with access.admin() as admin:
        with reading_entries(Console(stderr=True)) as tell:
            found = survey(admin, access.dialer(), plan, target=target, most=entries, tell=tell)
        begins = not dry_run and (despite or not found.is_refused)
        if not as_json:
            show_survey(console, found)
        if begins:
            _begin(admin, plan)
    if as_json:
        print(json.dumps({**survey_facts(found), "started": begins}))
    elif begins:
        console.print(f"shadowing is wished for: run timewheel shadow run {target}", markup=False, soft_wrap=True)
    if found.is_refused and not begins:
        raise typer.Exit(EXIT_ATTENTION)


def _begin(admin: AdminClient, plan: Plan) -> None:
    """Make the topics, and note the wish."""
    from timewheel.ops.provision import ensure
    from timewheel.shadow.starting import wish_for_shadow

    now_ms = admin.clock.now_ms()
    ensure(admin, plan, now_ms=now_ms)
    wish_for_shadow(admin, plan, now_ms)
