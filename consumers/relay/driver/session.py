"""The shell around a machine: one subscription of one partition of a relay-held topic, driven by one thread.

It receives, waits and sends as the machine says, reports confirmations, and acknowledges. Whatever fails ends the
subscription: consumer and producers are dropped, and `partition` begins a new one from the mark-delete position
(broker-facts: exact-hops).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

from timewheel.consumers.relay.backoff import Backoff
from timewheel.consumers.relay.driver.confirmations import HEARTBEAT_MS, NEVER, Confirmations
from timewheel.consumers.relay.driver.endings import HoleFound, SessionFailed, dead_letter_properties
from timewheel.consumers.relay.driver.handle import Handle, PartitionState
from timewheel.consumers.relay.driver.holes import first_behind
from timewheel.consumers.relay.driver.hop_producers import Hops, LeaseHeld, carry
from timewheel.consumers.relay.driver.probing import Probing
from timewheel.consumers.relay.driver.source import Source, Tools, consumer_name
from timewheel.consumers.relay.driver.visiting import Visiting
from timewheel.consumers.relay.machine.commands import (
    RECEIVE,
    AskAgain,
    AwaitRoom,
    Command,
    DeadLetter,
    Forward,
    HoldUntil,
    Look,
    Reading,
    Receive,
    Refile,
    Stop,
    Unreadable,
    judged,
)
from timewheel.consumers.relay.machine.machine import Machine
from timewheel.consumers.relay.machine.order import NO_SEQUENCE_ID, Spot
from timewheel.consumers.relay.machine.silence import Silence
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.events import RelayDeadLetter, RelayWaitsForLease
from timewheel.wire.native import BatchSizes, decryption_failed, schema_version_of
from timewheel.wire.positions import Position

__all__ = ["Session"]

RECEIVER_QUEUE_ENTRIES = 16
"""Entries, not messages: a thousand of them may be a million messages (broker-facts: queues-count-entries). Where hops
come from hops an entry is one message, and each refill of half the queue waits for the broker: 16 forward a third more
than 8."""
ACK_EVERY = 100
"""Confirmed messages per cumulative acknowledgement while the pipeline runs; a pause acknowledges at once."""
LINGER_MS = 20
"""How long a receive waits while confirmations or an acknowledgement are outstanding."""
IDLE_MS = 1_000
"""How long a receive waits when nothing else is to be done; also how soon a stop is noticed then."""
LEASE_FIRST_MS = 50
LEASE_LONGEST_MS = 2_000


class Session:
    """One subscription.

    Args:
        source: What to read.
        tools: What to work with.
        handle: Shared with onlookers.
        known: Up to where this process has confirmed everything before; None at first.
        visiting: For a slot of a ring: when to sweep and to leave; without a visit: stay.
    """

    def __init__(self, source: Source, tools: Tools, handle: Handle, *, known: Spot | None, visiting: Visiting) -> None:
        self._source = source
        self._tools = tools
        self._clock = tools.clock
        self._hop_rules = tools.hop_rules
        self._handle = handle
        self._visiting = visiting
        self._machine = Machine(
            tools.router,
            source.step,
            known=known,
            window_limit=tools.max_in_flight,
            routing_time=tools.hop_rules.routing_time,
            counts=handle.counts,
        )
        self._hops = Hops.of(source, tools)
        self._backoff = Backoff(LEASE_FIRST_MS, LEASE_LONGEST_MS, tools.chance)
        self._silence = Silence(tools.chance)
        self._consumer: Any = None
        # What was received last, and is decided on.
        self._message: Any = None
        self._properties: dict[str, str] = {}
        self._wait_ms = LINGER_MS
        self._batch_sizes = BatchSizes()
        self._taken_over = False
        self._unacknowledged = 0
        self._idle_since_ms = NEVER
        self._is_idle = False
        self._confirmations = Confirmations(handle, tools.clock)
        self._probing = Probing(self._hops, self._confirmations, source.topic, tools.relay_id, tools.chance)

    @property
    def confirmed_to(self) -> Spot | None:
        """Up to where everything is confirmed; outlives the session."""
        return self._machine.confirmed_to

    def run(self) -> None:
        """Work until told to stop, or until the visit is over.

        Raises:
            SessionFailed: Begin anew.
            HoleFound: Look at the topic, and do not go on past it.
        """
        try:
            self._consumer = self._handle.consumer = self._tools.client.subscribe(
                self._source.name,
                RELAY_SUBSCRIPTION,
                consumer_type=pulsar.ConsumerType.Failover,
                initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
                receiver_queue_size=RECEIVER_QUEUE_ENTRIES,
                crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,  # broker-facts: holes-in-positions
                consumer_name=consumer_name(self._tools.relay_id, self._source.topic),
            )
            self._handle.state = PartitionState.RUNNING
            self._loop()
        except pulsar.PulsarException as error:
            raise SessionFailed(str(error)) from error
        finally:
            self._handle.in_flight = 0
            self._handle.consumer = None
            self._handle.head_release_ms = None
            self._hops.give_back()
            if self._consumer is not None:
                with suppress(pulsar.PulsarException, ValueError):
                    self._consumer.close()

    def _loop(self) -> None:
        command: Command | None = self._machine.tick(self._clock.now_ms())
        outcomes = self._confirmations.outcomes
        while command is not None:
            if outcomes:
                self._settle()
            if self._handle.stopping:
                if isinstance(command, Forward | DeadLetter | Refile):
                    self._machine.withdraw()  # it was never sent: no confirmation of it could end the drain
                self._drain()
                return
            kind = type(command)
            if kind is Receive:
                command = self._receive()
            elif kind is Forward:
                command = self._forward(command)  # type: ignore[arg-type]
            else:
                command = self._do_rare(command)

    def _do_rare(self, command: Command) -> Command | None:
        """Commands that no steady stream of hops meets; None: the visit is over."""
        match command:
            case HoldUntil(at_ms=at_ms):
                return self._hold(at_ms)
            case AskAgain():
                self._consumer.redeliver_unacknowledged_messages()
            case Look(after=after, before=before):
                found = first_behind(self._tools.client, self._source.name, after.position)
                if found != before:
                    raise HoleFound(f"a ledger ended: {tuple(after.position)}, then {tuple(before)}", after, before)
                self._machine.proven()
            case DeadLetter():
                return self._bury(command)
            case Refile():
                return self._refile(command)
            case Stop(reason=reason, after=after, before=before):
                self._settle()
                self._acknowledge()
                raise HoleFound(reason, after, before)
            case AwaitRoom():
                self._await_confirmations(max(self._tools.max_in_flight // 4, 1))
            case _:
                self._await_confirmations(1)
        return self._machine.tick(self._clock.now_ms())

    # Receiving

    def _receive(self) -> Command | None:
        try:
            message = self._consumer.receive(self._wait_ms)
        except pulsar.Timeout:
            return self._idle()
        now_ms = self._clock.now_ms()
        self._handle.beat()
        if self._is_idle:
            self._wake()
        if not self._taken_over:
            self._taken_over = True
            self._hop_rules.crash_point("at_takeover")
        message_id = message.message_id()
        position = Position.of(message_id)
        self._message = message
        self._properties = properties = message.properties()
        reading: Reading = (
            Unreadable(f"{tuple(position)} is encrypted, and a relay has no key")
            if decryption_failed(message)
            else judged(properties)
        )
        batch_size = self._batch_sizes.of(position, message_id)
        return self._machine.received(position, batch_size, reading, message_id, now_ms)

    def _wake(self) -> None:
        """Something came after a while of nothing."""
        self._is_idle = False
        self._idle_since_ms = NEVER
        self._wait_ms = LINGER_MS
        self._silence.broken()

    def _idle(self) -> Command | None:
        """Nothing came: acknowledge all, give names back, leave a slot."""
        self._is_idle = True
        self._handle.beat()
        self._settle()
        self._show()
        machine = self._machine
        now_ms = self._clock.now_ms()
        self._acknowledge()
        if not machine.in_flight:
            if machine.keeps_back:
                self._acknowledge(self._last_position())
            if self._idle_since_ms == NEVER:
                self._idle_since_ms = now_ms
            if now_ms - self._idle_since_ms >= self._tools.lease_idle_ms:
                self._hops.give_back()
            self._sweep_if_due(now_ms)
            if self._may_leave(now_ms):
                return None
            self._wait_ms = IDLE_MS
            if self._silence.is_too_long(now_ms):
                return machine.ask_again(now_ms)
        return machine.tick(now_ms)

    def _may_leave(self, now_ms: int) -> bool:
        visit = self._visiting.now
        if visit is None or not visit.is_over(now_ms):
            return False
        return self._probing.is_empty(self._last_position, self._machine.confirmed_to, now_ms)

    # Waiting

    def _hold(self, until_ms: int) -> Command | None:
        """The head waits for its release; None: longer than the visit lasts."""
        machine = self._machine
        now_ms = self._clock.now_ms()
        if self._sweep_if_due(now_ms):
            return machine.tick(now_ms)
        visit = self._visiting.now
        if visit is not None:
            if not visit.is_over(now_ms):
                until_ms = visit.next_moment_ms(until_ms)
            elif not machine.in_flight:
                self._acknowledge()
                return None
        self._acknowledge()
        if not machine.in_flight and until_ms - now_ms > self._tools.lease_idle_ms:
            self._hops.give_back()
        self._handle.state = PartitionState.HOLDING
        self._show()
        self._confirmations.wait(until_ms - now_ms, wake_at=1)
        self._handle.state = PartitionState.RUNNING
        return machine.tick(self._clock.now_ms())

    def _await_confirmations(self, count: int) -> None:
        self._show()
        # Some came in since the machine asked for more of them: wait for no more than are on their way.
        count = min(count, self._machine.unanswered)
        if count:
            self._confirmations.wait(HEARTBEAT_MS, wake_at=count)
            self._settle()

    def _wait_for_lease(self, name: str) -> None:
        handle = self._handle
        if handle.state is not PartitionState.WAITING_FOR_LEASE:
            handle.state = PartitionState.WAITING_FOR_LEASE
            self._tools.hooks.emit(RelayWaitsForLease(topic=self._source.name, producer_name=name))
        self._acknowledge()
        if not self._machine.in_flight:
            # Whoever waits holds nothing: two relays could wait for each other.
            self._hops.give_back()
        self._confirmations.wait(self._backoff.next_ms(), wake_at=NEVER)
        if self._confirmations.outcomes:
            self._settle()

    def _forward(self, command: Forward) -> Command:
        message, properties = self._message, self._properties
        named = command.sequence_id != NO_SEQUENCE_ID
        try:
            producer = self._hops.to(command.topic, schema_version_of(message), named=named)
        except LeaseHeld as held:
            self._machine.withdraw()
            self._wait_for_lease(str(held))
            return self._machine.tick(self._clock.now_ms())
        if self._handle.state is PartitionState.WAITING_FOR_LEASE:
            self._handle.state = PartitionState.RUNNING
            self._backoff.reset()
        if self._hop_rules.acknowledges_first:
            self._consumer.acknowledge_cumulative(message)
        self._hop_rules.crash_point("before_forward")
        properties.update(command.envelope.properties())
        carry(
            producer,
            message,
            partial(self._confirmations.on_sent, command.ordinal),
            properties,
            deliver_at_ms=command.deliver_at_ms,
            sequence_id=command.sequence_id,
        )
        return RECEIVE

    def _bury(self, command: DeadLetter) -> Command:
        message = self._message
        properties = dead_letter_properties(message, self._properties, command.reason, self._source.name)
        producer = self._hops.to_dead_letters(self._tools.names.dead_letter)
        carry(producer, message, partial(self._confirmations.on_sent, command.ordinal), properties)
        self._tools.hooks.emit(RelayDeadLetter(topic=self._source.name, reason=command.reason))
        return self._machine.tick(self._clock.now_ms())

    def _refile(self, command: Refile) -> Command:
        message = self._message
        producer = self._hops.to(self._source.topic, schema_version_of(message), named=False)
        carry(producer, message, partial(self._confirmations.on_sent, command.ordinal), self._properties)
        return self._machine.tick(self._clock.now_ms())

    def _settle(self) -> None:
        """Take all confirmations that are in."""
        confirmed = self._machine.confirmed
        for ordinal in self._confirmations.take():
            confirmed(ordinal)
            self._unacknowledged += 1
        if self._unacknowledged >= ACK_EVERY:
            self._acknowledge()

    def _acknowledge(self, last: Position | None = None) -> None:
        receipt = self._machine.acknowledge(last)
        self._unacknowledged = 0
        if receipt is None:
            return
        self._hop_rules.crash_point("between_publish_confirmed_and_ack")
        self._consumer.acknowledge_cumulative(receipt)
        self._hop_rules.crash_point("after_ack")

    def _last_position(self) -> Position:
        return Position.of(self._consumer.get_last_message_id())

    def _sweep_if_due(self, now_ms: int) -> bool:
        if not self._visiting.take_sweep(now_ms):
            return False
        self._machine.sweep(self._last_position())
        return True

    def _drain(self) -> None:
        """Nothing new; wait for what is under way, up to the deadline, and leave the rest unacknowledged."""
        handle, machine = self._handle, self._machine
        while machine.in_flight and (left_ms := handle.drain_left_ms()):
            self._confirmations.wait(left_ms, wake_at=1, also_while_stopping=True)
            self._settle()
        self._acknowledge()
        if machine.keeps_back:
            self._acknowledge(self._last_position())

    def _show(self) -> None:
        self._handle.in_flight = self._machine.in_flight
        self._handle.head_release_ms = self._machine.head_release_ms
