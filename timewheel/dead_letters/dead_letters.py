"""Messages that wait for an operator, dead letters and parked timers, with their reasons; read without consuming."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import BatchedMessage, BatchGarbled, StoredEntry, messages_of_batch
from timewheel.client.dead_letters import DEAD_FROM, DEAD_REASON, PARKED_ERROR, PARKED_FROM, PARKED_REASON
from timewheel.client.positions import EntryPosition, Position
from timewheel.core.durations import whole_number
from timewheel.core.envelope import ID_PROPERTY, Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, OwnerUnreachable
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import DEAD_LETTER_SUBSCRIPTION, PARKED_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.inspect.entries import Entries, open_entries
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.missing_topics import no_such_topic
from timewheel.inspect.sample import envelope_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A topic of dead letters.

    Args:
        topic: Full name, without a partition suffix.
        subscription: Subscription that acknowledges the dead letters.
        reason_property: Property with the reason why a timer became a dead letter.
        from_property: Property with the topic that the dead letter was taken from.
        error_property: Property with the exception of its handler; empty if no handler was involved.
        missing: Remedy if the topic does not exist.
        sources: Name prefixes of the topics whose schemas the dead letters, stored without a schema, may refer to;
            empty if letters are stored with their schema.
    """

    topic: str
    subscription: str
    reason_property: str
    from_property: str
    error_property: str = ""
    missing: str
    sources: tuple[str, ...] = ()


def dead_letter_box(plan: Plan) -> Box:
    """Return the topic of dead letters, which relays could not move."""
    names = Names(plan)
    return Box(
        topic=names.dead_letter,
        subscription=DEAD_LETTER_SUBSCRIPTION,
        reason_property=DEAD_REASON,
        from_property=DEAD_FROM,
        missing="`timewheel topics ensure PLAN` makes it, if the plan needs a relay",
        sources=tuple(f"{prefix}." for prefix in names.own_prefixes),
    )


def parked_box(plan: Plan, subscription: str) -> Box:
    """Return the topic of timers parked by a subscription, which may belong to an earlier revision of the plan."""
    missing = "write retry = true in the plan, and run `timewheel topics ensure PLAN`"
    if subscription not in plan.subscriptions:
        known = ", ".join(plan.subscriptions)
        missing = f"the plan has no subscription {subscription!r}, but {known}"
    return Box(
        topic=Names(plan).parked(subscription),
        subscription=PARKED_SUBSCRIPTION,
        reason_property=PARKED_REASON,
        from_property=PARKED_FROM,
        error_property=PARKED_ERROR,
        missing=missing,
    )


DEFAULT_LIMIT = 1_000
"""Entries to read, each by a call of some milliseconds, and letters to return, but for the rest of the last entry."""


class DeadLetterPosition(NamedTuple):
    """Position of a dead letter: its entry, and its index in the batch; -1 if the entry is no batch."""

    ledger: int
    entry: int
    number: int = -1

    @property
    def position(self) -> EntryPosition:
        """Position of the entry."""
        return EntryPosition(self.ledger, self.entry)

    def __str__(self) -> str:
        return Position(*self).text

    @classmethod
    def parse(cls, text: str) -> DeadLetterPosition | None:
        """Parse the result of `str`; None if the text is invalid."""
        parts = [whole_number(part) for part in text.split(":")]
        numbers = [part for part in parts if part is not None]
        return cls(*numbers) if len(numbers) == len(parts) and len(parts) in (2, 3) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that waits for an operator.

    Args:
        topic: Partition that contains the dead letter.
        place: Position in the partition.
        timer_id: Id of the timer; None without an id.
        envelope: Envelope; None if missing or unreadable.
        reason: Reason why it is dead or parked.
        error: Exception of the handler; empty if unknown.
        source: Partition that it was taken from; empty if unknown.
        since_ms: Time of arrival, UTC milliseconds.
        key: Partition key.
        properties: All properties, including those that record the reason.
        payload: Payload as it was sent.
        is_whole: True if it stands for an entry that is not opened: it can be discarded, but not replayed.
    """

    topic: str
    place: DeadLetterPosition
    timer_id: str | None
    envelope: Envelope | None
    reason: str
    error: str
    source: str
    since_ms: int
    key: str | None
    properties: Mapping[str, str]
    payload: bytes
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selection of dead letters: those that meet all conditions.

    Args:
        places: Positions to select; empty for any.
        timer_ids: Ids to select; empty for any.
        reason: Text contained in the reason, case-insensitive.
        source: Text contained in the name of the source topic.
    """

    places: frozenset[DeadLetterPosition] = frozenset()
    timer_ids: frozenset[str] = frozenset()
    reason: str = ""
    source: str = ""

    @property
    def is_open(self) -> bool:
        """True if the selection has no condition and selects all dead letters."""
        return self == DeadLetterFilter()

    def means(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        place = dead_letter.place
        return (
            (not self.places or place in self.places or place._replace(number=-1) in self.places)
            and (not self.timer_ids or dead_letter.timer_id in self.timer_ids)
            and self.reason.casefold() in dead_letter.reason.casefold()
            and self.source in dead_letter.source
        )

    def unmet(self, dead_letters: Iterable[DeadLetter]) -> tuple[str, ...]:
        """Return the selected positions and ids that none of these letters has."""
        there = tuple(dead_letters)
        found = {place for one in there for place in (one.place, one.place._replace(number=-1))}
        places = tuple(str(place) for place in sorted(self.places - found))
        return places + tuple(sorted(self.timer_ids - {one.timer_id for one in there}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Result of reading letters.

    Args:
        topic: Topic of the dead letters.
        dead_letters: Selected letters, the oldest first.
        inspected: Letters read.
        entries: Unacknowledged entries.
        is_cut: True if some of these entries were not read because they are too many.
    """

    topic: str
    dead_letters: tuple[DeadLetter, ...]
    inspected: int
    entries: int
    is_cut: bool


def dead_letters(
    admin: AdminClient, box: Box, wanted: DeadLetterFilter | None = None, *, most: int = DEFAULT_LIMIT
) -> DeadLetters:
    """Read the unacknowledged letters.

    Args:
        admin: Client whose role may read the topic's stats and peek at its messages.
        box: Topic of the dead letters.
        wanted: Selection of dead letters; defaults to all.
        most: Limit of entries to read, the oldest of each partition first, and of dead letters to select.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminError: A call failed.
    """
    partitions = admin.topics.partitions(box.topic)
    if not partitions:
        raise NoSuchTarget(box.topic, f"{no_such_topic(admin, box.topic)}: {box.missing}")
    meant: list[DeadLetter] = []
    entries = inspected = seen = 0
    for number in range(partitions):
        topic = partition_topic(box.topic, number)
        waiting = _open_entries(admin, topic, box)
        first = islice(waiting.places(), most - min(entries, most))
        entries += len(waiting)
        for _, position in first:
            if len(meant) >= most:
                break
            seen += 1
            for dead_letter in _dead_letters_at(admin, topic, box, position):
                inspected += 1
                if wanted is None or wanted.means(dead_letter):
                    meant.append(dead_letter)
    meant.sort(key=lambda dead_letter: (dead_letter.since_ms, dead_letter.place))
    return DeadLetters(
        topic=box.topic, dead_letters=tuple(meant), inspected=inspected, entries=entries, is_cut=seen < entries
    )


def _open_entries(admin: AdminClient, topic: str, box: Box) -> Entries:
    try:
        stats = admin.topics.internal_stats(topic)
    except AdminMissing:
        raise NoSuchTarget(topic, f"{no_such_topic(admin, box.topic)}: {box.missing}") from None
    cursor = stats.cursors.get(box.subscription)
    if cursor is None:
        raise NoSuchTarget(topic, f"it has no subscription {box.subscription}: `timewheel topics ensure PLAN`")
    return open_entries(topic, cursor, stats.ledgers)


def _dead_letters_at(admin: AdminClient, topic: str, box: Box, position: EntryPosition) -> Iterable[DeadLetter]:
    try:
        return _dead_letters_in(topic, box, admin.topics.entry(topic, position))
    except AdminMissing:
        return ()  # it was acknowledged meanwhile
    except (AdminDenied, AdminUnreachable, OwnerUnreachable):
        raise
    except (AdminError, ValueError) as error:  # its properties are too long for a header, for example
        reason = f"the admin API does not show it: {error}"
        return (_whole(topic, position, admin.clock.now_ms(), reason),)


def _dead_letters_in(topic: str, box: Box, entry: StoredEntry) -> Iterable[DeadLetter]:
    position = entry.position
    if entry.batch_messages is None:
        message = BatchedMessage(
            properties=entry.properties,
            partition_key=entry.partition_key,
            payload_bytes=len(entry.payload),
            payload=entry.payload,
        )
        return (_letter(topic, box, entry, DeadLetterPosition(*position), message),)
    since_ms = entry.publish_at_ms
    if entry.batch_messages > LARGEST_BATCH:
        return (_whole(topic, position, since_ms, f"a batch of {entry.batch_messages:,} messages"),)
    try:
        return [
            _letter(topic, box, entry, DeadLetterPosition(position.ledger, position.entry, index), message)
            for index, message in enumerate(messages_of_batch(entry.payload, entry.batch_messages))
        ]
    except BatchGarbled as error:
        return (_whole(topic, position, since_ms, f"a batch that cannot be read: {error}", entry.payload),)


def _whole(topic: str, position: EntryPosition, since_ms: int, reason: str, payload: bytes = b"") -> DeadLetter:
    return DeadLetter(
        topic=topic, place=DeadLetterPosition(*position), timer_id=None, envelope=None, reason=reason, error="",
        source="", since_ms=since_ms, key=None, properties={}, payload=payload, is_whole=True,
    )  # fmt: skip


def _letter(topic: str, box: Box, entry: StoredEntry, place: DeadLetterPosition, message: BatchedMessage) -> DeadLetter:
    properties = message.properties
    return DeadLetter(
        topic=topic,
        place=place,
        timer_id=properties.get(ID_PROPERTY) or None,
        envelope=envelope_in(properties),
        reason=properties.get(box.reason_property, "it does not say"),
        error=properties.get(box.error_property, "") if box.error_property else "",
        source=properties.get(box.from_property, ""),
        since_ms=entry.publish_at_ms,
        key=message.partition_key,
        properties=properties,
        payload=message.payload,
    )
