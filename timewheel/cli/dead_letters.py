"""`timewheel dead-letters` and `timewheel parked`: list, show, replay and remove dead letters or parked timers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Argument, Option

from timewheel.cli.connecting import AdminOptions, ConnectionOptions
from timewheel.cli.options import ALARM, FAILED, AsJson, DryRun, PlanFile, at, command_group, with_options
from timewheel.cli.terminal import render, say, show_rows
from timewheel.core.durations import span
from timewheel.core.plan import Plan
from timewheel.core.rng import system_random
from timewheel.core.routing import Router

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.dead_letters import (
        Box,
        DeadLetter,
        DeadLetterFilter,
        DeadLetters,
        Refused,
        ReplayResult,
        ReplayTarget,
    )

MAX_SHOWN_BYTES = 1_000  # bytes of a payload that are printed
TIMEOUT_S = 20

Everything = Annotated[bool, Option("--all", help="Select all.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selected dead letters of a plan: a group of options, with the words and the topic of their kind."""

    many: ClassVar[str] = "dead letters"
    since: ClassVar[str] = "dead for"  # title of the column with their age

    plan_file: PlanFile
    positions: Annotated[
        list[str] | None,
        Argument(metavar="[POSITION]...", help="Positions such as 12:7, from the list.", show_default=False),
    ] = None
    timer_ids: Annotated[list[str] | None, Option("--id", help="Only with this timer id; may be given again.")] = None
    reason: Annotated[str, Option(help="Only with these words in the reason.", show_default=False)] = ""
    source: Annotated[
        str, Option("--from", help="Only from topics with this text in the name.", show_default=False)
    ] = ""
    most: Annotated[int, Option("--limit", min=1, help="Number of entries to look at, the oldest first.")] = 1_000

    def filter(self, *, must_say: bool = False) -> DeadLetterFilter:
        """Return the selection; with ``must_say``, to select nothing is a usage error."""
        from timewheel.dead_letters import DeadLetterFilter, DeadLetterPosition

        places = {text: DeadLetterPosition.parse(text) for text in self.positions or ()}
        for text, place in places.items():
            if place is None:
                raise typer.BadParameter(f"{text!r} is no position such as 12:7", param_hint="POSITION")
        wanted = DeadLetterFilter(
            places=frozenset(place for place in places.values() if place is not None),
            timer_ids=frozenset(self.timer_ids or ()),
            reason=self.reason,
            source=self.source,
        )
        if must_say and wanted.is_open:
            raise typer.BadParameter("give positions, --id, --reason, --from or --all", param_hint="POSITION")
        return wanted

    def box(self, plan: Plan) -> Box:
        """Return the topic of these dead letters."""
        from timewheel.dead_letters import dead_letter_box

        return dead_letter_box(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection(Selection):
    """The selected parked timers of a subscription."""

    many: ClassVar[str] = "parked timers"
    since: ClassVar[str] = "parked for"

    subscription: Annotated[
        str | None,
        Option(help="Subscription that parked the timers; required if the plan has several.", show_default=False),
    ] = None

    def whose(self, plan: Plan) -> str:
        """Return the subscription; a plan with several needs it to be given."""
        if self.subscription is not None:
            return self.subscription
        first, *others = plan.subscriptions
        if others:
            known = ", ".join(plan.subscriptions)
            raise typer.BadParameter(f"the plan has several: {known}", param_hint="--subscription")
        return first

    def box(self, plan: Plan) -> Box:
        """Return the topic of the parked timers."""
        from timewheel.dead_letters import parked_box

        return parked_box(plan, self.whose(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Selection):
    """The selected dead letters, and how they are replayed."""

    would: ClassVar[str] = "would be sent again"
    done: ClassVar[str] = "sent again"

    due_now: Annotated[bool, Option("--now", help="Make the messages due now, instead of at their due times.")] = False

    def decisions(self, router: Router, letters: Sequence[DeadLetter], now_ms: int) -> Iterator[ReplayTarget | Refused]:
        """Yield the destination of each dead letter, or why it has none."""
        from timewheel.dead_letters import again

        return (again(router, letter, now_ms, due_now=self.due_now) for letter in letters)

    def send(self, client: Any, admin: AdminClient, plan: Plan, letters: Sequence[DeadLetter]) -> list[ReplayResult]:
        """Replay the dead letters."""
        from timewheel.dead_letters import replay

        return replay(client, admin, plan, letters, due_now=self.due_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedReplay(ParkedSelection):
    """The selected parked timers, and how they are replayed."""

    would: ClassVar[str] = "would be handled again"
    done: ClassVar[str] = "sent to be handled again"

    rate: Annotated[
        float | None, Option(min=0.001, help="Number of timers that become due each second.", show_default="at once")
    ] = None

    def __post_init__(self) -> None:
        if self.rate is not None and not math.isfinite(self.rate):
            raise typer.BadParameter("a number of timers", param_hint="--rate")

    def decisions(self, router: Router, letters: Sequence[DeadLetter], now_ms: int) -> Iterator[ReplayTarget | Refused]:
        """Yield the destination of each parked timer, or why it has none."""
        from timewheel.dead_letters import handled_again, spread

        whose, due_ms = self.whose(router.plan), spread(len(letters), now_ms, self.rate)
        return (handled_again(router, letter, whose, next(due_ms), now_ms, 1) for letter in letters)

    def send(self, client: Any, admin: AdminClient, plan: Plan, letters: Sequence[DeadLetter]) -> list[ReplayResult]:
        """Replay the parked timers."""
        from timewheel.dead_letters import replay_parked

        return replay_parked(client, admin, plan, self.whose(plan), letters, rng=system_random(), per_s=self.rate)


def commands_for(
    name: str,
    selection: type[Selection],
    replaying: type[Replay | ParkedReplay],
    *,
    remove: str,
    removed: str,
    helps: tuple[str, str, str],
) -> typer.Typer:
    """Make the commands for a kind of dead letters: list, show, replay, and the command that removes them."""

    def list_(chosen: Selection, *, cluster: AdminOptions, as_json: AsJson = False) -> None:
        found, now_ms = _look(chosen, cluster)
        render(_found_facts(found), lambda console: _show_table(console, chosen, found, now_ms), as_json=as_json)

    def show(chosen: Selection, *, cluster: AdminOptions, as_json: AsJson = False) -> None:
        found, _ = _look(chosen, cluster)
        facts = _found_facts(found, with_payload=True)
        render(facts, lambda console: _show_in_full(console, chosen, found), as_json=as_json)

    def replay(
        chosen: Replay,
        *,
        everything: Everything = False,
        dry_run: DryRun = False,
        cluster: ConnectionOptions,
        as_json: AsJson = False,
    ) -> None:
        send, done = (None, chosen.would) if dry_run else (chosen.send, chosen.done)
        _deal(chosen, cluster, send, chosen.decisions, done, everything=everything, as_json=as_json)

    def remove_(
        chosen: Selection,
        *,
        everything: Everything = False,
        dry_run: DryRun = False,
        cluster: ConnectionOptions,
        as_json: AsJson = False,
    ) -> None:
        def drop(client: Any, admin: AdminClient, plan: Plan, letters: Sequence[DeadLetter]) -> list[ReplayResult]:
            from timewheel.dead_letters import drop

            return drop(client, chosen.box(plan), letters, clock=admin.clock)

        send, done = (None, f"would be {removed}") if dry_run else (drop, removed)
        _deal(chosen, cluster, send, lambda *_: repeat(None), done, everything=everything, as_json=as_json)

    group = command_group(name, helps[0])
    of_list = f"List {selection.many} that are neither replayed nor {removed} yet. Nothing is consumed or changed."
    of_show = f"Show {selection.many} in full, with properties and payload. Nothing is consumed or changed."
    group.command("list", help=of_list)(with_options(list_, chosen=selection))
    group.command("show", help=of_show)(with_options(show, chosen=selection))
    group.command("replay", help=helps[1])(with_options(replay, chosen=replaying))
    group.command(remove, help=helps[2])(with_options(remove_, chosen=selection))
    return group


def _look(chosen: Selection, cluster: AdminOptions) -> tuple[DeadLetters, int]:
    """Return the selected dead letters, and the present time."""
    from timewheel.dead_letters import dead_letters

    # A subscription that is not given is missed before any request.
    wanted, box = chosen.filter(), chosen.box(Plan.load(chosen.plan_file))
    with cluster.admin() as admin:
        return dead_letters(admin, box, wanted, most=chosen.most), admin.clock.now_ms()


def _deal(
    chosen: Selection,
    cluster: ConnectionOptions,
    send: Callable[[Any, AdminClient, Plan, Sequence[DeadLetter]], list[ReplayResult]] | None,
    decide: Callable[[Router, Sequence[DeadLetter], int], Iterable[ReplayTarget | Refused | None]],
    done: str,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Replay or remove the selected dead letters; without ``send`` only decide."""
    from timewheel.dead_letters import Refused, ReplayResult, dead_letters

    wanted, plan = chosen.filter(must_say=not everything), Plan.load(chosen.plan_file)
    box, access = chosen.box(plan), cluster.access()
    with access.admin() as admin:
        found = dead_letters(admin, box, wanted, most=chosen.most)
        letters = found.dead_letters
        if send is not None:
            with access.client(plan.due_topic, operation_timeout_seconds=TIMEOUT_S) as client:
                results = send(client, admin, plan, letters)
        else:
            decisions = decide(Router(plan), letters, admin.clock.now_ms())
            results = [
                ReplayResult(dead_letter=one, refused=decision.reason)
                if isinstance(decision, Refused)
                else ReplayResult(dead_letter=one, sent_to=None if decision is None else decision.topic)
                for one, decision in zip(letters, decisions, strict=False)
            ]
    end(results, found, wanted, done, as_json=as_json)


dead_letters = commands_for(
    "dead-letters",
    Selection,
    Replay,
    remove="drop",
    removed="dropped",
    helps=(
        "List, show, replay or drop dead letters.",
        "Replay dead letters: send them again under their ids, to the topic that their producer would choose now, and "
        "then remove them.\n\nEach message is published and confirmed before its dead letter is removed: a crash in "
        "between leaves a copy, never a loss. Exit status: 1 if some dead letters could not be sent, and remain; 4 if "
        "a position or an id was not found.",
        "Remove dead letters without sending them again. Their messages are lost.\n\n"
        "Exit status 4 if a position or an id was not found.",
    ),
)
parked = commands_for(
    "parked",
    ParkedSelection,
    ParkedReplay,
    remove="discard",
    removed="discarded",
    helps=(
        "List, show, replay or discard parked timers.",
        "Replay parked timers: send them to their own subscription again, as first attempts, and then remove them."
        "\n\nCancelled timers are also handled. Each timer is published and confirmed before its parked copy is "
        "removed: a crash in between leaves a copy, never a loss. Exit status: 1 if some timers could not be sent, and "
        "remain; 4 if a position or an id was not found.",
        "Remove parked timers without handling them. The timers are lost.\n\n"
        "Exit status 4 if a position or an id was not found.",
    ),
)


def end(
    results: Sequence[ReplayResult], found: DeadLetters, wanted: DeadLetterFilter, done: str, *, as_json: bool
) -> None:
    """Print the result for each letter, and the selected positions and ids not found; then end the command."""
    refused = [one for one in results if one.refused is not None]
    missing = wanted.unmet(found.dead_letters)
    facts = [{**_facts(one.dead_letter), "sent_to": one.sent_to, "refused": one.refused} for one in results]

    def show(console: Console) -> None:
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
            say(console, f"{named}: not found, or not selected by --id, --reason and --from{unseen}")

    render({**_found_facts(found), "dead_letters": facts, "missing": list(missing)}, show, as_json=as_json)
    if refused:
        raise typer.Exit(FAILED)
    if missing:
        raise typer.Exit(ALARM)


def _show_table(console: Console, kind: Selection, found: DeadLetters, now_ms: int) -> None:
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
        show_rows(console, found.topic, header, rows)
    say(console, _count(kind, found))


def _count(kind: Selection, found: DeadLetters) -> str:
    seen = f"{len(found.dead_letters):,} of {found.inspected:,} {kind.many} in {found.topic} are selected"
    return f"{seen}; there are {found.entries:,} entries, see --limit." if found.is_cut else f"{seen}."


def _found_facts(found: DeadLetters, *, with_payload: bool = False) -> dict[str, Any]:
    counts = {"topic": found.topic, "entries": found.entries, "inspected": found.inspected}
    return {**counts, "dead_letters": [_facts(one, with_payload=with_payload) for one in found.dead_letters]}


def _facts(dead_letter: DeadLetter, *, with_payload: bool = False) -> dict[str, Any]:
    import base64

    payload = {"payload_base64": base64.b64encode(dead_letter.payload).decode()} if with_payload else {}
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
        **payload,
    }


def _show_in_full(console: Console, kind: Selection, found: DeadLetters) -> None:
    for one in found.dead_letters:
        say(console, f"{one.place}  {one.timer_id or 'no id'}", style="bold")
        for name, text in _lines(kind, one):
            say(console, f"{name:9}{text}", indent=2)
    if not found.dead_letters:
        say(console, _count(kind, found))


def _lines(kind: Selection, one: DeadLetter) -> Iterator[tuple[str, str]]:
    yield "reason", one.reason
    if one.error:
        yield "error", one.error
    yield "from", one.source or "-"
    yield kind.since.split()[0], at(one.since_ms)
    if one.envelope is not None:
        yield "due", at(one.envelope.due_ms)
        yield "hops", str(one.envelope.hops)
        if one.envelope.life.attempt:
            yield "attempts", str(one.envelope.life.attempt + 1)
    if one.key is not None:
        yield "key", one.key
    yield from (("property", f"{name} = {value}") for name, value in sorted(one.properties.items()))
    size, shown = len(one.payload), one.payload[:MAX_SHOWN_BYTES]
    rest = f" and {size - len(shown):,} bytes more" if size > len(shown) else ""
    yield "payload", f"{size:,} bytes: {shown!r}{rest}"
