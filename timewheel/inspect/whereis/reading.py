"""Reads of a broker in the search for a timer, each made once, and counted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import BatchGarbled, StoredEntry, messages_of_batch
from timewheel.broker.admin.stats import InternalStats
from timewheel.client.dead_letters import DEAD_REASON
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import ID_PROPERTY, Envelope, due_in
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable
from timewheel.inspect.gaps.snapshot import Unseen
from timewheel.inspect.sample import envelope_in


@dataclass(slots=True)
class Cost:
    """Cost of a search.

    Args:
        reads: Stored entries read.
        seeks: Requests for the position of a time in a partition, which the broker answers by bisection.
        partitions: Partitions whose ledgers and cursors were read.
    """

    reads: int = 0
    seeks: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An entry that was read.

    Args:
        position: Position of the entry.
        publish_ms: Publish time.
        timers: Envelopes of the timers in it.
        reasons: For each timer, the reason if it is a dead letter, else None.
    """

    position: EntryPosition
    publish_ms: int
    timers: tuple[Envelope, ...]
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Contents of a partition: entries by number, through all its ledgers.

    Args:
        name: Full name.
        stats: Internal stats at the moment of the read.
    """

    name: str
    stats: InternalStats
    _starts: tuple[tuple[int, int], ...] = field(default=())
    _ends: tuple[int, ...] = field(default=())

    @classmethod
    def of(cls, name: str, stats: InternalStats) -> Partition:
        """Create a partition from the broker's stats."""
        ledgers = tuple((ledger.ledger_id, ledger.entries) for ledger in stats.ledgers if ledger.entries)
        return cls(name=name, stats=stats, _starts=ledgers, _ends=tuple(accumulate(count for _, count in ledgers)))

    @property
    def entries(self) -> int:
        """Number of stored entries."""
        return self._ends[-1] if self._ends else 0

    def position_of(self, number: int) -> EntryPosition:
        """Return the position of an entry."""
        which = bisect_right(self._ends, number)
        ledger, count = self._starts[which]
        return EntryPosition(ledger, number - (self._ends[which] - count))

    def number_of(self, position: EntryPosition) -> int:
        """Return the number of the first entry at or after a position; ``entries`` if no entry is."""
        for (ledger, count), end in zip(self._starts, self._ends, strict=True):
            if position.ledger < ledger:
                return end - count
            if position.ledger == ledger:
                return end - count + min(max(position.entry, 0), count)
        return self.entries

    def acknowledged_by(self, position: EntryPosition, subscription: str) -> bool | None:
        """Return whether a subscription has acknowledged an entry; None if the subscription does not exist."""
        cursor = self.stats.cursors.get(subscription)
        if cursor is None:
            return None
        return position <= cursor.mark_delete or any(
            acked.after < position <= acked.upto for acked in cursor.acked_ranges()
        )


class Reading:
    """Reads from a broker.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._partitions: dict[str, Partition | None] = {}
        self._entries: dict[tuple[str, EntryPosition], Seen | None] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self.cost = Cost()
        self.unseen: dict[str, Unseen] = {}
        """Topics that the role may not read, or that could not be read."""

    def look_again(self) -> None:
        """Forget the lengths of partitions, since timers move during the search. Entries that were read stay valid."""
        self._partitions.clear()
        self._starts.clear()

    def partition(self, name: str) -> Partition | None:
        """Return a partition; None if it does not exist or cannot be read."""
        if name not in self._partitions:
            self.cost.partitions += 1
            try:
                self._partitions[name] = Partition.of(name, self._admin.topics.internal_stats(name))
            except AdminMissing:
                self._partitions[name] = None
            except AdminUnreachable:
                raise
            except AdminError as error:
                self.cannot(name, error)
                self._partitions[name] = None
        return self._partitions[name]

    def start(self, partition: Partition, at_ms: int) -> int:
        """Return the number of the first entry published at or after a time; ``entries`` if no entry was."""
        key = partition.name, at_ms
        if key not in self._starts:
            self.cost.seeks += 1
            try:
                position = self._admin.topics.position_at(partition.name, max(at_ms, 0))
                self._starts[key] = partition.number_of(position)
            except AdminUnreachable:
                raise
            except AdminError as error:
                self.cannot(partition.name, error)
                self._starts[key] = partition.entries // 2
        return self._starts[key]

    def entry(self, partition: Partition, position: EntryPosition, *, is_dead: bool = False) -> Seen | None:
        """Return a stored entry; None if it was deleted meanwhile or cannot be read.

        Args:
            partition: The partition.
            position: The entry's position.
            is_dead: True for a topic of dead letters: a message there needs no envelope, its id is enough.
        """
        key = partition.name, position
        if key not in self._entries:
            self.cost.reads += 1
            try:
                self._entries[key] = _seen(self._admin.topics.entry(partition.name, position), is_dead=is_dead)
            except AdminMissing:
                self._entries[key] = None
            except AdminUnreachable:
                raise
            except AdminError as error:
                self.cannot(partition.name, error)
                self._entries[key] = None
        return self._entries[key]

    def cannot(self, topic: str, error: AdminError) -> None:
        """Record a topic that could not be read."""
        self.unseen[topic] = Unseen(what=topic, reason=error.reason)


def _seen(entry: StoredEntry, *, is_dead: bool) -> Seen:
    every: Iterable[Mapping[str, str]] = [entry.properties]
    if entry.batch_messages is not None:
        every = (message.properties for message in messages_of_batch(entry.payload, entry.batch_messages))
    found: list[tuple[Envelope, str | None]] = []
    with suppress(BatchGarbled):  # encrypted: only its readers can decode it
        for one in every:
            envelope = envelope_in(one)
            if envelope is None and is_dead and (timer_id := one.get(ID_PROPERTY)):
                # Another client's message to the intake, which its relay refused.
                due_ms = due_in(one)
                envelope = Envelope(timer_id, entry.publish_at_ms if due_ms is None else due_ms, entry.publish_at_ms)
            if envelope is not None:
                found.append((envelope, one.get(DEAD_REASON)))
    return Seen(
        position=entry.position,
        publish_ms=entry.publish_at_ms,
        timers=tuple(envelope for envelope, _ in found),
        reasons=tuple(reason for _, reason in found),
    )
