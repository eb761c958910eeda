"""Looking at a hole: can what is missing be read (broker-facts: holes-in-positions)?

A relay that was frozen and comes back meets a jump over what others have done, so does one whose topic an operator has
skipped forward, and a broker may deliver out of order when consumers change (see `beginning`). All that can be read,
and a new subscription that makes sure of its beginning goes on rightly. What cannot be read is what the client hides.
"""

from __future__ import annotations

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
    # `before` itself, if only the look that doubted it was at fault.
    return found <= before and follows(after, found)


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
    ledger, entry, index = after
    reader = client.create_reader(
        topic,
        pulsar.MessageId(-1, ledger, entry, index),
        receiver_queue_size=READ_AHEAD,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    try:
        while True:
            found = Position.of(reader.read_next(READ_TIMEOUT_MS).message_id())
            if found > after:
                return found
    finally:
        reader.close()
