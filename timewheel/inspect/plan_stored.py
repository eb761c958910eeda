"""Contents of a plan's topics at a moment, as values: counters of every cursor, and a sample of the timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from timewheel.broker.admin.batches import BatchedMessage, BatchGarbled, messages_of_batch
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.internals import EntryPosition
from timewheel.core.envelope import NUDGE_PROPERTY, PROBE_PROPERTY, TIMER_PROPERTY, Envelope, due_in
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.plan import Plan
from timewheel.core.routing import release_at
from timewheel.core.steps import Step
from timewheel.inspect.sample import Place, envelope_in

FEW_PROBES = 8
"""Number of entries that are searched for the first timer of a partition: each relay may have left a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A subscription on a partition.

    Args:
        mark_delete: Everything up to this position is acknowledged.
        gap_count: Ranges beyond that position, by the broker's own counter: ``totalNonContiguousDeletedMessagesRange``
            of the internal stats, which is ``nonContiguousDeletedMessagesRanges`` of the stats.
        backlog: Unacknowledged entries, by the broker's counter.
    """

    mark_delete: EntryPosition
    gap_count: int
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition, or a topic without partitions.

    Args:
        name: Full name, with the partition's suffix.
        at_ms: Time of the read, UTC milliseconds.
        ledgers: Ledgers with their numbers of entries, in order; empty ledgers are left out.
        first_stored_ms: Publish time of the first stored entry; None if the partition is empty.
        cursors: Cursors of the plan's subscriptions (of the relay's, for a holding topic).
    """

    name: str
    at_ms: int
    ledgers: tuple[tuple[int, int], ...]
    first_stored_ms: int | None
    cursors: Mapping[str, Cursor]

    @property
    def entries(self) -> int:
        """Number of stored entries, acknowledged or not."""
        return sum(entries for _, entries in self.ledgers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTopic:
    """An existing topic of the plan.

    Args:
        name: Full name.
        parts: Partitions that were ever used; for a topic without partitions, the topic itself.
        partitions: Number of partitions; 0 for a topic without partitions.
        step: Step of a holding topic; None for a due topic.
        slot: Number of the slot in its ring.
        interval_start_ms: Start of a calendar topic's interval, UTC milliseconds; None for other topics.
    """

    name: str
    parts: tuple[Part, ...]
    partitions: int
    step: Step | None = None
    slot: int = 0
    interval_start_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTimer:
    """A message stored in a topic of the plan.

    Args:
        place: Place of the entry; messages of a batch share it.
        stored_ms: Publish time of the entry, UTC milliseconds.
        entered_ms: Time at which a producer accepted the timer, or the nominal time of its last hop; ``stored_ms``
            without an envelope.
        due_ms: Due time; not before ``entered_ms``.
        size_bytes: Size of the payload.
        key: Partition key.
        hops: Number of moves by relays; None without an envelope.
        envelope: The stored envelope; None without an envelope.
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
        """True if the timer is still where its producer sent it; exactly one copy of a timer is."""
        return not self.hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A sample of the entries of some topics, without replacement and with equal chances.

    Args:
        population: Entries in the topics.
        inspected: Sampled entries that were read.
        unread: Sampled entries that had disappeared or were unreadable.
        timers: Messages in the entries that were read.
    """

    population: int
    inspected: int
    unread: int
    timers: tuple[StoredTimer, ...]

    @property
    def scale(self) -> float:
        """Number of entries that each read entry stands for."""
        return self.population / self.inspected if self.inspected else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """The topics of a plan at a moment.

    Args:
        plan: The plan.
        at_ms: Time of the first read, UTC milliseconds.
        due: Due topics; for a calendar, those from the running interval on.
        holding: Holding topics.
        missing: Names of missing topics.
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
    """Return the timers in an entry: as many as its batch has messages. A relay's probe or a shadow's nudge is no
    timer.

    Args:
        place: Place of the entry.
        entry: The stored entry.
        in_intake: True for an entry of the intake, whose due times are in its properties.
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
            # Encrypted: only the entry is visible.
            messages = (BatchedMessage(properties={}, partition_key=None, payload_bytes=len(entry.payload)),)
    return tuple(
        _timer(place, entry, one, in_intake=in_intake)
        for one in messages
        if TIMER_PROPERTY in one.properties or not one.properties.keys() & {PROBE_PROPERTY, NUDGE_PROPERTY}
    )


def first_timers(
    places: Iterable[Place], timers_at: Callable[[Place], tuple[StoredTimer, ...] | None]
) -> tuple[Place, tuple[StoredTimer, ...]] | None:
    """Return the first entry with timers, after any probes.

    Returns None if the first entries contain no timer, or if an entry before the first timer could not be read.

    Args:
        places: Places of waiting entries, in order.
        timers_at: Reads the timers of an entry; None if the entry is unreadable.
    """
    for place in islice(places, FEW_PROBES):
        timers = timers_at(place)
        if timers or timers is None:
            return None if timers is None else (place, timers)
    return None


def leaves_ms(step: Step, timer: StoredTimer) -> int:
    """Return when a timer is to leave its topic, UTC milliseconds.

    Args:
        step: Step of the topic.
        timer: The stored timer.
    """
    if step.kind == "due":
        return timer.due_ms
    # An original may have been sent days before its copy was stored.
    entered_ms = timer.stored_ms if step.kind in ("intake", "journal") else timer.entered_ms
    return release_at(step, timer.due_ms, entered_ms)


def _timer(place: Place, entry: StoredEntry, message: BatchedMessage, *, in_intake: bool) -> StoredTimer:
    stored_ms = entry.publish_at_ms
    due_ms = stored_ms if entry.deliver_at_ms is None else entry.deliver_at_ms
    if in_intake and (own_ms := due_in(message.properties)) is not None:
        due_ms = own_ms
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
