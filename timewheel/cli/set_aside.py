"""Selection and output of dead letters, shared by `timewheel dead-letters` and `timewheel parked`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from timewheel.cli.exit_status import ALARM, FAILED
from timewheel.cli.moments import at
from timewheel.cli.terminal import say, show_table
from timewheel.core.durations import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.ops.dead_letters import DeadLetter, DeadLetterFilter, DeadLetters, ReplayResult

__all__ = [
    "DEAD",
    "DEFAULT_LIMIT",
    "PARKED",
    "Everything",
    "Ids",
    "Kind",
    "Most",
    "Positions",
    "Reason",
    "Source",
    "desired_of",
    "end",
    "show_dead_letters",
    "show_list",
]

MAX_SHOWN_BYTES = 1_000
"""Bytes of a payload that are printed."""
DEFAULT_LIMIT = 1_000

Positions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[POSITION]...", help="Such as 12:7, as the list has them.", show_default=False),
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="With this timer id; may be given again.")]
Reason = Annotated[str, typer.Option("--reason", help="With these words in the reason.", show_default=False)]
Source = Annotated[str, typer.Option("--from", help="From a topic with this in its name.", show_default=False)]
Most = Annotated[int, typer.Option("--limit", min=1, help="Look at so many entries, the oldest first.")]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]


class Kind(NamedTuple):
    """Words for a kind of dead letters.

    Args:
        many: Their plural.
        since: Title of the column with their age.
    """

    many: str
    since: str


DEAD = Kind("dead letters", "dead for")
PARKED = Kind("parked timers", "parked for")


def desired_of(
    positions: Sequence[str] | None,
    timer_ids: Sequence[str] | None,
    reason: str,
    source: str,
    *,
    must_say: bool = False,
) -> DeadLetterFilter:
    """Return the selection that the options make.

    Raises:
        typer.BadParameter: A position is malformed, or nothing is selected although ``must_say``.
    """
    from timewheel.ops.dead_letters import DeadLetterFilter, DeadLetterPosition

    places = []
    for text in positions or ():
        place = DeadLetterPosition.parse(text)
        if place is None:
            raise typer.BadParameter(f"{text!r} is no position such as 12:7", param_hint="POSITION")
        places.append(place)
    wanted = DeadLetterFilter(
        places=frozenset(places), timer_ids=frozenset(timer_ids or ()), reason=reason, source=source
    )
    if must_say and wanted.is_open:
        raise typer.BadParameter("name positions, --id, --reason or --from, or say --all", param_hint="POSITION")
    return wanted


def show_list(kind: Kind, found: DeadLetters, now_ms: int, *, as_json: bool) -> None:
    """Print a table of dead letters, or JSON."""
    import json

    from rich.console import Console

    if as_json:
        print(json.dumps({**_count_facts(found), "dead_letters": [_facts(one) for one in found.dead_letters]}))
    else:
        _show_table(Console(highlight=False), kind, found, now_ms)


def show_dead_letters(kind: Kind, found: DeadLetters, *, as_json: bool) -> None:
    """Print letters in full."""
    import base64
    import json

    from rich.console import Console

    if as_json:
        facts = [
            {**_facts(one), "payload_base64": base64.b64encode(one.payload).decode()} for one in found.dead_letters
        ]
        print(json.dumps({**_count_facts(found), "dead_letters": facts}))
        return
    console = Console(highlight=False)
    for dead_letter in found.dead_letters:
        _show_dead_letter(console, kind, dead_letter)
    if not found.dead_letters:
        say(console, _count(kind, found))


def end(
    results: Sequence[ReplayResult], found: DeadLetters, wanted: DeadLetterFilter, done: str, *, as_json: bool
) -> None:
    """Print the result for each letter, and the selected positions and ids that were not found; then end the command.

    Raises:
        typer.Exit: With status 1 if some letters remain; 4 if a position or an id was not found.
    """
    import json

    from rich.console import Console

    refused = [one for one in results if one.refused is not None]
    missing = wanted.unmet(found.dead_letters)
    if as_json:
        facts = [{**_facts(one.dead_letter), "sent_to": one.sent_to, "refused": one.refused} for one in results]
        print(json.dumps({**_count_facts(found), "dead_letters": facts, "missing": list(missing)}))
    else:
        console = Console(highlight=False)
        for one in results:
            where = f" to {one.sent_to}" if one.sent_to else ""
            said = f"left: {one.refused}" if one.refused else f"{done}{where}"
            say(console, f"{one.dead_letter.place}  {one.dead_letter.timer_id or 'no id'}  {said}")
        say(
            console,
            f"{len(results) - len(refused)} {done}, {len(refused)} left, of {len(found.dead_letters)} selected.",
        )
        unseen = "; not all entries were looked at, see --limit" if found.is_cut else ""
        for named in missing:
            say(console, f"{named}: not there, or not as was said{unseen}")
    if refused:
        raise typer.Exit(FAILED)
    if missing:
        raise typer.Exit(ALARM)


def _show_table(console: Console, kind: Kind, found: DeadLetters, now_ms: int) -> None:
    from timewheel._report.page import Table

    rows = tuple(
        (
            str(one.place),
            one.timer_id or "-",
            span(now_ms - one.since_ms),
            "-" if one.envelope is None else at(one.envelope.due_ms),
            one.source.rpartition("/")[2] or "-",
            one.reason,
        )
        for one in found.dead_letters
    )
    if rows:
        header = ("position", "timer id", kind.since, "due", "from", "reason")
        show_table(console, Table(caption=found.topic, header=header, rows=rows))
    say(console, _count(kind, found))


def _count(kind: Kind, found: DeadLetters) -> str:
    seen = f"{len(found.dead_letters):,} of {found.inspected:,} {kind.many} in {found.topic} are selected"
    return f"{seen}; there are {found.entries:,} entries, see --limit." if found.is_cut else f"{seen}."


def _count_facts(found: DeadLetters) -> dict[str, Any]:
    return {"topic": found.topic, "entries": found.entries, "inspected": found.inspected}


def _facts(dead_letter: DeadLetter) -> dict[str, Any]:
    return {
        "position": str(dead_letter.place),
        "timer_id": dead_letter.timer_id,
        "due_ms": None if dead_letter.envelope is None else dead_letter.envelope.due_ms,
        "hops": None if dead_letter.envelope is None else dead_letter.envelope.hops,
        "attempt": None if dead_letter.envelope is None else dead_letter.envelope.life.attempt,
        "reason": dead_letter.reason,
        "error": dead_letter.error,
        "from": dead_letter.source,
        "since_ms": dead_letter.since_ms,
        "key": dead_letter.key,
        "properties": dict(dead_letter.properties),
        "payload_bytes": len(dead_letter.payload),
    }


def _show_dead_letter(console: Console, kind: Kind, dead_letter: DeadLetter) -> None:
    say(console, f"{dead_letter.place}  {dead_letter.timer_id or 'no id'}", style="bold")
    lines = [("reason", dead_letter.reason)]
    if dead_letter.error:
        lines.append(("error", dead_letter.error))
    lines += [("from", dead_letter.source or "-"), (kind.since.split()[0], at(dead_letter.since_ms))]
    if dead_letter.envelope is not None:
        lines += [("due", at(dead_letter.envelope.due_ms)), ("hops", str(dead_letter.envelope.hops))]
        lines += [("attempts", str(dead_letter.envelope.life.attempt + 1))] if dead_letter.envelope.life.attempt else []
    if dead_letter.key is not None:
        lines.append(("key", dead_letter.key))
    lines += [("property", f"{name} = {value}") for name, value in sorted(dead_letter.properties.items())]
    shown = dead_letter.payload[:MAX_SHOWN_BYTES]
    rest = f" and {len(dead_letter.payload) - len(shown):,} bytes more" if len(dead_letter.payload) > len(shown) else ""
    lines.append(("payload", f"{len(dead_letter.payload):,} bytes: {shown!r}{rest}"))
    for name, text in lines:
        say(console, f"{name:9}{text}", indent=2)
