"""Letters: what waits for an operator, dead or parked, with the reason; read without consuming."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from timewheel.admin.batches import BatchedMessage, BatchGarbled, messages_of_batch
from timewheel.admin.client import AdminClient
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition
from timewheel.core.digits import whole_number
from timewheel.core.envelope import ID_PROPERTY, Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import partition_topic
from timewheel.ops.errors import NoSuchTarget
from timewheel.ops.letters.box import Box
from timewheel.ops.sample import envelope_in
from timewheel.ops.status.runs import open_runs, positions_of
from timewheel.wire.positions import Position

__all__ = ["DEFAULT_MOST", "Letter", "LetterPlace", "Letters", "Wish", "letters"]

DEFAULT_MOST = 1_000
"""Entries that are looked at, each by a call of some milliseconds; and letters that are kept, but for the rest of the
last one's entry."""


class LetterPlace(NamedTuple):
    """Where a letter lies: the entry, and its number in the batch that this is; -1: it is none."""

    ledger: int
    entry: int
    number: int = -1

    @property
    def position(self) -> EntryPosition:
        """The entry's."""
        return EntryPosition(self.ledger, self.entry)

    def __str__(self) -> str:
        return Position(*self).text

    @classmethod
    def parse(cls, text: str) -> LetterPlace | None:
        """Read what `str` writes; None: it is nothing of the kind."""
        parts = [whole_number(part) for part in text.split(":")]
        numbers = [part for part in parts if part is not None]
        return cls(*numbers) if len(numbers) == len(parts) and len(parts) in (2, 3) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One of them.

    Args:
        topic: The partition that it lies in.
        place: Where there.
        timer_id: Its id; None: it has none.
        envelope: Its envelope; None: it has none that can be read.
        reason: Why it is here.
        error: What its handler raised; empty: it does not say.
        source: The partition topic that it was taken from; empty: it does not say.
        since_ms: Since when it is here, UTC milliseconds.
        key: Its partition key.
        properties: All that it has, the notes on why it is here with them.
        payload: As it was sent.
        is_whole: It stands for an entry that is not opened: it can be dropped, and not sent again.
    """

    topic: str
    place: LetterPlace
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
class Wish:
    """Which letters are meant: those that meet all that is said here.

    Args:
        places: One of these; none: anywhere.
        timer_ids: With one of these ids; none: any.
        reason: In whose reason this is found, in capitals or not.
        source: From a topic in whose name this is found.
    """

    places: frozenset[LetterPlace] = frozenset()
    timer_ids: frozenset[str] = frozenset()
    reason: str = ""
    source: str = ""

    @property
    def is_open(self) -> bool:
        """Nothing is said: all are meant."""
        return self == Wish()

    def means(self, letter: Letter) -> bool:
        """Whether this one is meant."""
        place = letter.place
        return (
            (not self.places or place in self.places or place._replace(number=-1) in self.places)
            and (not self.timer_ids or letter.timer_id in self.timer_ids)
            and self.reason.casefold() in letter.reason.casefold()
            and self.source in letter.source
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What was found.

    Args:
        topic: The topic that they lie in.
        letters: Those that were meant, the oldest first.
        looked_at: Letters that were looked at.
        entries: Entries that nobody has dealt with.
        is_cut: Some of these were not looked at, since there are too many.
    """

    topic: str
    letters: tuple[Letter, ...]
    looked_at: int
    entries: int
    is_cut: bool


def letters(admin: AdminClient, box: Box, wish: Wish | None = None, *, most: int = DEFAULT_MOST) -> Letters:
    """The letters that nobody has dealt with.

    Args:
        admin: Whose role may see the topic's stats and peek at its messages.
        box: Where they are.
        wish: Which; None: all.
        most: So many entries are looked at, of each partition the oldest first, until so many letters are meant.

    Raises:
        NoSuchTarget: Nobody has made the topic.
        AdminError: A call failed.
    """
    partitions = admin.topics.partitions(box.topic)
    if not partitions:
        raise NoSuchTarget(box.topic, box.missing)
    meant: list[Letter] = []
    entries = looked_at = seen = 0
    for number in range(partitions):
        topic = partition_topic(box.topic, number)
        positions = _open_positions(admin, topic, box, most - min(entries, most))
        entries += positions.entries
        for position in positions.first:
            if len(meant) >= most:
                break
            seen += 1
            for letter in _letters_at(admin, topic, box, position):
                looked_at += 1
                if wish is None or wish.means(letter):
                    meant.append(letter)
    meant.sort(key=lambda letter: (letter.since_ms, letter.place))
    return Letters(topic=box.topic, letters=tuple(meant), looked_at=looked_at, entries=entries, is_cut=seen < entries)


class _Open(NamedTuple):
    """What nobody has dealt with in one partition: how many entries, and where the first of them are."""

    entries: int
    first: tuple[EntryPosition, ...]


def _open_positions(admin: AdminClient, topic: str, box: Box, most: int) -> _Open:
    try:
        stats = admin.topics.internal_stats(topic)
    except AdminMissing:
        raise NoSuchTarget(topic, box.missing) from None
    cursor = stats.cursors.get(box.subscription)
    if cursor is None:
        raise NoSuchTarget(topic, f"it has no subscription {box.subscription}: `timewheel topics ensure PLAN`")
    runs = open_runs(cursor, stats.ledgers)
    entries = sum(run.entries for run in runs)
    return _Open(entries, tuple(positions_of(runs, range(min(entries, most)))))


def _letters_at(admin: AdminClient, topic: str, box: Box, position: EntryPosition) -> Iterable[Letter]:
    try:
        return _letters_in(topic, box, admin.topics.entry(topic, position))
    except AdminMissing:
        return ()  # somebody dealt with it meanwhile
    except (AdminDenied, AdminUnreachable):
        raise
    except (AdminError, ValueError) as error:  # its properties are too long for a header, for example
        reason = f"the admin API does not show it: {error}"
        return (_whole(topic, position, admin.clock.now_ms(), reason),)


def _letters_in(topic: str, box: Box, entry: StoredEntry) -> Iterable[Letter]:
    position = entry.position
    if entry.batch_messages is None:
        message = BatchedMessage(
            properties=entry.properties,
            partition_key=entry.partition_key,
            payload_bytes=len(entry.payload),
            payload=entry.payload,
        )
        return (_letter(topic, box, entry, LetterPlace(*position), message),)
    since_ms = entry.publish_at_ms
    if entry.batch_messages > LARGEST_BATCH:
        return (_whole(topic, position, since_ms, f"a batch of {entry.batch_messages:,} messages"),)
    try:
        return [
            _letter(topic, box, entry, LetterPlace(position.ledger, position.entry, index), message)
            for index, message in enumerate(messages_of_batch(entry.payload, entry.batch_messages))
        ]
    except BatchGarbled as error:
        return (_whole(topic, position, since_ms, f"a batch that cannot be read: {error}", entry.payload),)


def _whole(topic: str, position: EntryPosition, since_ms: int, reason: str, payload: bytes = b"") -> Letter:
    return Letter(
        topic=topic, place=LetterPlace(*position), timer_id=None, envelope=None, reason=reason, error="", source="",
        since_ms=since_ms, key=None, properties={}, payload=payload, is_whole=True,
    )  # fmt: skip


def _letter(topic: str, box: Box, entry: StoredEntry, place: LetterPlace, message: BatchedMessage) -> Letter:
    properties = message.properties
    return Letter(
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
