"""The shell around a machine: one subscription of one partition of a holding topic, driven by one thread.

It does what the machine says and reports what came of it; all decisions are there. Whatever fails ends the
subscription: consumer and producers are dropped, and `partition` begins a new one from the mark-delete position
(broker-facts: exact-hops).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

from timewheel.consumers.relay.driver.confirmations import Confirmations
from timewheel.consumers.relay.driver.endings import HoleFound, SessionFailed, dead_letter_properties
from timewheel.consumers.relay.driver.groups import Group, Groups, Member
from timewheel.consumers.relay.driver.handle import Handle, PartitionState
from timewheel.consumers.relay.driver.holes import first_behind
from timewheel.consumers.relay.driver.hop_producers import HopProducers, LeaseHeld
from timewheel.consumers.relay.driver.prefetch import Prefetch
from timewheel.consumers.relay.driver.source import Source, Tools, consumer_name
from timewheel.consumers.relay.machine.commands import (
    PROBED,
    RECEIVE,
    Acknowledge,
    AskAgain,
    AskLast,
    Command,
    DeadLetter,
    Forward,
    GiveBack,
    Leave,
    Look,
    PutProbe,
    Reading,
    Receive,
    Refile,
    SendGroups,
    Stop,
    Unreadable,
    Wait,
    judged,
)
from timewheel.consumers.relay.machine.intake import taken_in
from timewheel.consumers.relay.machine.interface import Machine
from timewheel.consumers.relay.machine.states import State
from timewheel.core.clock import pause
from timewheel.core.envelope import PROBE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.ids import place_id
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.steps import hop_bound
from timewheel.events import RelayDeadLetter, RelayGroupCut, RelayHopsBeyondPlan, RelayWaitsForLease
from timewheel.wire.connection_watch import ConnectionWatch
from timewheel.wire.native import (
    NO_SCHEMA,
    Entries,
    carry,
    properties_size,
    size_of,
)
from timewheel.wire.positions import Position

__all__ = ["Session"]

QUIET_MS = 100
"""Before the broker is asked for redelivery, nothing is received for so long: the client's queue fills, its permits are
used up, and the broker has no read under way that a second one could cross (broker-facts: interleaved-redelivery)."""
MAX_UNANSWERED = 10
"""Questions for the topic's last position that fail in a row, after which it is the connection that has failed."""

_SHOWN = {State.HOLDING: PartitionState.HOLDING, State.WAITING_FOR_LEASE: PartitionState.WAITING_FOR_LEASE}


class Session:
    """One subscription.

    Args:
        source: What to read.
        tools: What to work with.
        handle: Shared with onlookers.
        machine: Decides; a new one.
        prefetch: What the client may receive ahead.

    Attributes:
        outgrown: The entries are larger than thought, so that it ends: begin anew with a shorter queue.
    """

    def __init__(self, source: Source, tools: Tools, handle: Handle, machine: Machine, prefetch: Prefetch) -> None:
        self._source = source
        self._tools = tools
        self._clock = tools.clock
        self._handle = handle
        self._machine = machine
        self._hops = HopProducers.of(source, tools)
        self._hop_bound = hop_bound(tools.router.plan)
        self._watch = ConnectionWatch(source.name, tools.clock, tools.hooks)
        self._confirmations = Confirmations(handle, tools.clock)
        self._groups = Groups(self._hops, self._confirmations.on_group)
        self._burying: dict[int, str] = {}
        self._entries = Entries()
        self._prefetch = prefetch
        self.outgrown = False
        self._consumer: Any = None
        self._unanswered = 0
        # What was received last, and is decided on.
        self._message: Any = None
        self._properties: dict[str, str] = {}
        self._size = 0

    def run(self) -> None:
        """Work until told to stop, or until the machine leaves.

        Raises:
            SessionFailed: Begin anew.
            HoleFound: Look at the topic, and do not go on past it.
        """
        try:
            self._consumer = self._handle.consumer = self._subscribe()
            self._handle.state = PartitionState.RUNNING
            self._loop()
        except pulsar.PulsarException as error:
            raise SessionFailed(str(error)) from error
        finally:
            self._handle.in_flight = 0
            self._handle.consumer = None
            self._handle.head_release_ms = None
            try:
                self._hops.give_back()
            finally:
                if self._consumer is not None:
                    with suppress(pulsar.PulsarException, ValueError):
                        self._consumer.close()

    def _subscribe(self) -> Any:
        # The broker delays nothing there (broker-facts: delays-need-shared).
        undelayed = self._machine.cumulative or self._tools.router.is_native
        self._prefetch.begin()
        consumer = self._tools.client.subscribe(
            self._source.name,
            RELAY_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Failover if undelayed else pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
            receiver_queue_size=self._prefetch.entries,
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,  # broker-facts: holes-in-positions
            consumer_name=consumer_name(self._tools.relay_id, self._source.topic),
        )
        gate = self._tools.gate
        return gate(self._source, consumer, self._handle) if gate is not None and self._source.is_journal else consumer

    def _loop(self) -> None:
        machine, handle, outcomes = self._machine, self._handle, self._confirmations.outcomes
        command = machine.done(self._clock.now_ms())
        while (kind := type(command)) is not Leave:
            if (handle.stopping or self.outgrown) and machine.state is not State.DRAINING:
                command = machine.stopping(self._drain_left_ms(), undone=command)
                continue
            if kind is Receive:
                if outcomes:
                    self._settle()
                command = self._receive(command.wait_ms)  # type: ignore[union-attr]
            elif kind is Forward:
                asks = command.asks  # type: ignore[union-attr]
                command = self._forward(command)  # type: ignore[arg-type]
                if asks and command is RECEIVE:
                    command = machine.done(self._clock.now_ms())
            else:
                command = self._do_rare(command)

    def _do_rare(self, command: Command) -> Command:
        """Commands that no steady stream of hops meets."""
        machine = self._machine
        self._show()
        match command:
            case Wait(timeout_ms=timeout_ms, wake_at=wake_at):
                stops = machine.state is State.DRAINING
                self._confirmations.wait(timeout_ms, wake_at=wake_at, also_while_stopping=stops)
            case AskLast():
                return self._ask_last()
            case Look(after=after):
                found = first_behind(self._tools.client, self._source.name, after.position)
                return machine.found(found, self._clock.now_ms())
            case Stop(reason=reason, after=after, before=before):
                raise HoleFound(reason, after, before)
            case _:
                self._carry_out(command)
        return self._next()

    def _ask_last(self) -> Command:
        try:
            last = Position.of(self._consumer.get_last_message_id())
        except pulsar.PulsarException:
            # A question that fails while its topic moves to another broker is no reason to begin anew.
            self._unanswered += 1
            if self._unanswered > MAX_UNANSWERED:
                raise
            return self._machine.no_last_position()
        self._unanswered = 0
        return self._machine.last_position(last, self._clock.now_ms())

    def _carry_out(self, command: Command) -> None:
        match command:
            case Acknowledge():
                self._acknowledge(command)
            case AskAgain():
                pause(self._clock, QUIET_MS)
                self._consumer.redeliver_unacknowledged_messages()
            case GiveBack():
                self._hops.give_back()
            case SendGroups():
                self._groups.send()
            case PutProbe():
                self._put_probe()
            case DeadLetter():
                self._bury(command)
            case Refile():
                self._refile(command)
            case _:
                raise AssertionError(command)

    def _next(self) -> Command:
        # First what is confirmed, so that the machine waits for no more than is on its way.
        self._settle()
        if self._handle.stopping or self.outgrown:
            return self._machine.stopping(self._drain_left_ms())
        return self._machine.done(self._clock.now_ms())

    def _drain_left_ms(self) -> int:
        # A send without an answer ends the session by itself.
        return self._handle.drain_left_ms() if self._handle.stopping else self._tools.send_timeout_ms

    # Commands

    def _receive(self, wait_ms: int) -> Command:
        handle = self._handle
        try:
            message = self._consumer.receive(wait_ms)
        except pulsar.Timeout:
            handle.beat()
            self._settle()
            self._show()
            return self._machine.nothing_came(self._clock.now_ms())
        now_ms = self._clock.now_ms()
        handle.beat()
        message_id = message.message_id()
        position = Position.of(message_id)
        entry = self._entries
        entry.see(position, message, message_id)
        self._message = message
        self._properties = properties = message.properties()
        reading: Reading = (
            Unreadable(f"{tuple(position)} is encrypted, and a relay has no key")
            if entry.is_encrypted
            else self._judged(message, position, properties)
        )
        self._size = size = size_of(message) + properties_size(properties)
        if self._prefetch.met(position.batch_index, size):
            self.outgrown = True
        return self._machine.received(position, entry.batch_size, reading, message_id, now_ms, size)

    def _judged(self, message: Any, position: Position, properties: dict[str, str]) -> Reading:
        source = self._source
        if not source.is_intake:
            return judged(properties)
        # Most that comes in was lifted, and has one.
        own_id = "" if TIMER_PROPERTY in properties else place_id(source.name, *position)
        plan = self._tools.router.plan
        return taken_in(properties, message.publish_timestamp(), own_id, plan.revision, plan.max_delay_ms)

    def _forward(self, command: Forward) -> Command:
        machine, envelope = self._machine, command.envelope
        if envelope.hops > self._hop_bound:
            self._tell_of_hops(envelope)
        alone = None
        try:
            if command.in_group:
                self._join(command)
            else:
                alone = self._hops.to(
                    command.topic,
                    self._entries.schema_version,
                    named=command.named,
                    delayed=not command.batches,
                    leaves_plan=command.leaves_plan,
                )
        except LeaseHeld as held:
            if machine.state is not State.WAITING_FOR_LEASE:
                self._tools.hooks.emit(RelayWaitsForLease(topic=self._source.name, producer_name=str(held)))
            return machine.lease_held()
        if machine.state is State.WAITING_FOR_LEASE:
            machine.lease_taken()
            self._show()
        # Not before: without a lease the message stays as it came, and may go another way. A member shares them.
        self._properties[TIMER_PROPERTY] = envelope.line()
        if alone is not None:
            self._send(alone, command)
        return RECEIVE

    def _join(self, command: Forward) -> None:
        member = Member(command.ordinal, self._message, self._properties, self._size)
        self._groups.add(command.topic, self._entries.schema_version, command.sequence_id, member)

    def _send(self, producer: Any, command: Forward) -> None:
        confirmations = self._confirmations
        carry(
            producer,
            self._message,
            partial(confirmations.on_batched if command.batches else confirmations.on_sent, command.ordinal),
            self._properties,
            deliver_at_ms=command.deliver_at_ms,
            sequence_id=command.sequence_id,
        )

    def _send_singly(self, group: Group) -> None:
        """What the client cut in two: which part is stored is not known, so all of it goes by the late lane."""
        self._tools.hooks.emit(
            RelayGroupCut(topic=self._source.name, destination=group.topic, messages=len(group.members))
        )
        producer = self._hops.to(group.topic, group.version, named=False)
        for ordinal, message, properties, _ in group.members:
            carry(producer, message, partial(self._confirmations.on_batched, ordinal), properties)

    def _tell_of_hops(self, envelope: Envelope) -> None:
        plan, handle = self._tools.router.plan, self._handle
        if envelope.revision == plan.revision and not handle.told_of_hops:
            handle.told_of_hops = True
            self._tools.hooks.emit(
                RelayHopsBeyondPlan(
                    topic=self._source.name, timer_id=envelope.timer_id, hops=envelope.hops, bound=self._hop_bound
                )
            )

    def _bury(self, command: DeadLetter) -> None:
        message = self._message
        properties = dead_letter_properties(message, self._properties, command.reason, self._source.name)
        producer = self._hops.to_dead_letters(self._tools.names.dead_letter)
        carry(producer, message, partial(self._confirmations.on_batched, command.ordinal), properties)
        self._burying[command.ordinal] = command.reason

    def _refile(self, command: Refile) -> None:
        message = self._message
        producer = self._hops.to(self._source.topic, self._entries.schema_version, named=False)
        carry(producer, message, partial(self._confirmations.on_batched, command.ordinal), self._properties)

    def _put_probe(self) -> None:
        self._hops.to(self._source.topic, NO_SCHEMA, named=False).send_async(
            b"",
            partial(self._confirmations.on_batched, PROBED),
            properties={PROBE_PROPERTY: self._tools.relay_id},
            disable_replication=True,
        )

    def _acknowledge(self, command: Acknowledge) -> None:
        acknowledge = self._consumer.acknowledge_cumulative if self._machine.cumulative else self._consumer.acknowledge
        for receipt in command.receipts:
            acknowledge(receipt)

    def _settle(self) -> None:
        """Tell the machine all confirmations that are in."""
        while self._confirmations.cut:
            self._send_singly(self._confirmations.cut.popleft())
        if not self._confirmations.outcomes:
            return
        ordinals, failure = self._confirmations.take()
        for ordinal in [ordinal for ordinal in ordinals if ordinal in self._burying] if self._burying else ():
            self._tools.hooks.emit(RelayDeadLetter(topic=self._source.name, reason=self._burying.pop(ordinal)))
        acknowledgement = self._machine.confirmed(ordinals)
        if acknowledgement is not None:
            self._acknowledge(acknowledgement)
        if failure is not None:
            raise SessionFailed(f"a send failed: {failure}")

    def _show(self) -> None:
        handle, machine = self._handle, self._machine
        handle.in_flight = machine.in_flight
        handle.head_release_ms = machine.head_release_ms
        handle.state = _SHOWN.get(machine.state, PartitionState.RUNNING)
        self._watch.look(is_connected=handle.connected)
