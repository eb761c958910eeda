"""Dead letters: what a relay could not move on, with the reason; read without consuming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from timewheel.admin.batches import BatchGarbled, messages_of_batch
from timewheel.admin.client import AdminClient
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition
from timewheel.core.envelope import ID_PROPERTY, Envelope
from timewheel.core.errors import AdminMissing
from timewheel.core.names import DEAD_LETTER_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.ops.errors import NoSuchTarget
from timewheel.ops.sample import envelope_in
from timewheel.ops.status.runs import open_runs, positions_of
from timewheel.wire.dead_letters import DEAD_FROM, DEAD_REASON

__all__ = ["DEFAULT_MOST", "DeadLetter", "DeadLetters", "LetterPlace", "Wish", "dead_letters", "dead_letters_partition"]

DEFAULT_MOST = 1_000
"""Entries that are looked at; each is a call of some milliseconds."""


class LetterPlace(NamedTuple):
    """Where a dead letter lies: the entry, and its number in the batch that this is; -1: it is none."""

    ledger: int
    entry: int
    number: int = -1

    @property
    def position(self) -> EntryPosition:
        """The entry's."""
        return EntryPosition(self.ledger, self.entry)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.number}" if self.number >= 0 else "")

    @classmethod
    def parse(cls, text: str) -> LetterPlace | None:
        """Read what `str` writes; None: it is nothing of the kind."""
        parts = text.split(":")
        if len(parts) not in (2, 3) or not all(part.isdecimal() and len(part) < 19 for part in parts):
            return None
        return cls(*map(int, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One of them.

    Args:
        place: Where it lies in the dead-letter topic.
        timer_id: Its id; None: it has none.
        envelope: Its envelope; None: it has none that can be read.
        reason: Why it is dead.
        source: The partition topic that it was taken from; empty: it does not say.
        died_ms: When, UTC milliseconds.
        key: Its partition key.
        properties: All that it has, the relay's notes with them.
        payload: As it was sent.
    """

    place: LetterPlace
    timer_id: str | None
    envelope: Envelope | None
    reason: str
    source: str
    died_ms: int
    key: str | None
    properties: Mapping[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which dead letters are meant: those that meet all that is said here.

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

    def means(self, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        place = letter.place
        return (
            (not self.places or place in self.places or place._replace(number=-1) in self.places)
            and (not self.timer_ids or letter.timer_id in self.timer_ids)
            and self.reason.casefold() in letter.reason.casefold()
            and self.source in letter.source
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """What was found.

    Args:
        topic: The partition that they lie in.
        letters: Those that were meant, the oldest first.
        looked_at: Letters that were looked at.
        entries: Entries that nobody has dealt with; more than were looked at, if there are too many.
    """

    topic: str
    letters: tuple[DeadLetter, ...]
    looked_at: int
    entries: int


def dead_letters_partition(plan: Plan) -> str:
    """The one partition of a plan's dead-letter topic."""
    return partition_topic(Names(plan).dead_letter, 0)


def dead_letters(admin: AdminClient, plan: Plan, wish: Wish | None = None, *, most: int = DEFAULT_MOST) -> DeadLetters:
    """The dead letters that nobody has dealt with.

    Args:
        admin: Whose role may see the topic's stats and peek at its messages.
        plan: Whose relays buried them.
        wish: Which; None: all.
        most: So many entries are looked at, the oldest first.

    Raises:
        NoSuchTarget: The plan has no dead-letter topic, or nobody has made it.
        AdminError: A call failed.
    """
    topic = dead_letters_partition(plan)
    try:
        stats = admin.topics.internal_stats(topic)
    except AdminMissing:
        raise NoSuchTarget(topic, "there is no such topic: no relay works by this plan") from None
    cursor = stats.cursors.get(DEAD_LETTER_SUBSCRIPTION)
    if cursor is None:
        raise NoSuchTarget(topic, f"it has no subscription {DEAD_LETTER_SUBSCRIPTION}: `timewheel topics ensure`")
    runs = open_runs(cursor, stats.ledgers)
    entries = sum(run.entries for run in runs)
    found: list[DeadLetter] = []
    for position in positions_of(runs, range(min(entries, most))):
        try:
            found += _letters_in(admin.topics.entry(topic, position))
        except AdminMissing:
            continue  # somebody dealt with it meanwhile
    meant = tuple(letter for letter in found if wish is None or wish.means(letter))
    return DeadLetters(topic=topic, letters=meant, looked_at=len(found), entries=entries)


def _letters_in(entry: StoredEntry) -> Iterator[DeadLetter]:
    position = entry.position
    if entry.batch_messages is None:
        yield _letter(entry, LetterPlace(*position), entry.properties, entry.partition_key, entry.payload)
        return
    try:
        messages = messages_of_batch(entry.payload, entry.batch_messages)
    except BatchGarbled:
        yield _letter(entry, LetterPlace(*position), {}, None, entry.payload)
        return
    for index, message in enumerate(messages):
        place = LetterPlace(position.ledger, position.entry, index)
        yield _letter(entry, place, message.properties, message.partition_key, message.payload)


def _letter(
    entry: StoredEntry, place: LetterPlace, properties: Mapping[str, str], key: str | None, payload: bytes
) -> DeadLetter:
    return DeadLetter(
        place=place,
        timer_id=properties.get(ID_PROPERTY) or None,
        envelope=envelope_in(properties),
        reason=properties.get(DEAD_REASON, "it does not say"),
        source=properties.get(DEAD_FROM, ""),
        died_ms=entry.publish_at_ms,
        key=key,
        properties=properties,
        payload=payload,
    )
