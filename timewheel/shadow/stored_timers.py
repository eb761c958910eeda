"""The timers in an entry of a plan's topic, as it is stored: their ids, due times, and where their originals stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from timewheel.admin.batches import BatchGarbled, messages_of_batch
from timewheel.binary_protocol.entries import Entry
from timewheel.core.digits import whole_number
from timewheel.core.envelope import FROM_PROPERTY, MAX_TIMER_ID_CHARS, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.shadow.driver.content import DamagedPayload, opened
from timewheel.shadow.machine.lifting import lifted_from
from timewheel.wire.positions import EntryPosition

__all__ = ["StoredTimer", "key_of", "original_of", "properties_in", "timers_in"]


class StoredTimer(NamedTuple):
    """A timer of a plan's topic.

    Args:
        timer_id: Its name.
        due_ms: When it is due, UTC milliseconds.
        original: Of a copy in the journal: where its original stands.
        published_ms: When that was published, UTC milliseconds; 0: it has none.
    """

    timer_id: str
    due_ms: int
    original: EntryPosition | None = None
    published_ms: int = 0


def key_of(timer_id: str) -> int:
    """A number for an id, the same in every process; signed, of 64 bits."""
    return int.from_bytes(
        hashlib.blake2b(timer_id.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )


def original_of(timer_id: str, part: str) -> EntryPosition | None:
    """Where the original of a timer stands, by its id; None: the id is none that a shadow of this partition gives.

    Args:
        timer_id: Its.
        part: Full name of the due topic's partition.
    """
    head, _, entry = timer_id.rpartition(":")
    head, _, ledger = head.rpartition(":")
    is_its = head == part or (len(timer_id) == MAX_TIMER_ID_CHARS and part.endswith(head))
    at, number = whole_number(ledger), whole_number(entry)
    return None if not is_its or at is None or number is None else EntryPosition(at, number)


def properties_in(entry: Entry) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The properties of each message, with its number in the batch; -1: it is none. Nothing of what does not open,
    and of a batch nothing from the first message on that cannot be read.

    Args:
        entry: Read with its payload.
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
    """The timers of an entry of a topic of the plan, and where the originals of copies stand.

    Args:
        entry: Read with its payload.
    """
    for _, properties in properties_in(entry):
        try:
            envelope = Envelope.read(properties)
        except EnvelopeError:
            continue
        if envelope is not None:
            found = lifted_from(properties.get(FROM_PROPERTY, "")) or (None, 0)
            yield StoredTimer(envelope.timer_id, envelope.due_ms, *found)
