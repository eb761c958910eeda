"""`timewheel dead`: look at dead letters, send them again, drop them."""

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
    admin_client,
    connection_of,
)
from timewheel.cli.moments import at, span
from timewheel.cli.terminal import say, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.ops.dead import DeadLetter, DeadLetters, Dealt, Wish

__all__ = ["dead"]

EXIT_REFUSED = 1
MOST_SHOWN_BYTES = 1_000
"""Of a payload."""

dead = typer.Typer(name="dead", no_args_is_help=True, help="Look at dead letters, send them again, drop them.")

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file.", show_default=False)]
Positions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[POSITION]...", help="Such as 12:7, as the list has them.", show_default=False),
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="With this timer id; may be given again.")]
Reason = Annotated[str, typer.Option("--reason", help="With these words in the reason.", show_default=False)]
Source = Annotated[str, typer.Option("--from", help="From a topic with this in its name.", show_default=False)]
Most = Annotated[int, typer.Option("--most", min=1, help="Look at so many entries, the oldest first.")]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of text.")]
DEFAULT_MOST = 1_000


@dead.command("list")
def list_(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
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
    """List the dead letters that nobody has dealt with. Nothing is consumed or changed."""
    import json

    from rich.console import Console

    wish = _wish(positions, timer_ids, reason, source)
    with admin_client(admin_url, token, token_file, tls_ca, connection) as admin:
        found = _found(admin, plan_file, wish, most)
        now_ms = admin.clock.now_ms()
    if as_json:
        print(json.dumps({**_count_facts(found), "letters": [_facts(one) for one in found.letters]}))
    else:
        _show_list(Console(highlight=False), found, now_ms)


@dead.command()
def show(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
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
    """Show all of some dead letters: properties and payload. Nothing is consumed or changed."""
    import base64
    import json

    from rich.console import Console

    wish = _wish(positions, timer_ids, reason, source)
    with admin_client(admin_url, token, token_file, tls_ca, connection) as admin:
        found = _found(admin, plan_file, wish, most)
    if as_json:
        facts = [{**_facts(one), "payload_base64": base64.b64encode(one.payload).decode()} for one in found.letters]
        print(json.dumps({**_count_facts(found), "letters": facts}))
        return
    console = Console(highlight=False)
    for letter in found.letters:
        _show_letter(console, letter)
    if not found.letters:
        say(console, _count(found))


@dead.command()
def replay(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
    everything: Everything = False,
    timer_ids: Ids = None,
    reason: Reason = "",
    source: Source = "",
    due_now: Annotated[bool, typer.Option("--now", help="They are due now, whatever they say.")] = False,
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
    """Send dead letters again, under their ids, to where their producer would send them now; then take them out.

    Each is published and confirmed before it is taken out: a crash in between leaves a copy, never a loss. Exit status
    1 if some could not be sent, and are left.
    """
    from timewheel.ops.dead import Refused, again
    from timewheel.ops.dead import replay as send_again

    wish = _wish(positions, timer_ids, reason, source, must_say=not everything)
    urls = {"service_url": service_url, "admin_url": admin_url}
    given: dict[str, Any] = {**urls, "token": token, "token_file": token_file, "tls_ca": tls_ca, "file": connection}
    access = access_of(connection_of(**given))
    with access.admin() as admin:
        found, plan = _found(admin, plan_file, wish, most), _plan(plan_file)
        if dry_run:
            dealt = _would(found, plan, admin, again, Refused, due_now=due_now)
        else:
            with access.client(operation_timeout_seconds=20) as client:
                dealt = send_again(client, admin, plan, found.topic, found.letters, due_now=due_now)
    _end(dealt, found, "would be sent again" if dry_run else "sent again", as_json=as_json)


@dead.command()
def drop(
    plan_file: PlanFile,
    positions: Positions = None,
    *,
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
    """Take dead letters out without sending them again: they are gone."""
    from timewheel.ops.dead import Dealt
    from timewheel.ops.dead import drop as take_out

    wish = _wish(positions, timer_ids, reason, source, must_say=not everything)
    urls = {"service_url": service_url, "admin_url": admin_url}
    given: dict[str, Any] = {**urls, "token": token, "token_file": token_file, "tls_ca": tls_ca, "file": connection}
    access = access_of(connection_of(**given))
    with access.admin() as admin:
        found = _found(admin, plan_file, wish, most)
        if dry_run:
            dealt = [Dealt(letter=letter) for letter in found.letters]
        else:
            with access.client(operation_timeout_seconds=20) as client:
                dealt = take_out(client, found.topic, found.letters, clock=admin.clock)
    _end(dealt, found, "would be dropped" if dry_run else "dropped", as_json=as_json)


def _plan(plan_file: Path) -> Plan:
    from timewheel.core.plan import Plan

    return Plan.load(plan_file)


def _found(admin: AdminClient, plan_file: Path, wish: Wish, most: int) -> DeadLetters:
    from timewheel.ops.dead import dead_letters

    return dead_letters(admin, _plan(plan_file), wish, most=most)


def _wish(
    positions: Sequence[str] | None,
    timer_ids: Sequence[str] | None,
    reason: str,
    source: str,
    *,
    must_say: bool = False,
) -> Wish:
    from timewheel.ops.dead import LetterPlace, Wish

    places = []
    for text in positions or ():
        place = LetterPlace.parse(text)
        if place is None:
            raise typer.BadParameter(f"{text!r} is no position such as 12:7", param_hint="POSITION")
        places.append(place)
    wish = Wish(places=frozenset(places), timer_ids=frozenset(timer_ids or ()), reason=reason, source=source)
    if must_say and wish.is_open:
        raise typer.BadParameter("name positions, --id, --reason or --from, or say --all", param_hint="POSITION")
    return wish


def _would(
    found: DeadLetters, plan: Plan, admin: AdminClient, again: Any, refused: Any, *, due_now: bool
) -> list[Dealt]:
    from timewheel.core.routing import Router
    from timewheel.ops.dead import Dealt

    router, now_ms = Router(plan), admin.clock.now_ms()
    dealt = []
    for letter in found.letters:
        decision = again(router, letter, now_ms, due_now=due_now)
        is_refused = isinstance(decision, refused)
        dealt.append(
            Dealt(
                letter=letter,
                sent_to=None if is_refused else decision.topic,
                refused=decision.reason if is_refused else None,
            )
        )
    return dealt


def _end(dealt: Sequence[Dealt], found: DeadLetters, done: str, *, as_json: bool) -> None:
    import json

    from rich.console import Console

    refused = [one for one in dealt if one.refused is not None]
    if as_json:
        facts = [{**_facts(one.letter), "sent_to": one.sent_to, "refused": one.refused} for one in dealt]
        print(json.dumps({**_count_facts(found), "letters": facts}))
    else:
        console = Console(highlight=False)
        for one in dealt:
            where = f" to {one.sent_to}" if one.sent_to else ""
            said = f"left: {one.refused}" if one.refused else f"{done}{where}"
            say(console, f"{one.letter.place}  {one.letter.timer_id or 'no id'}  {said}")
        say(
            console,
            f"{len(dealt) - len(refused)} {done}, {len(refused)} left, of {len(found.letters)} that were meant.",
        )
    if refused:
        raise typer.Exit(EXIT_REFUSED)


def _show_list(console: Console, found: DeadLetters, now_ms: int) -> None:
    from timewheel._report.page import Table

    rows = tuple(
        (
            str(one.place),
            one.timer_id or "-",
            span(now_ms - one.died_ms),
            "-" if one.envelope is None else at(one.envelope.due_ms),
            one.source.rpartition("/")[2] or "-",
            one.reason,
        )
        for one in found.letters
    )
    if rows:
        header = ("position", "timer id", "dead for", "due", "from", "reason")
        show_table(console, Table(caption=found.topic, header=header, rows=rows))
    say(console, _count(found))


def _count(found: DeadLetters) -> str:
    seen = f"{len(found.letters):,} of {found.looked_at:,} dead letters in {found.topic} are meant"
    return f"{seen}; there are {found.entries:,} entries, see --most." if _is_cut(found) else f"{seen}."


def _is_cut(found: DeadLetters) -> bool:
    return found.entries > found.looked_at


def _count_facts(found: DeadLetters) -> dict[str, Any]:
    return {"topic": found.topic, "entries": found.entries, "looked_at": found.looked_at}


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "position": str(letter.place),
        "timer_id": letter.timer_id,
        "due_ms": None if letter.envelope is None else letter.envelope.due_ms,
        "hops": None if letter.envelope is None else letter.envelope.hops,
        "reason": letter.reason,
        "from": letter.source,
        "died_ms": letter.died_ms,
        "key": letter.key,
        "properties": dict(letter.properties),
        "payload_bytes": len(letter.payload),
    }


def _show_letter(console: Console, letter: DeadLetter) -> None:
    say(console, f"{letter.place}  {letter.timer_id or 'no id'}", style="bold")
    lines = [("reason", letter.reason), ("from", letter.source or "-"), ("dead", at(letter.died_ms))]
    if letter.envelope is not None:
        lines += [("due", at(letter.envelope.due_ms)), ("hops", str(letter.envelope.hops))]
    if letter.key is not None:
        lines.append(("key", letter.key))
    lines += [("property", f"{name} = {value}") for name, value in sorted(letter.properties.items())]
    shown = letter.payload[:MOST_SHOWN_BYTES]
    rest = f" and {len(letter.payload) - len(shown):,} bytes more" if len(letter.payload) > len(shown) else ""
    lines.append(("payload", f"{len(letter.payload):,} bytes: {shown!r}{rest}"))
    for name, text in lines:
        say(console, f"{name:9}{text}", indent=2)
