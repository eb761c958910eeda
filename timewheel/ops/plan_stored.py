"""What lies in the topics of a plan at one moment, as values: counters of every cursor, and a sample of the timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from timewheel.admin.batches import BatchedMessage, BatchGarbled, messages_of_batch
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition
from timewheel.core.envelope import DUE_PROPERTY, PROBE_PROPERTY, STIR_PROPERTY, TIMER_PROPERTY, Envelope, read_due
from timewheel.core.errors import EnvelopeError
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.plan import Plan
from timewheel.core.routing import release_at
from timewheel.core.steps import Step
from timewheel.ops.sample import Place, envelope_in

__all__ = [
    "Cursor",
    "Drawn",
    "Part",
    "PlanSample",
    "PlanTopic",
    "StoredTimer",
    "first_timers",
    "leaves_ms",
    "timers_of",
]

FEW_PROBES = 8
"""So many entries are looked into for the first timer of a partition: each relay may have left a probe."""


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


def timers_of(place: Place, entry: StoredEntry, *, in_intake: bool = False) -> tuple[StoredTimer, ...]:
    """The timers in one entry: one, or as many as its batch has messages. A relay's probe, or a shadow's stir, is none.

    Args:
        place: Of the entry.
        entry: As it is stored.
        in_intake: It lies in the intake, where `DUE_PROPERTY` says when a timer is due.
    """
    messages: Iterable[BatchedMessage] = (
        BatchedMessage(
            properties=entry.properties, partition_key=entry.partition_key, payload_bytes=len(entry.payload)
        ),
    )
    if entry.batch_messages is not None:
        try:
            messages = tuple(islice(messages_of_batch(entry.payload, entry.batch_messages), LARGEST_BATCH))
        except BatchGarbled:
            # Encrypted: its entry is all that is seen.
            messages = (BatchedMessage(properties={}, partition_key=None, payload_bytes=len(entry.payload)),)
    return tuple(
        _timer(place, entry, one, in_intake=in_intake)
        for one in messages
        if TIMER_PROPERTY in one.properties or not one.properties.keys() & {PROBE_PROPERTY, STIR_PROPERTY}
    )


def first_timers(
    places: Iterable[Place], timers_at: Callable[[Place], tuple[StoredTimer, ...] | None]
) -> tuple[Place, tuple[StoredTimer, ...]] | None:
    """The first entry with timers in it, past the probes that may lie before it; None: there is none so near, or one
    before it could not be read.

    Args:
        places: Of entries that wait, in order.
        timers_at: The timers of one; None: it could not be read.
    """
    for place in islice(places, FEW_PROBES):
        timers = timers_at(place)
        if timers or timers is None:
            return None if timers is None else (place, timers)
    return None


def leaves_ms(step: Step, timer: StoredTimer) -> int:
    """When a timer is to leave the topic that it lies in, UTC milliseconds.

    Args:
        step: The topic's.
        timer: As it lies there.
    """
    if step.kind == "due":
        return timer.due_ms
    # An original may have been sent days before its copy was stored.
    entered_ms = timer.stored_ms if step.kind in ("intake", "journal") else timer.entered_ms
    return release_at(step, timer.due_ms, entered_ms)


def _timer(place: Place, entry: StoredEntry, message: BatchedMessage, *, in_intake: bool) -> StoredTimer:
    stored_ms = entry.publish_at_ms
    due_ms = stored_ms if entry.deliver_at_ms is None else entry.deliver_at_ms
    if in_intake:
        with suppress(EnvelopeError):
            due_ms = read_due(message.properties.get(DUE_PROPERTY, ""))
    entered_ms, hops = stored_ms, None
    envelope = envelope_in(message.properties)
    if envelope is not None:
        due_ms, entered_ms, hops = envelope.due_ms, envelope.entered_ms, envelope.hops
    return StoredTimer(
        place=place,
        stored_ms=stored_ms,
        entered_ms=entered_ms,
        due_ms=max(due_ms, entered_ms),
        size_bytes=message.payload_bytes,
        key=message.partition_key,
        hops=hops,
        envelope=envelope,
    )
