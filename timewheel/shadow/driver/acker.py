"""Acknowledges originals in the due topic, on every subscription, on behalf of consumers that do not notice it; and
returns the journal's copies to the relay only after that.

The relay is the same as for any holding topic. A received copy was read from the journal, so it is stored, and
acknowledging its original loses no timer. And once the copy is sent on, the original can no longer reach a consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import pulsar

from timewheel.broker.admin.stats import SHADOW_ACKER
from timewheel.broker.protocol.commands import SubscriptionType
from timewheel.broker.protocol.consumers import EntryAcknowledger
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerRefused, ConsumerLost
from timewheel.client.native import size_of
from timewheel.client.positions import EntryPosition, Position
from timewheel.client.surface import ConsumerLike
from timewheel.core.clock import Clock
from timewheel.core.envelope import FROM_PROPERTY
from timewheel.core.rng import Random
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.relay.machine.backoff import Backoff
from timewheel.shadow.driver.inspector import Subscription, TopicInspector
from timewheel.shadow.machine.move_decider import moved_from

JOIN_EVERY_MS = 500
"""On Key_Shared a consumer is assigned keys while it is connected, and their messages wait meanwhile: so the acker
joins, acknowledges and leaves (broker-facts: acknowledging-for-others)."""
KEEP_ALIVE_MS = 10_000
_OTHER_TYPE = "different type"  # the brokers' error text for a consumer whose type differs from the others'


class OriginalAcker:
    """Acknowledges entries of a partition, for a single thread; after an error the same ones again, without harm."""

    def __init__(self, dialer: Dialer, part: str, inspector: TopicInspector, clock: Clock) -> None:
        self._dialer = dialer
        self.part = part
        self._inspector = inspector
        self._clock = clock
        self._joined: dict[str, EntryAcknowledger] = {}
        self._visited_ms: int | None = None
        self._called_ms = clock.monotonic_ms()

    def wait_ms(self) -> int:
        """Return how long an acknowledgement waits, so that subscriptions are not joined for moments too often."""
        if self._visited_ms is None or all(one.joins for one in self._delaying()):
            return 0
        return max(self._visited_ms + JOIN_EVERY_MS - self._clock.monotonic_ms(), 0)

    def ack(self, positions: Sequence[EntryPosition]) -> None:
        """Acknowledge on every subscription that delays; raises BinaryProtocolError if the broker has not confirmed."""
        self.ack_on(dict.fromkeys(self._delaying(), positions))

    def ack_on(self, wanted: Mapping[Subscription, Sequence[EntryPosition]]) -> None:
        """Acknowledge the entries of each subscription; errors as for `ack`."""
        self._leave_what_is_not_joined()
        for subscription, positions in wanted.items():
            name = subscription.name
            if not positions:
                continue
            if subscription.joins:
                member = self._joined.pop(name, None) or self._open(name, SubscriptionType.SHARED)
                member.acknowledge(positions)  # an error has closed it
                self._joined[name] = member
                continue
            member = self._open(name, SubscriptionType.KEY_SHARED if subscription.by_key else SubscriptionType.SHARED)
            try:
                member.acknowledge(positions)
            except BaseException:
                member.close()
                raise
            member.leave()
            self._visited_ms = self._clock.monotonic_ms()
        self._called_ms = self._clock.monotonic_ms()

    def keep_alive(self) -> None:
        """Keep connections alive, every few seconds; BinaryProtocolError: acknowledgements may be forgotten."""
        self._leave_what_is_not_joined()
        if self._clock.monotonic_ms() - self._called_ms < KEEP_ALIVE_MS:
            return
        self._called_ms = self._clock.monotonic_ms()
        for name, member in tuple(self._joined.items()):
            try:
                member.keep_alive()
            except BaseException:
                self._joined.pop(name, None)
                raise

    def close(self) -> None:
        """Leave all subscriptions."""
        joined, self._joined = self._joined, {}
        for member in joined.values():
            member.close()

    def _delaying(self) -> list[Subscription]:
        return [one for one in self._inspector.subscriptions(self.part) if one.delays]

    def _leave_what_is_not_joined(self) -> None:
        # A consumer that stays alone in a subscription decides its type, and hides that all other consumers are gone.
        joins = {one.name for one in self._inspector.subscriptions(self.part) if one.joins}
        for name in self._joined.keys() - joins:
            self._joined.pop(name).close()

    def _open(
        self, name: str, kind: Literal[SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
    ) -> EntryAcknowledger:
        # A broker creates a missing subscription, from the earliest entry; it would have no reader, and the journal
        # would wait for it for ever. If the subscriptions are unknown, to keep timers waiting would be worse.
        there = self._inspector.there_now(self.part)
        if there is not None and name not in there:
            self._inspector.inspect_soon()
            raise ConsumerLost(self.part, f"subscription {name} is gone")
        try:
            return EntryAcknowledger(self._dialer, self.part, name, kind=kind, name=SHADOW_ACKER)
        except BrokerRefused as error:
            if _OTHER_TYPE in error.reason:
                self._inspector.inspect_soon()
            raise


ACK_MESSAGES = 1_000  # originals acknowledged at once: as many as fit into a command
ACK_BYTES = 4_000_000
"""Limit of messages in flight while their originals are acknowledged; a single message may be larger."""
MORE_MS = 1  # time to wait for another message, once there is a message
TRY_FOR_MS = 30_000
"""A topic that moves to another broker takes seconds; a longer failure ends the relay's session, which begins anew."""
PAUSE_FIRST_MS = 50
PAUSE_LONGEST_MS = 2_000


class AckBeforeRelay:
    """A consumer of a journal's partition that acknowledges originals before it returns their copies; one thread."""

    def __init__(self, consumer: ConsumerLike, acker: OriginalAcker, handle: Handle, clock: Clock, rng: Random) -> None:
        self._consumer = consumer
        self._acker = acker
        self._handle = handle
        self._clock = clock
        self._rng = rng
        self._ready: deque[_Copy] = deque()
        self.acked_originals = 0  # an original whose copy was redelivered meanwhile counts once
        self._noted: Position | None = None

    def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message whose original, if any, is acknowledged; a time of 0 waits for nothing.

        SessionFailed: for a while none could be acknowledged.
        """
        if not self._ready:
            if timeout_millis == 0:
                raise pulsar.Timeout("no message is ready")
            try:
                gathered = self._gather(timeout_millis)
            except pulsar.Timeout:
                # The next acknowledge joins anew; the mover acknowledges again what a reload forgot.
                with suppress(BinaryProtocolError):
                    self._acker.keep_alive()
                raise
            self._ack([message.original for message in gathered if message.original is not None])
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

    def _ack(self, positions: list[EntryPosition]) -> None:
        backoff = Backoff(PAUSE_FIRST_MS, PAUSE_LONGEST_MS, self._rng)
        give_up_ms = self._clock.monotonic_ms() + TRY_FOR_MS
        while positions:
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
        """Count the acknowledged originals. A new relay requests all messages once more."""
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
            if (found := moved_from(properties.pop(FROM_PROPERTY, ""))) is not None:
                self.original = found[0]

    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self._whole.properties() if self._properties is None else self._properties
        return properties

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def _position_of(message: _Copy) -> Position:
    return Position.of(message.message_id())
