"""Looking at a hole: was something never handed out, or has somebody else acknowledged it (rules.md 2)?

A relay that was frozen and comes back, or whose topic an operator has skipped forward, meets a jump as well. The
difference is in the topic: what others have acknowledged can still be read.
"""

from __future__ import annotations

from typing import Any

import pulsar

from timewheel.consumers.relay.contiguity import Spot, follows
from timewheel.wire.positions import Position

__all__ = ["others_acknowledged"]

READ_TIMEOUT_MS = 5_000
READ_AHEAD = 10
"""Entries; with 1 the client's reader throws away its start message, asks for no other, and waits for ever."""


def others_acknowledged(client: Any, topic: str, after: Spot, before: Position) -> bool:
    """Whether what stands between two positions can be read, so that others must have acknowledged it.

    Only the first message behind ``after`` is looked at: what lies further was seen by whoever acknowledged it.

    Args:
        client: The user's `pulsar.Client`.
        topic: Full name of the partition.
        after: The last message that was in order.
        before: The message behind the hole.

    Raises:
        PulsarException: The topic could not be read now.
    """
    ledger, entry, index = after.position
    reader = client.create_reader(
        topic,
        pulsar.MessageId(-1, ledger, entry, index),
        receiver_queue_size=READ_AHEAD,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    try:
        while True:
            try:
                found = Position.of(reader.read_next(READ_TIMEOUT_MS).message_id())
            except pulsar.Timeout:
                return False
            if found > after.position:
                return found < before and follows(after, found)
    finally:
        reader.close()
