"""The gate before the journal: a copy moves on only when its original is acknowledged.

The relay behind it is the same as for any holding topic. A received copy was read from the journal, so it is stored,
and acknowledging its original loses no timer. And once the copy is sent on, the original can no longer reach a
consumer.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

import pulsar

from timewheel.broker.protocol.errors import BinaryProtocolError
from timewheel.client.native import size_of
from timewheel.client.positions import EntryPosition, Position
from timewheel.client.surface import ConsumerLike
from timewheel.core.clock import Clock
from timewheel.core.envelope import FROM_PROPERTY
from timewheel.core.rng import Random
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.relay.machine.backoff import Backoff
from timewheel.shadow.driver.acker import OriginalAcker
from timewheel.shadow.machine.move_decider import moved_from

ACK_MESSAGES = 1_000
"""Originals acknowledged at once: as many as fit into a command."""
ACK_BYTES = 4_000_000
"""Limit of messages in flight while their originals are acknowledged; a single message may be larger."""
MORE_MS = 1
"""Time to wait for another message, once there is a message."""
TRY_FOR_MS = 30_000
"""A topic that moves to another broker takes seconds; a longer failure ends the relay's session, which begins anew."""
PAUSE_FIRST_MS = 50
PAUSE_LONGEST_MS = 2_000


class AckBeforeRelay:
    """A consumer of a journal's partition that acknowledges originals before it returns their copies; for a single
    thread.

    Args:
        consumer: The client's consumer.
        acker: Acknowledger of originals of the due topic's partition; closed with this consumer.
        handle: Handle of the relay's partition.
        clock: For pauses.
        rng: For pauses.

    Attributes:
        acked_originals: Number of acknowledged originals; an original whose copy was redelivered meanwhile counts once.
    """

    def __init__(self, consumer: ConsumerLike, acker: OriginalAcker, handle: Handle, clock: Clock, rng: Random) -> None:
        self._consumer = consumer
        self._acker = acker
        self._handle = handle
        self._clock = clock
        self._rng = rng
        self._ready: deque[_Copy] = deque()
        self.acked_originals = 0
        self._noted: Position | None = None

    def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message whose original, if it has any, is acknowledged.

        Raises:
            pulsar.Timeout: No message came in time.
            SessionFailed: Originals could not be acknowledged for a while, or the relay is to stop meanwhile.
        """
        if not self._ready:
            try:
                gathered = self._gather(timeout_millis)
            except pulsar.Timeout:
                self._keep_alive()
                raise
            self._ack(gathered)
            self._note(gathered)
            self._ready.extend(gathered)
        return self._ready.popleft()

    @property
    def acked_to(self) -> EntryPosition | None:
        """Position of the copy up to which all originals are acknowledged; None: no copy came yet."""
        return None if self._noted is None else EntryPosition(*self._noted[:2])

    def _gather(self, timeout_millis: int | None) -> list[_Copy]:
        first = self._consumer.receive(timeout_millis)
        gathered, size = [_Copy(first)], size_of(first)
        until_ms = self._clock.monotonic_ms() + self._acker.wait_ms()
        while len(gathered) < ACK_MESSAGES and size < ACK_BYTES and not self._handle.stopping:
            try:
                message = self._consumer.receive(max(until_ms - self._clock.monotonic_ms(), MORE_MS))
            except pulsar.Timeout:
                break
            gathered.append(_Copy(message))
            size += size_of(message)
        return gathered

    def _ack(self, messages: list[_Copy]) -> None:
        positions = [message.original for message in messages if message.original is not None]
        if not positions:
            return
        backoff = Backoff(PAUSE_FIRST_MS, PAUSE_LONGEST_MS, self._rng)
        give_up_ms = self._clock.monotonic_ms() + TRY_FOR_MS
        while True:
            self._handle.beat()
            try:
                self._acker.ack(positions)
            except BinaryProtocolError as error:
                if self._handle.stopping or self._clock.monotonic_ms() >= give_up_ms:
                    raise SessionFailed(f"originals in {self._acker.part} are not acknowledged: {error}") from error
                self._handle.pause(backoff.next_ms())
            else:
                return

    def _note(self, messages: list[_Copy]) -> None:
        """Count the acknowledged originals. A new relay requests all messages once more
        (`redeliver_unacknowledged_messages`).
        """
        first, last = _position_of(messages[0]), _position_of(messages[-1])
        originals = [message.original for message in messages if message.original is not None]
        if (self._noted is None or first > self._noted) and last >= first and len(set(originals)) == len(originals):
            # None was redelivered: otherwise an original would be there twice, or the last copy before the first.
            self.acked_originals += len(originals)
            self._noted = last
            return
        for message in messages:
            position = _position_of(message)
            if self._noted is None or position > self._noted:
                self.acked_originals += message.original is not None
                self._noted = position

    def _keep_alive(self) -> None:
        # The next acknowledge joins anew; the mover acknowledges again the acknowledgements that a reload forgot.
        with suppress(BinaryProtocolError):
            self._acker.keep_alive()

    def acknowledge_cumulative(self, message: Any) -> None:
        self._consumer.acknowledge_cumulative(message)

    def acknowledge(self, message: Any) -> None:
        self._consumer.acknowledge(message)

    def negative_acknowledge(self, message: Any) -> None:
        self._consumer.negative_acknowledge(message)

    def get_last_message_id(self) -> Any:
        return self._consumer.get_last_message_id()

    def redeliver_unacknowledged_messages(self) -> None:
        # The messages that wait here are redelivered with the others.
        self._ready.clear()
        self._consumer.redeliver_unacknowledged_messages()

    def is_connected(self) -> bool:
        return self._consumer.is_connected()

    def close(self) -> None:
        self._acker.close()
        self._consumer.close()


class _Copy:
    """A received message whose properties are read only once: reading them is a large part of a relay's work."""

    __slots__ = ("_message", "_properties", "_whole", "original")

    def __init__(self, message: Any) -> None:
        self._whole = message
        # The attribute that `timewheel.client.native` and the client itself read.
        self._message = getattr(message, "_message", message)
        self._properties: dict[str, str] | None = None
        self.original: EntryPosition | None = None
        with suppress(UnicodeDecodeError):  # the relay fails on it, too
            self._properties = properties = message.properties()
            # This property concerns only the journal.
            found = moved_from(properties.pop(FROM_PROPERTY, ""))
            self.original = None if found is None else found[0]

    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self._whole.properties() if self._properties is None else self._properties
        return properties

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def _position_of(message: _Copy) -> Position:
    return Position.of(message.message_id())
