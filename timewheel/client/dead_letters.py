"""Messages that wait for an operator: their properties, and publishing in parts if no topic takes them whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from timewheel.client.native import keys_of
from timewheel.client.surface import SendCallback
from timewheel.core.envelope import ID_PROPERTY, MAX_TIMER_ID_CHARS, TIMER_PROPERTY

PARKED_PREFIX = "tw-parked-"  # prefix of these properties
PARKED_REASON = f"{PARKED_PREFIX}reason"  # reason, as a sentence
PARKED_ERROR = f"{PARKED_PREFIX}error"  # last error of its handler; absent if the reason is another
PARKED_FROM = f"{PARKED_PREFIX}from"  # partition topic from which the message was taken
PARKED_PART = f"{PARKED_PREFIX}part"
"""Part of the message that this timer holds, if it was too large for one message (`timewheel.client.dead_letters`)."""


DEAD_PREFIX = "tw-dead-"  # prefix of these properties
DEAD_REASON = f"{DEAD_PREFIX}reason"  # reason, as a sentence
DEAD_FROM = f"{DEAD_PREFIX}from"  # partition topic from which the message was taken
DEAD_AT = f"{DEAD_PREFIX}at"
"""Position in that topic: ``ledger:entry``, and ``:index`` within a batch. For messages that a relay never received,
the positions of the messages before and behind them: ``90:3..90:5``."""
DEAD_PART = f"{DEAD_PREFIX}part"
"""Part of the message that this letter holds, if it was too large for one message (`timewheel.client.dead_letters`);
``none``: the relay never received the message."""
DEAD_ENCRYPTION = f"{DEAD_PREFIX}encryption"
"""Data needed to decrypt the payload, if it is encrypted (`timewheel.client.native.encryption_of`)."""
DEAD_SCHEMA = f"{DEAD_PREFIX}schema"  # schema version in that topic; absent if the message had none


def without_notes(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a message that becomes a dead or parked letter, without notes. Notes that its sender
    wrote are left out, since operators and replays rely on them.
    """
    return {name: text for name, text in properties.items() if not name.startswith((DEAD_PREFIX, PARKED_PREFIX))}


PART_BYTES = 1_000_000  # size of a part at the first attempt; each further attempt halves it twice
MIN_PART_BYTES = 4_000
MAX_LINE_CHARS = 256  # longest line that is kept; longer than any envelope


def in_parts(
    producer: Any,
    message: Any,
    properties: dict[str, str],
    own: dict[str, str],
    part_property: str,
    attempt: int,
    callback: SendCallback,
) -> None:
    """Publish a message in parts, without batching: its payload, then as JSON its properties, keys and event time.

    Each part gets the properties ``own`` and, as ``part_property``, its number: ``payload 1/6``. Parts become smaller
    with each attempt, counted from 1. The callback gets the outcome of all parts together.
    """
    size = max(PART_BYTES >> 2 * (attempt - 1), MIN_PART_BYTES)
    contents = {"payload": bytes(message.data()), "rest": _rest(message, properties)}
    parts = [
        (f"{name} {start // size + 1}/{-(-len(content) // size)}", content[start : start + size])
        for name, content in contents.items()
        for start in range(0, len(content), size)
    ]
    named = {
        name: properties[name]
        for name, limit in ((ID_PROPERTY, MAX_TIMER_ID_CHARS), (TIMER_PROPERTY, MAX_LINE_CHARS))
        if len(properties.get(name, "")) in range(1, limit + 1)
    }
    outcome = _Together(len(parts), callback)
    for part, content in parts:
        producer.send_async(
            content, outcome.heard, properties={**named, **own, part_property: part}, disable_replication=True
        )


def _rest(message: Any, properties: dict[str, str]) -> bytes:
    key, ordering_key = (key if isinstance(key, str) else {"hex": key.hex()} for key in keys_of(message))
    rest = {
        "properties": properties,
        "key": key,
        "ordering_key": ordering_key,
        "event_ms": message.event_timestamp() or 0,
        "null_payload": bool(message.has_null_value()),
    }
    return json.dumps(rest).encode()


class _Together:
    """Combines the outcomes of several publishes: the first failure, or the last confirmation."""

    __slots__ = ("_callback", "_failed", "_left", "_lock")

    def __init__(self, count: int, callback: SendCallback) -> None:
        self._left = count
        self._callback = callback
        self._failed: Any = None
        self._lock = threading.Lock()

    def heard(self, result: Any, message_id: Any) -> None:
        """Take the outcome of a part, on the client's thread, or within the call that sends; this cannot raise."""
        with self._lock:
            self._left -= 1
            if result.value and self._failed is None:
                self._failed = result
            last = not self._left
        if last:
            self._callback(result if self._failed is None else self._failed, message_id)
