"""Looking at a hole: can what is missing be read (broker-facts: holes-in-positions)?

A relay that was frozen and comes back meets a jump over what others have done, so does one whose topic an operator has
skipped forward, and a broker may deliver out of order when consumers change (see `beginning`). All that can be read,
and a new subscription that makes sure of its beginning goes on rightly. What cannot be read is what the client hides.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import pulsar

from timewheel.consumers.relay.machine.order import Spot, follows
from timewheel.wire.positions import Position

__all__ = ["can_be_read", "first_behind"]

READ_TIMEOUT_MS = 5_000
READ_AHEAD = 10
"""Entries; with 1 the client's reader throws away its start message, asks for no other, and waits for ever."""


def can_be_read(client: Any, topic: str, after: Spot, before: Position) -> bool:
    """Whether the message behind ``after`` can be read, so that nothing but the order was wrong, or nothing at all.

    What lies further is met by the next subscription, or was met by whoever acknowledged it.

    Args:
        client: The user's `pulsar.Client`.
        topic: Full name of the partition.
        after: The last message that was in order.
        before: The message behind the hole.

    Raises:
        PulsarException: The topic could not be read now.
    """
    found = first_behind(client, topic, after.position)
    if found > before:
        return False
    # `before` itself, if only the look that doubted it was at fault.
    if follows(after, found):
        return True
    # That a ledger is trimmed excuses what is missing at its end, and nothing that is missing of a later one.
    begins_ledger = found.ledger > after.position.ledger and found.entry == 0 and found.batch_index <= 0
    return begins_ledger and _is_trimmed(client, topic, after.position)


def first_behind(client: Any, topic: str, after: Position) -> Position:
    """The first position behind another one that can be read, acknowledged or not.

    Something must be there: whoever looks has received what stands further. So silence is no answer, it is a broker
    that was killed or is slow, and must not pass for a hole.

    Args:
        client: The user's `pulsar.Client`.
        topic: Full name of the partition.
        after: A position.

    Raises:
        PulsarException: The topic could not be read now; `pulsar.Timeout` if nothing came.
    """
    with closing(_read_from(client, topic, after)) as positions:
        return next(found for found in positions if found > after)


def _is_trimmed(client: Any, topic: str, position: Position) -> bool:
    """Whether the ledger of a position is gone: then all that was in it is acknowledged, or was skipped or expired."""
    entry = position._replace(batch_index=-1)
    with closing(_read_from(client, topic, entry, inclusive=True)) as positions:
        return next(positions).ledger > position.ledger


def _read_from(client: Any, topic: str, start: Position, *, inclusive: bool = False) -> Generator[Position]:
    ledger, entry, index = start
    reader = client.create_reader(
        topic,
        pulsar.MessageId(-1, ledger, entry, index),
        receiver_queue_size=READ_AHEAD,
        start_message_id_inclusive=inclusive,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    try:
        while True:
            yield Position.of(reader.read_next(READ_TIMEOUT_MS).message_id())
    finally:
        reader.close()
