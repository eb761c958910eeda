"""What lies in the topics of a plan at one moment, as values: counters of every cursor, and a sample of the timers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timewheel.admin.batches import BatchGarbled, messages_of_batch
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Plan
from timewheel.core.steps import Step
from timewheel.ops.sample import Place, envelope_in

__all__ = ["Cursor", "Drawn", "Part", "PlanSample", "PlanTopic", "StoredTimer", "timers_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """One subscription on one partition.

    Args:
        mark_delete: All up to here is acknowledged.
        gap_count: Ranges behind it, by the broker's own counter: ``totalNonContiguousDeletedMessagesRange`` of the
            internal stats, which is ``nonContiguousDeletedMessagesRanges`` of the stats.
        backlog: Entries not acknowledged, by the broker's counter.
    """

    mark_delete: EntryPosition
    gap_count: int
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One partition, or a topic without partitions.

    Args:
        name: Full name, with the partition's suffix.
        at_ms: When it was looked at, UTC milliseconds.
        ledgers: With the number of their entries, in order; ledgers without an entry are left out.
        first_stored_ms: When the first entry that is still there was published; None: there is none.
        cursors: Of the plan's subscriptions (of the relay's, for a holding topic).
    """

    name: str
    at_ms: int
    ledgers: tuple[tuple[int, int], ...]
    first_stored_ms: int | None
    cursors: Mapping[str, Cursor]

    @property
    def entries(self) -> int:
        """All that are stored, acknowledged or not."""
        return sum(entries for _, entries in self.ledgers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTopic:
    """One topic of the plan that is there.

    Args:
        name: Full name.
        parts: Its partitions that were ever used; of a topic without partitions, itself.
        partitions: How many it has; 0: it is one without partitions.
        step: Of a holding topic; None: it is a due topic.
        slot: The slot's number in its ring.
        interval_start_ms: Of a calendar's topic, when its interval begins, UTC milliseconds; None: it is none.
    """

    name: str
    parts: tuple[Part, ...]
    partitions: int
    step: Step | None = None
    slot: int = 0
    interval_start_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTimer:
    """One message as it lies in a topic of the plan.

    Args:
        place: Its entry; messages of one batch share it.
        stored_ms: When that was published, UTC milliseconds.
        entered_ms: When a producer took the timer, or the nominal time of its last hop; ``stored_ms`` if it has no
            envelope.
        due_ms: When it is due; not before ``entered_ms``.
        size_bytes: Of the payload.
        key: Its partition key.
        hops: How often a relay moved it on; None: it has no envelope.
        envelope: As it lies there; None: it has none.
    """

    place: Place
    stored_ms: int
    entered_ms: int
    due_ms: int
    size_bytes: int
    key: str | None
    hops: int | None
    envelope: Envelope | None = None

    @property
    def is_first(self) -> bool:
        """It lies where its producer sent it: of all copies of a timer, one does."""
        return not self.hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A sample without replacement of the entries of some topics: each had the same chance.

    Args:
        population: Entries in them.
        looked_at: Entries of the sample that could be read.
        unread: Others, which were gone or could not.
        timers: The messages in those looked at.
    """

    population: int
    looked_at: int
    unread: int
    timers: tuple[StoredTimer, ...]

    @property
    def scale(self) -> float:
        """How many entries stand behind one that was looked at."""
        return self.population / self.looked_at if self.looked_at else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """A plan's topics as they are.

    Args:
        plan: Whose.
        at_ms: When the first topic was looked at, UTC milliseconds.
        due: The due topics; of a calendar those from the running interval on.
        holding: The holding topics.
        missing: Names of topics that are not there.
        in_due: Sample of the due topics.
        in_holding: Sample of the holding topics.
    """

    plan: Plan
    at_ms: int
    due: tuple[PlanTopic, ...]
    holding: tuple[PlanTopic, ...]
    missing: tuple[str, ...]
    in_due: Drawn
    in_holding: Drawn


def timers_of(place: Place, entry: StoredEntry) -> tuple[StoredTimer, ...]:
    """The timers in one entry: one, or as many as its batch has messages."""
    if entry.batch_messages is None:
        return (_timer(place, entry, entry.properties, len(entry.payload), entry.partition_key),)
    try:
        messages = messages_of_batch(entry.payload, entry.batch_messages)
    except BatchGarbled:
        return (_timer(place, entry, {}, len(entry.payload), None),)  # encrypted: its entry is all that is seen
    return tuple(
        _timer(place, entry, message.properties, message.payload_bytes, message.partition_key) for message in messages
    )


def _timer(
    place: Place, entry: StoredEntry, properties: Mapping[str, str], size_bytes: int, key: str | None
) -> StoredTimer:
    stored_ms = entry.publish_at_ms
    due_ms = stored_ms if entry.deliver_at_ms is None else entry.deliver_at_ms
    entered_ms, hops = stored_ms, None
    envelope = envelope_in(properties)
    if envelope is not None:
        due_ms, entered_ms, hops = envelope.due_ms, envelope.entered_ms, envelope.hops
    return StoredTimer(
        place=place,
        stored_ms=stored_ms,
        entered_ms=entered_ms,
        due_ms=max(due_ms, entered_ms),
        size_bytes=size_bytes,
        key=key,
        hops=hops,
        envelope=envelope,
    )
