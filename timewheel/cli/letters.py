"""Selection and output of letters, shared by `timewheel dead` and `timewheel parked`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from timewheel.cli.moments import at
from timewheel.cli.terminal import say, show_table
from timewheel.core.durations import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.ops.letters import Dealt, Letter, Letters, Wish

__all__ = [
    "DEAD",
    "DEFAULT_MOST",
    "PARKED",
    "AsJson",
    "DryRun",
    "Everything",
    "Ids",
    "Kind",
    "Most",
    "PlanFile",
    "Positions",
    "Reason",
    "Source",
    "end",
    "show_letters",
    "show_list",
    "wish_of",
]

EXIT_REFUSED = 1
EXIT_NOT_FOUND = 4
MOST_SHOWN_BYTES = 1_000
"""Bytes of a payload that are printed."""
DEFAULT_MOST = 1_000

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


class Kind(NamedTuple):
    """Words for a kind of letters.

    Args:
        many: Their plural.
        since: Title of the column with their age.
    """

    many: str
    since: str


DEAD = Kind("dead letters", "dead for")
PARKED = Kind("parked timers", "parked for")


def wish_of(
    positions: Sequence[str] | None,
    timer_ids: Sequence[str] | None,
    reason: str,
    source: str,
    *,
    must_say: bool = False,
) -> Wish:
    """Return the selection that the options make.

    Raises:
        typer.BadParameter: A position is malformed, or nothing is selected although ``must_say``.
    """
    from timewheel.ops.letters import LetterPlace, Wish

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


def show_list(kind: Kind, found: Letters, now_ms: int, *, as_json: bool) -> None:
    """Print a table of letters, or JSON."""
    import json

    from rich.console import Console

    if as_json:
        print(json.dumps({**_count_facts(found), "letters": [_facts(one) for one in found.letters]}))
    else:
        _show_table(Console(highlight=False), kind, found, now_ms)


def show_letters(kind: Kind, found: Letters, *, as_json: bool) -> None:
    """Print letters in full."""
    import base64
    import json

    from rich.console import Console

    if as_json:
        facts = [{**_facts(one), "payload_base64": base64.b64encode(one.payload).decode()} for one in found.letters]
        print(json.dumps({**_count_facts(found), "letters": facts}))
        return
    console = Console(highlight=False)
    for letter in found.letters:
        _show_letter(console, kind, letter)
    if not found.letters:
        say(console, _count(kind, found))


def end(dealt: Sequence[Dealt], found: Letters, wish: Wish, done: str, *, as_json: bool) -> None:
    """Print the result for each letter, and the selected positions and ids that were not found; then end the command.

    Raises:
        typer.Exit: With status 1 if some letters remain; 4 if a position or an id was not found.
    """
    import json

    from rich.console import Console

    refused = [one for one in dealt if one.refused is not None]
    missing = wish.unmet(found.letters)
    if as_json:
        facts = [{**_facts(one.letter), "sent_to": one.sent_to, "refused": one.refused} for one in dealt]
        print(json.dumps({**_count_facts(found), "letters": facts, "missing": list(missing)}))
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
        unseen = "; not all entries were looked at, see --most" if found.is_cut else ""
        for named in missing:
            say(console, f"{named}: not there, or not as was said{unseen}")
    if refused:
        raise typer.Exit(EXIT_REFUSED)
    if missing:
        raise typer.Exit(EXIT_NOT_FOUND)


def _show_table(console: Console, kind: Kind, found: Letters, now_ms: int) -> None:
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
        for one in found.letters
    )
    if rows:
        header = ("position", "timer id", kind.since, "due", "from", "reason")
        show_table(console, Table(caption=found.topic, header=header, rows=rows))
    say(console, _count(kind, found))


def _count(kind: Kind, found: Letters) -> str:
    seen = f"{len(found.letters):,} of {found.looked_at:,} {kind.many} in {found.topic} are meant"
    return f"{seen}; there are {found.entries:,} entries, see --most." if found.is_cut else f"{seen}."


def _count_facts(found: Letters) -> dict[str, Any]:
    return {"topic": found.topic, "entries": found.entries, "looked_at": found.looked_at}


def _facts(letter: Letter) -> dict[str, Any]:
    return {
        "position": str(letter.place),
        "timer_id": letter.timer_id,
        "due_ms": None if letter.envelope is None else letter.envelope.due_ms,
        "hops": None if letter.envelope is None else letter.envelope.hops,
        "attempt": None if letter.envelope is None else letter.envelope.life.attempt,
        "reason": letter.reason,
        "error": letter.error,
        "from": letter.source,
        "since_ms": letter.since_ms,
        "key": letter.key,
        "properties": dict(letter.properties),
        "payload_bytes": len(letter.payload),
    }


def _show_letter(console: Console, kind: Kind, letter: Letter) -> None:
    say(console, f"{letter.place}  {letter.timer_id or 'no id'}", style="bold")
    lines = [("reason", letter.reason)]
    if letter.error:
        lines.append(("error", letter.error))
    lines += [("from", letter.source or "-"), (kind.since.split()[0], at(letter.since_ms))]
    if letter.envelope is not None:
        lines += [("due", at(letter.envelope.due_ms)), ("hops", str(letter.envelope.hops))]
        lines += [("attempts", str(letter.envelope.life.attempt + 1))] if letter.envelope.life.attempt else []
    if letter.key is not None:
        lines.append(("key", letter.key))
    lines += [("property", f"{name} = {value}") for name, value in sorted(letter.properties.items())]
    shown = letter.payload[:MOST_SHOWN_BYTES]
    rest = f" and {len(letter.payload) - len(shown):,} bytes more" if len(letter.payload) > len(shown) else ""
    lines.append(("payload", f"{len(letter.payload):,} bytes: {shown!r}{rest}"))
    for name, text in lines:
        say(console, f"{name:9}{text}", indent=2)
