"""The timers in a stored entry of a plan's topic: ids, due times, and positions of their originals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from timewheel.broker.admin.entries import BatchGarbled, messages_of_batch
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import whole_number
from timewheel.core.envelope import FROM_PROPERTY, MAX_TIMER_ID_CHARS, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.shadow.driver.content import DamagedPayload, opened
from timewheel.shadow.machine.move_decider import moved_from


class StoredTimer(NamedTuple):
    """A timer of a plan's topic.

    Args:
        timer_id: Its id.
        due_ms: Its due time, UTC milliseconds.
        original: Position of the original; only of a copy in the journal.
        published_ms: Publish time of the original, UTC milliseconds; 0: it has none.
    """

    timer_id: str
    due_ms: int
    original: EntryPosition | None = None
    published_ms: int = 0


def key_of(timer_id: str) -> int:
    """Return a number for an id, the same in every process; signed, of 64 bits."""
    return int.from_bytes(
        hashlib.blake2b(timer_id.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )


def original_of(timer_id: str, part: str) -> EntryPosition | None:
    """Return the position of a timer's original, from its id; None: no shadow of this partition gives such an id.

    Args:
        timer_id: Id of the timer.
        part: Full name of the due topic's partition.
    """
    head, _, entry = timer_id.rpartition(":")
    head, _, ledger = head.rpartition(":")
    is_its = head == part or (len(timer_id) == MAX_TIMER_ID_CHARS and part.endswith(head))
    at, number = whole_number(ledger), whole_number(entry)
    return None if not is_its or at is None or number is None else EntryPosition(at, number)


def properties_in(entry: Entry) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the properties of each message, with its index in the batch; -1: no batch. An entry that does not
    decompress yields nothing, and a batch nothing from its first unreadable message on.

    Args:
        entry: An entry with its payload.
    """
    if (entry.is_encrypted and entry.batch_size) or entry.defect is not None:
        return
    if not entry.batch_size:
        yield -1, entry.properties
        return
    try:
        for number, message in enumerate(messages_of_batch(opened(entry), entry.batch_size)):
            yield number, message.properties
    except (BatchGarbled, DamagedPayload):
        return


def timers_in(entry: Entry) -> Iterator[StoredTimer]:
    """Yield the timers of an entry of a topic of the plan, with the positions of the copies' originals.

    Args:
        entry: An entry with its payload.
    """
    for _, properties in properties_in(entry):
        try:
            envelope = Envelope.read(properties)
        except EnvelopeError:
            continue
        if envelope is not None:
            found = moved_from(properties.get(FROM_PROPERTY, "")) or (None, 0)
            yield StoredTimer(envelope.timer_id, envelope.due_ms, *found)
