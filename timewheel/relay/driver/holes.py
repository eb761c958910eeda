"""Examination of a possible hole: is a message missing that no client delivers (broker-facts: holes-in-positions)?

A relay meets a jump over processed positions when it was frozen and resumes, or when an operator has skipped its topic
forward; and a broker may deliver out of order when consumers change (see `beginning`). All these messages can be read,
and a new subscription that makes sure of its beginning continues correctly. Messages that cannot be read are those that
the client hides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple

import pulsar

from timewheel.client.native import first_chunk_of
from timewheel.client.positions import Position
from timewheel.relay.machine.order import Spot, begins_ledger, follows, is_hidden

READ_TIMEOUT_MS = 5_000
READ_AHEAD = 10
"""Entries; with 1 the client's reader discards its start message, requests no other, and waits for ever."""


class Seen(NamedTuple):
    """The result of an examination.

    Args:
        position: The first readable message behind the named position, acknowledged or not.
        is_hidden: Whether the client hides a message between the two.
    """

    position: Position
    is_hidden: bool


def inspect(client: Any, topic: str, after: Spot, before: Position, waits_on: Callable[[int], bool]) -> Seen:
    """Return the first readable message behind a position. Later positions are met later, or were acknowledged.

    A message must be there, since the caller has received a later position. So silence is no answer: it means a broker
    that was killed or is slow, or a client that passes over very many entries, and must not count as a hole.

    Args:
        client: The user's `pulsar.Client`.
        topic: Full name of the partition.
        after: The last message that was in order.
        before: Position of the message that came next.
        waits_on: Called after each `READ_TIMEOUT_MS` of silence, with their number; returns whether to wait longer.

    Raises:
        PulsarException: The topic could not be read now; `pulsar.Timeout` if no message arrived.
    """
    with closing(_read_from(client, topic, after.position, waits_on)) as places:
        first, found = next((first, found) for first, found in places if found > after.position)
    is_gone = (
        not follows(after, first)
        and begins_ledger(after, first)
        and _is_trimmed(client, topic, after.position, waits_on)
    )
    return Seen(found, is_hidden(after, before, first, found, is_gone=is_gone))


def _is_trimmed(client: Any, topic: str, position: Position, waits_on: Callable[[int], bool]) -> bool:
    """True if the ledger of a position is gone: then all its messages are acknowledged, or were skipped or expired."""
    entry = position._replace(batch_index=-1)
    with closing(_read_from(client, topic, entry, waits_on, inclusive=True)) as places:
        return next(places)[1].ledger > position.ledger


def _read_from(
    client: Any, topic: str, start: Position, waits_on: Callable[[int], bool], *, inclusive: bool = False
) -> Generator[tuple[Position, Position]]:
    """Yield the position at which each message begins, and its own position; the two differ for a chunked message."""
    ledger, entry, index = start
    reader = client.create_reader(
        topic,
        pulsar.MessageId(-1, ledger, entry, index),
        receiver_queue_size=READ_AHEAD,
        start_message_id_inclusive=inclusive,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    silences = 0
    try:
        while True:
            try:
                message_id = reader.read_next(READ_TIMEOUT_MS).message_id()
            except pulsar.Timeout:
                silences += 1
                if waits_on(silences):
                    continue
                raise
            position = Position.of(message_id)
            yield first_chunk_of(message_id) or position, position
    finally:
        reader.close()
