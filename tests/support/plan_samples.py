"""Made-up samples of a plan's topics, for tests of conclusions from samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from timewheel.client.positions import EntryPosition
from timewheel.core.plan import Plan
from timewheel.core.steps import Step
from timewheel.inspect.entries import Place, Run
from timewheel.inspect.plan_sample import Cursor, Drawn, Part, PlanSample, PlanTopic, StoredTimer

TOPIC = "persistent://acme/crm/reminders"
SUBSCRIPTION = "billing"
NOW_MS = 1_700_000_000_000
NOTHING_DONE = EntryPosition(1, -1)


def plan_of(**facts: Any) -> Plan:
    return Plan(**{"due_topic": TOPIC, "subscriptions": (SUBSCRIPTION,), **facts})


def timer(number: int, entered_ms: int, due_ms: int, **facts: Any) -> StoredTimer:
    """Make the entry of this number in ledger 1 of the topic."""
    stored = StoredTimer(
        place=Place(TOPIC, EntryPosition(1, number)),
        stored_ms=entered_ms,
        entered_ms=entered_ms,
        due_ms=due_ms,
        size_bytes=10,
        key=None,
        hops=0,
    )
    return replace(stored, **facts)


def part_of(
    entries: int,
    *,
    name: str = TOPIC,
    first_stored_ms: int | None = 0,
    counted: int = 0,
    backlog: int = 0,
    mark_delete: EntryPosition = NOTHING_DONE,
    subscription: str = SUBSCRIPTION,
    ledgers: tuple[tuple[int, int], ...] | None = None,
) -> Part:
    return Part(
        name=name,
        at_ms=NOW_MS,
        runs=tuple(Run(ledger, 0, count - 1) for ledger, count in (((1, entries),) if ledgers is None else ledgers)),
        first_stored_ms=first_stored_ms,
        cursors={subscription: Cursor(mark_delete=mark_delete, gap_count=counted, backlog=backlog)},
    )


def drawn_of(timers: Iterable[StoredTimer], population: int | None = None) -> Drawn:
    found = tuple(timers)
    inspected = len({one.place for one in found})
    return Drawn(
        population=inspected if population is None else population, inspected=inspected, unread=0, timers=found
    )


def held_topic(part: Part, step: Step, slot: int = 0) -> PlanTopic:
    return PlanTopic(name=part.name, parts=(part,), partitions=0, step=step, slot=slot)


def sample_of(
    plan: Plan,
    timers: Iterable[StoredTimer],
    *parts: Part,
    held: Iterable[StoredTimer] = (),
    holding: tuple[PlanTopic, ...] = (),
    population: int | None = None,
    held_population: int | None = None,
    missing: tuple[str, ...] = (),
) -> PlanSample:
    """Make a sample of a due topic with these parts (without partitions, if there is a single part)."""
    return PlanSample(
        plan=plan,
        at_ms=NOW_MS,
        due=(PlanTopic(name=TOPIC, parts=parts, partitions=len(parts) if len(parts) > 1 else 0),),
        holding=holding,
        missing=missing,
        in_due=drawn_of(timers, population),
        in_holding=drawn_of(held, held_population),
    )
