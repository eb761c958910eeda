"""Acknowledges again, in the due topic, the originals of all copies in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pulsar

from timewheel.client.native import batch_size_of
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import FROM_PROPERTY
from timewheel.relay.driver.source import SessionFailed
from timewheel.shadow.driver.acker import OriginalAcker, Subscription
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.journal import Journal
from timewheel.shadow.machine.move_decider import moved_from

AT_ONCE = 10_000
QUEUE_ENTRIES = 16
JOURNAL_READ_MS = 1_000
MAX_SILENT = 30
_BEGIN = pulsar.MessageId.earliest


def ack_again(
    client: Any,
    journal_part: str,
    *,
    after: EntryPosition,
    last: EntryPosition,
    acked: Mapping[Subscription, Acked],
    acker: OriginalAcker,
    journal: Journal,
    beat: Callable[[], None],
) -> tuple[int, int]:
    """Read the journal to its end, and acknowledge its originals on each subscription that has not acknowledged them.

    All copies that are read here are stored in the journal, so no original is acknowledged without a stored copy.

    Args:
        client: The user's `pulsar.Client`.
        journal_part: Full name of the journal's partition.
        after: The journal's cursor; it holds the copies behind it.
        last: The journal's last entry; no shadow moves meanwhile.
        acked: Acknowledged entries of each subscription.
        acker: Acknowledges.
        journal: Gets all copies.
        beat: Called from time to time; may raise, to end the read.

    Raises:
        SessionFailed: The journal cannot be read to its end.
        BinaryProtocolError: Originals could not be acknowledged.
        PulsarException: The journal could not be read.

    Returns:
        The number of copies in the journal, and of forgotten acknowledgements.
    """
    held = forgotten = 0
    pending: dict[Subscription, list[EntryPosition]] = {one: [] for one in acked}
    for original, copy in _copies(client, journal_part, after, last, beat):
        held += 1
        journal.add(original, copy)
        for subscription, known in acked.items():
            if original not in known:
                pending[subscription].append(original)
        if held % AT_ONCE == 0:
            forgotten += _ack(acker, pending)
    return held, forgotten + _ack(acker, pending)


def _ack(acker: OriginalAcker, pending: dict[Subscription, list[EntryPosition]]) -> int:
    count = max((len(positions) for positions in pending.values()), default=0)
    acker.ack_on(pending)
    for positions in pending.values():
        positions.clear()
    return count


def _copies(
    client: Any, journal_part: str, after: EntryPosition, last: EntryPosition, beat: Callable[[], None]
) -> Iterator[tuple[EntryPosition, EntryPosition]]:
    """Yield the positions of each original and its copy."""
    if last <= after or last.entry < 0:
        return
    # The end is known beforehand: for a reader that begins behind a batch the client reports that more messages exist.
    start = _BEGIN if after.entry < 0 else pulsar.MessageId(-1, after.ledger, after.entry, -1)
    silent = 0
    with closing(client.create_reader(journal_part, start, receiver_queue_size=QUEUE_ENTRIES)) as reader:
        while True:
            beat()
            try:
                message = reader.read_next(JOURNAL_READ_MS)
            except pulsar.Timeout:
                silent += 1
                if silent == MAX_SILENT:
                    raise SessionFailed(f"{journal_part} could not be read up to {tuple(last)}") from None
                continue
            silent = 0
            place = message.message_id()
            copy = EntryPosition(place.ledger_id(), place.entry_id())
            found = None
            with suppress(UnicodeDecodeError):  # not written by a shadow
                found = moved_from(message.properties().get(FROM_PROPERTY, ""))
            if found is not None:
                yield found[0], copy
            if copy >= last and place.batch_index() >= batch_size_of(place) - 1:
                return
