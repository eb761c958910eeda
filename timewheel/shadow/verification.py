"""Verifies that the audit of a shadow balances, entry by entry: nothing is consumed or changed.

Topics are read in the order of the timers' route, and each up to an end that is requested after the read has begun: a
timer that moves on meanwhile is read again further on, and never missed. A suspected defect is checked again, and only
defects that appear at every snapshot are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import CursorStats, InternalStats
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import pause
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.core.errors import AdminMissing
from timewheel.core.ids import native_id
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_topic,
)
from timewheel.core.plan import Plan
from timewheel.core.topology import topology
from timewheel.inspect.reader import ProgressCallback, Reader, Unseen, no_report
from timewheel.shadow.desired_state import DesiredState, State, caught_up_in, desired_in
from timewheel.shadow.draining import former_partitions
from timewheel.shadow.machine.audit import BYTES_PER_COPY, Audit, Place, Trouble, Wrong
from timewheel.shadow.machine.cursors import Acked, AckedByAll, acked_in, stretches_of
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.survey_counters import ARRIVED_MS, Pending
from timewheel.shadow.overview import STUCK_MS
from timewheel.shadow.stored_entries import StoredTimer, entries_in, key_of, original_of, timers_in

SHOWN = 20  # troubles of each kind and partition that are listed individually


class Stuck(NamedTuple):
    """A partition that makes no progress."""

    topic: str
    head: EntryPosition
    late_ms: int  # how long ago that entry should have moved on


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The audit of a partition."""

    topic: str
    entries: int  # entries stored behind the lowest mark-delete position
    read: int  # of these, those that the broker has delivered: it does not deliver its own entries
    acked: int  # of those, those that every subscription has acknowledged
    decisions: Mapping[str, int]  # the others, by decision
    is_caught_up: bool  # the mover has processed the backlog
    journal: int
    places: Mapping[Place, int]
    troubles: tuple[Trouble, ...]  # timers with the same defect at every snapshot
    memory_bytes: int  # most memory for the copies

    @property
    def wrong(self) -> Mapping[Wrong, int]:
        """Number of timers by defect."""
        counts = Counter(one.wrong for one in self.troubles)
        return {wrong: counts[wrong] for wrong in Wrong}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The audit of a plan."""

    plan: Plan
    at_ms: int  # when the last snapshot began, UTC milliseconds
    desired: DesiredState
    looks: int  # more than 1: a defect was suspected, and checked again
    parts: tuple[PartitionAudit, ...]
    missing: tuple[str, ...] = ()  # topics of the plan that do not exist
    # partitions that had the same head at every snapshot, though it should have moved on long ago
    stuck: tuple[Stuck, ...] = ()
    unread: tuple[Unseen, ...] = ()  # topics that could not be read: timers that wait there count as lost

    @property
    def is_balanced(self) -> bool:
        """True if no timer has a defect, and no partition is stuck."""
        return not self.stuck and not any(part.troubles for part in self.parts)

    @property
    def wrong(self) -> Mapping[Wrong, int]:
        """Number of timers by defect, over all partitions."""
        return {wrong: sum(part.wrong[wrong] for part in self.parts) for wrong in Wrong}


def verification_facts(found: Verification) -> dict[str, Any]:
    """Return a verification as plain values, for JSON."""
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "state": found.desired.state.value,
        "since_ms": found.desired.since_ms,
        "is_balanced": found.is_balanced,
        "looks": found.looks,
        "missing": list(found.missing),
        "stuck": [{"topic": one.topic, "head": one.head.text, "late_ms": one.late_ms} for one in found.stuck],
        "unseen": [asdict(one) for one in found.unread],
        **{wrong.value: count for wrong, count in found.wrong.items()},
        "partitions": [
            {
                **asdict(replace(part, troubles=())),
                "places": {place.name.lower(): count for place, count in part.places.items()},
                **{wrong.value: count for wrong, count in part.wrong.items()},
                "troubles": [
                    {
                        "wrong": one.wrong.value,
                        "due_ms": one.due_ms or None,
                        "original": None if one.original is None else one.original.text,
                        "copy": None if one.copy is None else one.copy.text,
                    }
                    for one in shown(part)
                ],
            }
            for part in found.parts
        ],
    }


def shown(part: PartitionAudit) -> list[Trouble]:
    """Return some troubles of each kind."""
    return [one for wrong in Wrong for one in [each for each in part.troubles if each.wrong is wrong][:SHOWN]]


AGAIN_MS = 3_000  # time between two looks: by then timers that were on their way have arrived
LOOKS = 3  # a timer that hops during a snapshot is read twice; it may do so at two looks, with tiers of seconds
TICKS = 3  # a broker delivers up to two ticks early, and this machine's clock may differ


def verify(
    admin: AdminClient,
    dialer: Dialer,
    plan: Plan,
    *,
    again_ms: int = AGAIN_MS,
    arrived_ms: int = ARRIVED_MS,
    on_progress: ProgressCallback = no_report,
) -> Verification:
    """Verify all partitions of a plan with an intake; suspected timers are checked again after ``again_ms``, and
    entries that arrived within ``arrived_ms`` may not have been moved yet.

    Memory: `BYTES_PER_COPY` for each copy that the journal holds, and the suspected timers.

    Raises:
        AdminError: The broker does not answer, or the topics do not exist.
        BinaryProtocolError: Entries cannot be read.
    """
    found = _Look(admin, dialer, plan, arrived_ms, on_progress).run()
    while not found.is_balanced and found.looks < LOOKS:
        pause(admin.clock, again_ms)
        found = _at_both(found, _Look(admin, dialer, plan, arrived_ms, on_progress).run())
    return found


def _at_both(first: Verification, second: Verification) -> Verification:
    """Return the second look, with only the defects that the first look found too."""
    before = {(part.topic, one.wrong, one.key) for part in first.parts for one in part.troubles}
    parts = tuple(
        replace(part, troubles=tuple(one for one in part.troubles if (part.topic, one.wrong, one.key) in before))
        for part in second.parts
    )
    heads = {(one.topic, one.head) for one in first.stuck}
    stuck = tuple(one for one in second.stuck if (one.topic, one.head) in heads)
    return replace(second, parts=parts, stuck=stuck, looks=first.looks + 1)


@dataclass
class _Look:
    admin: AdminClient
    dialer: Dialer
    plan: Plan
    arrived_ms: int
    on_progress: ProgressCallback
    missing: list[str] = field(default_factory=list)
    stuck: dict[str, Stuck] = field(default_factory=dict)
    done: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        self.names, self.move_decider, self.reads = Names(self.plan), MoveDecider(self.plan), Reader(self.admin)
        self.letters = partition_topic(self.names.dead_letter, 0)
        self.at_ms = self.admin.clock.now_ms()
        self.former = former_partitions(self.reads, self.plan)

    def run(self) -> Verification:
        properties = self.admin.topics.properties(self.names.journal)
        desired = desired_in(properties)
        parts = tuple(
            self._part(number, desired, caught_up_in(properties, number, desired) is not None)
            for number in range(self.plan.own_partitions)
        )
        return Verification(
            plan=self.plan, at_ms=self.at_ms, desired=desired, looks=1, parts=parts,
            missing=tuple(dict.fromkeys(self.missing)), stuck=tuple(self.stuck.values()), unread=self.reads.unseen,
        )  # fmt: skip

    def _part(self, number: int, desired: DesiredState, is_caught_up: bool) -> PartitionAudit:
        native = self.names.part(self.plan.due_topic, number)
        # The original of a copy on its way was acknowledged before. An original that is not by now is checked again.
        before = AckedByAll(self._cursors(native)[1].values())
        audit = Audit()
        suspects: dict[int, tuple[StoredTimer, EntryPosition]] = {}
        self._see_intake(number)
        self._read_journal(number, audit)
        for timer, may_have_moved in self._held(number):
            original = original_of(timer.timer_id, native)
            audit.meets(key_of(timer.timer_id), Place.HOLDING, may_have_moved=may_have_moved)
            if original is not None and original not in before:
                suspects[key_of(timer.timer_id)] = (timer, original)

        # The due topic: copies that are back, and entries that were left.
        stats, acked = self._cursors(native)
        by_all = AckedByAll(acked.values())
        pending = Pending(self.move_decider, acked.values(), self.admin.clock.now_ms(), self.arrived_ms)
        lowest = min((one.mark_delete for one in acked.values()), default=stats.last_confirmed)
        read, left = 0, []
        for entry in self._entries(native, lowest):
            place = entry.position
            if entry.deliver_at_ms or entry.batch_size or TIMER_PROPERTY in entry.properties:
                suspects.update(_returned(entry, native, audit, by_all))
            if place <= stats.last_confirmed:
                read += 1
                if pending.see(entry):
                    key = key_of(native_id(native, place))
                    left.append(Trouble(Wrong.LEFT, key, entry.deliver_at_ms or 0, place, None))

        # The plan's topic of dead letters has a single partition: their keys identify their partitions.
        for timer, _ in self._timers(self.letters, DEAD_LETTER_SUBSCRIPTION):
            audit.meets(key_of(timer.timer_id), Place.DEAD)
        due_until_ms = self.admin.clock.now_ms() + TICKS * self.plan.tick_ms + self.plan.lead_ms
        troubles = [*audit.troubles(by_all, due_until_ms)]
        known = {one.key for one in troubles}
        troubles += [
            Trouble(Wrong.DOUBLE, key, timer.due_ms, original, None)
            for key, (timer, original) in suspects.items()
            if original not in by_all and key not in known
        ]
        # If moving is not desired, or the backlog is not processed yet, movable entries that are left are no defect.
        if desired.state is State.SHADOWING and is_caught_up:
            told = {one.original for one in troubles}
            troubles += (one for one in left if one.original not in told)
        return PartitionAudit(
            topic=native, entries=sum(one.entries for one in stretches_of(stats.ledgers, lowest, 1 << 62)),
            read=read, acked=pending.acked, decisions=dict(pending.decisions.most_common()),
            is_caught_up=is_caught_up, journal=len(audit), places=audit.places(), troubles=tuple(troubles),
            memory_bytes=BYTES_PER_COPY * len(audit),
        )  # fmt: skip

    def _cursors(self, part: str) -> tuple[InternalStats, dict[str, Acked]]:
        stats, internal = self.admin.topics.stats(part), self.admin.topics.internal_stats(part)
        return internal, acked_in(internal, stats)

    def _read_journal(self, number: int, audit: Audit) -> None:
        """Read the journal, with the copies that have not moved on yet."""
        part = partition_topic(self.names.journal, number)
        stats = self.admin.topics.internal_stats(part)
        journal, relay = stats.cursors[JOURNAL_SUBSCRIPTION].mark_delete, stats.cursors[RELAY_SUBSCRIPTION].mark_delete
        waiting: list[tuple[int, bool]] = []
        first: EntryPosition | None = None
        for entry in self._entries(part, min(journal, relay)):
            if entry.position > relay and first is None:
                first = entry.position
                self._leads(part, first, entry.publish_ms)
            for timer in timers_in(entry):
                if timer.original is None:
                    continue  # no shadow has stored it
                key = key_of(timer.timer_id)
                audit.holds(key, timer.due_ms, timer.original, entry.position)
                if entry.position > relay:
                    waiting.append((key, entry.position == first))
        audit.close_journal()
        for key, may_have_moved in waiting:
            audit.meets(key, Place.JOURNAL, may_have_moved=may_have_moved)

    def _see_intake(self, number: int) -> None:
        part = partition_topic(self.names.intake, number)
        stats = self.reads.ask(part, partial(self.admin.topics.internal_stats, part))
        cursor = None if stats is None else stats.cursors.get(RELAY_SUBSCRIPTION)
        if stats is None or cursor is None:
            self.missing.append(part)
            return
        for first in stretches_of(stats.ledgers, cursor.mark_delete, 1, 1):
            for entries in entries_in(self.dialer, part, first, self.admin.clock):
                for entry in entries:
                    self._leads(part, entry.position, entry.publish_ms)

    def _leads(self, part: str, head: EntryPosition, leaves_ms: int) -> None:
        """Record the first waiting entry of a partition that relays read, with the latest time for it to leave."""
        if (late_ms := self.at_ms - leaves_ms) > STUCK_MS:
            self.stuck.setdefault(part, Stuck(part, head, late_ms))

    def _held(self, number: int) -> Iterator[tuple[StoredTimer, bool]]:
        """Yield the timers in holding topics; first of earlier plans, whose relays send on into the current plan's."""
        for part in self.former.get(number, ()):
            # A missing partition was drained since it was listed.
            stats = self.reads.ask(part, partial(self.admin.topics.internal_stats, part))
            if stats is not None:
                yield from self._waiting(part, stats.cursors.get(RELAY_SUBSCRIPTION))
        for topic in topology(self.plan, 0).holding:
            yield from self._timers(partition_topic(topic.name, number), RELAY_SUBSCRIPTION)

    def _timers(self, part: str, subscription: str) -> Iterator[tuple[StoredTimer, bool]]:
        """Yield the waiting timers of a topic of the plan."""
        try:
            cursor = self.admin.topics.internal_stats(part).cursors.get(subscription)
        except AdminMissing:
            cursor = None
        if cursor is None:
            self.missing.append(part)
        else:
            yield from self._waiting(part, cursor)

    def _waiting(self, part: str, cursor: CursorStats | None) -> Iterator[tuple[StoredTimer, bool]]:
        """Yield the waiting timers of a topic that is acknowledged in order, all without a cursor; and whether it may
        have moved on, like some of a batch at its head.
        """
        acked, first = Acked(EntryPosition(-1, -1)) if cursor is None else Acked.of(cursor), None
        for entry in self._entries(part, acked.mark_delete):
            if entry.position in acked:
                continue
            first = first or entry.position
            may_have_moved = entry.position == first
            for timer in timers_in(entry):
                if may_have_moved and part != self.letters:
                    self._leads(part, first, timer.due_ms)
                yield timer, may_have_moved

    def _entries(self, part: str, after: EntryPosition) -> Iterator[Entry]:
        """Yield the entries behind a position, up to the topic's current end."""
        stats = self.admin.topics.internal_stats(part)
        for stretch in stretches_of(stats.ledgers, after, 1 << 62):
            self.total += stretch.entries
            for entries in entries_in(self.dialer, part, stretch, self.admin.clock, keep_payload=True):
                yield from entries
                self.done += len(entries)
                self.on_progress(self.done, self.total)


def _returned(
    entry: Entry, part: str, audit: Audit, acked: AckedByAll
) -> Iterator[tuple[int, tuple[StoredTimer, EntryPosition]]]:
    """Record the copies in an entry of the due topic; yield those whose original is pending, handled or not."""
    for timer in timers_in(entry):
        key, original = key_of(timer.timer_id), original_of(timer.timer_id, part)
        # An acknowledged copy was handled, or moved once more.
        audit.meets(key, Place.DUE, may_have_moved=entry.position in acked)
        if original is not None and original < entry.position and original not in acked:
            yield key, (timer, original)
