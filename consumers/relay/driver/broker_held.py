"""One subscription of one partition of a broker-held tier: the source article's way, one message at a time.

Each message stays under the broker's delay and comes when it may leave, or a tick earlier. It is published on its way
and acknowledged by itself once that is confirmed. At least once: consumers drop the copies that a crash makes.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

from timewheel.consumers.relay.driver.endings import HoleFound, SessionFailed, dead_letter_properties
from timewheel.consumers.relay.driver.handle import Handle, PartitionState
from timewheel.consumers.relay.driver.hop_producers import Hops, carry
from timewheel.consumers.relay.driver.source import Source, Tools, consumer_name
from timewheel.consumers.relay.machine.commands import judged
from timewheel.consumers.relay.machine.order import Spot
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.next_hop import Bury, Onward, Onwards
from timewheel.core.out_of_order import OutOfOrder
from timewheel.events import RelayDeadLetter
from timewheel.wire.native import decryption_failed, schema_version_of
from timewheel.wire.positions import Position

__all__ = ["BrokerHeldSession"]

RECEIVER_QUEUE_MESSAGES = 200
"""Delayed messages are never batched: an entry is a message. What waits here unacknowledged is a gap at most."""
LINGER_MS = 20
IDLE_MS = 1_000
ROOM_TIMEOUT_MS = 2_000


class BrokerHeldSession:
    """One subscription; parameters as `Session`'s."""

    def __init__(self, source: Source, tools: Tools, handle: Handle) -> None:
        self._source = source
        self._tools = tools
        self._handle = handle
        self._onwards = Onwards(tools.router, source.step)
        self._out_of_order = OutOfOrder(tools.router.plan)
        self._in_flight = 0
        self._confirmations: deque[tuple[Any, str | None, bool]] = deque()
        self._waits = False
        self._consumer: Any = None
        self._hops = Hops.of(source, tools)

    @property
    def confirmed_to(self) -> Spot | None:
        """None: there is no order in which positions are done."""
        return None

    def run(self) -> None:
        """Work until told to stop.

        Raises:
            SessionFailed: Begin anew.
            HoleFound: A message cannot be read; it and all behind it stay unacknowledged.
        """
        handle = self._handle
        try:
            self._consumer = handle.consumer = self._tools.client.subscribe(
                self._source.name,
                RELAY_SUBSCRIPTION,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
                receiver_queue_size=RECEIVER_QUEUE_MESSAGES,
                crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,  # broker-facts: holes-in-positions
                consumer_name=consumer_name(self._tools.relay_id, self._source.topic),
            )
            handle.state = PartitionState.RUNNING
            while not handle.stopping:
                if self._in_flight >= self._tools.max_in_flight:
                    self._await_confirmation(ROOM_TIMEOUT_MS)
                else:
                    self._receive()
                self._settle()
            while self._in_flight and (left_ms := handle.drain_left_ms()):
                self._await_confirmation(min(left_ms, ROOM_TIMEOUT_MS))
                self._settle()
        except pulsar.PulsarException as error:
            raise SessionFailed(str(error)) from error
        finally:
            handle.in_flight = 0
            handle.consumer = None
            self._hops.give_back()
            if self._consumer is not None:
                with suppress(pulsar.PulsarException, ValueError):
                    self._consumer.close()

    def _receive(self) -> None:
        self._handle.beat()
        self._handle.in_flight = self._in_flight
        try:
            message = self._consumer.receive(LINGER_MS if self._in_flight else IDLE_MS)
        except pulsar.Timeout:
            return
        if decryption_failed(message):
            position = Position.of(message.message_id())
            raise HoleFound(f"{tuple(position)} is encrypted, and a relay has no key", None, position)
        properties = message.properties()
        envelope = judged(properties)
        if not isinstance(envelope, Envelope):
            reason = "no envelope: a foreign producer's message" if envelope is None else str(envelope)
            self._bury(message, properties, reason)
        else:
            decision = self._onwards.delivered(envelope)
            if isinstance(decision, Bury):
                self._bury(message, properties, decision.reason)
            else:
                self._forward(message, properties, decision)

    def _forward(self, message: Any, properties: dict[str, str], onward: Onward) -> None:
        deliver_at_ms = self._out_of_order.asked(onward.deliver_at_ms) if onward.is_due else onward.deliver_at_ms
        producer = self._hops.to(onward.topic, schema_version_of(message), named=False)
        properties.update(onward.envelope.properties())
        if self._tools.hop_rules.acknowledges_first:
            self._consumer.acknowledge(message)
        self._tools.hop_rules.crash_point("before_forward")
        self._send(producer, message, properties, deliver_at_ms, dead=False)

    def _bury(self, message: Any, properties: dict[str, str], reason: str) -> None:
        producer = self._hops.to_dead_letters(self._tools.names.dead_letter)
        dead = dead_letter_properties(message, properties, reason, self._source.name)
        self._send(producer, message, dead, 0, dead=True)
        self._tools.hooks.emit(RelayDeadLetter(topic=self._source.name, reason=reason))

    def _send(self, producer: Any, message: Any, properties: dict[str, str], deliver_at_ms: int, *, dead: bool) -> None:
        self._in_flight += 1
        callback = partial(self._on_sent, message.message_id(), dead)
        carry(producer, message, callback, properties, deliver_at_ms=deliver_at_ms)

    def _on_sent(self, receipt: Any, dead: bool, result: Any, _message_id: Any) -> None:
        """Runs on the client's thread: never raises, and does next to nothing."""
        self._confirmations.append((receipt, result.name if result.value else None, dead))
        if self._waits:
            with self._handle.changed:
                self._handle.changed.notify_all()

    def _await_confirmation(self, timeout_ms: int) -> None:
        changed = self._handle.changed
        with changed:
            self._waits = True
            if not self._confirmations:
                self._tools.clock.wait(changed, timeout_ms)
            self._waits = False
        self._handle.beat()

    def _settle(self) -> None:
        """Acknowledge what is confirmed."""
        counts, hop_rules = self._handle.counts, self._tools.hop_rules
        while self._confirmations:
            receipt, failure, dead = self._confirmations.popleft()
            if failure is not None:
                raise SessionFailed(f"a send failed: {failure}")
            self._in_flight -= 1
            if dead:
                counts.dead += 1
            else:
                counts.forwarded += 1
            hop_rules.crash_point("between_publish_confirmed_and_ack")
            self._consumer.acknowledge(receipt)
            hop_rules.crash_point("after_ack")
