"""What is asked of a broker in the search of one timer, each thing once, and counted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate

from timewheel.admin.batches import BatchGarbled, messages_of_batch
from timewheel.admin.client import AdminClient
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition, InternalStats
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable
from timewheel.ops.gaps.looking import Unseen
from timewheel.ops.sample import envelope_in
from timewheel.wire.dead_letters import DEAD_REASON

__all__ = ["Cost", "Partition", "Reading", "Seen"]


@dataclass(slots=True)
class Cost:
    """What a search has cost.

    Args:
        reads: Stored entries that were looked at.
        seeks: Questions to the broker where a time begins in a partition, for which it halves by itself.
        partitions: Whose ledgers and cursors were asked for.
    """

    reads: int = 0
    seeks: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An entry that was looked at.

    Args:
        position: Where it lies.
        publish_ms: When it was published.
        timers: Envelopes of the timers in it.
        reasons: Of each, why it is a dead letter; None: it is none.
    """

    position: EntryPosition
    publish_ms: int
    timers: tuple[Envelope, ...]
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one partition stores: entries by number, through all its ledgers.

    Args:
        name: Full name.
        stats: Of the moment of the look.
    """

    name: str
    stats: InternalStats
    _starts: tuple[tuple[int, int], ...] = field(default=())
    _ends: tuple[int, ...] = field(default=())

    @classmethod
    def of(cls, name: str, stats: InternalStats) -> Partition:
        """From the broker's answer."""
        ledgers = tuple((ledger.ledger_id, ledger.entries) for ledger in stats.ledgers if ledger.entries)
        return cls(name=name, stats=stats, _starts=ledgers, _ends=tuple(accumulate(count for _, count in ledgers)))

    @property
    def entries(self) -> int:
        """How many are stored."""
        return self._ends[-1] if self._ends else 0

    def position_of(self, number: int) -> EntryPosition:
        """Where an entry lies."""
        which = bisect_right(self._ends, number)
        ledger, count = self._starts[which]
        return EntryPosition(ledger, number - (self._ends[which] - count))

    def number_of(self, position: EntryPosition) -> int:
        """The number of the first entry at a position or behind it; ``entries`` if there is none."""
        for (ledger, count), end in zip(self._starts, self._ends, strict=True):
            if position.ledger < ledger:
                return end - count
            if position.ledger == ledger:
                return end - count + min(max(position.entry, 0), count)
        return self.entries

    def acknowledged_by(self, position: EntryPosition, subscription: str) -> bool | None:
        """Whether a subscription has acknowledged an entry; None: there is no such subscription."""
        cursor = self.stats.cursors.get(subscription)
        if cursor is None:
            return None
        return position <= cursor.mark_delete or any(
            acked.after < position <= acked.upto for acked in cursor.acked_ranges()
        )


class Reading:
    """Asks a broker.

    Args:
        admin: Whose role may see the topics' stats and peek at their messages.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._partitions: dict[str, Partition | None] = {}
        self._entries: dict[tuple[str, EntryPosition], Seen | None] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self.cost = Cost()
        self.unseen: dict[str, Unseen] = {}
        """What the role may not look at, or what could not be read, by topic."""

    def look_again(self) -> None:
        """Forget how long the partitions were: timers move while one is looked for. What was read stays so."""
        self._partitions.clear()
        self._starts.clear()

    def partition(self, name: str) -> Partition | None:
        """A partition; None: there is none, or it cannot be seen."""
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
        """The number of the first entry that was published at a time or later; ``entries`` if there is none."""
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

    def entry(self, partition: Partition, position: EntryPosition) -> Seen | None:
        """One stored entry; None: it went meanwhile, or cannot be read."""
        key = partition.name, position
        if key not in self._entries:
            self.cost.reads += 1
            try:
                self._entries[key] = _seen(self._admin.topics.entry(partition.name, position))
            except AdminMissing:
                self._entries[key] = None
            except AdminUnreachable:
                raise
            except AdminError as error:
                self.cannot(partition.name, error)
                self._entries[key] = None
        return self._entries[key]

    def cannot(self, topic: str, error: AdminError) -> None:
        """Note what could not be looked at."""
        self.unseen[topic] = Unseen(what=topic, reason=error.reason)


def _seen(entry: StoredEntry) -> Seen:
    every: Iterable[Mapping[str, str]] = [entry.properties]
    if entry.batch_messages is not None:
        every = (message.properties for message in messages_of_batch(entry.payload, entry.batch_messages))
    found: list[tuple[Envelope, str | None]] = []
    with suppress(BatchGarbled):  # encrypted: its readers alone can tell what is in it
        found.extend((envelope, one.get(DEAD_REASON)) for one in every if (envelope := envelope_in(one)) is not None)
    return Seen(
        position=entry.position,
        publish_ms=entry.publish_at_ms,
        timers=tuple(envelope for envelope, _ in found),
        reasons=tuple(reason for _, reason in found),
    )
