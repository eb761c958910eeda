"""The driver of a machine: a subscription of a partition of a holding topic, on a single thread.

It executes the machine's commands and reports their results; the machine makes all decisions. Any failure ends the
subscription: consumer and producers are dropped, and `partition` begins a new subscription from the mark-delete
position (broker-facts: exact-hops). A message that is refused for good, and not for the topic's sake, becomes a dead
letter (`dead_letter_writer`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

from timewheel.client.hooks import ConnectionWatch
from timewheel.client.native import NO_SCHEMA, Entries, carry, properties_size, size_of
from timewheel.client.positions import Position
from timewheel.client.results import fails_alone
from timewheel.client.schemas import SCHEMA_REFUSALS
from timewheel.core.clock import pause
from timewheel.core.envelope import PROBE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES, LARGE_BYTES, LARGEST_BATCH
from timewheel.core.ids import place_id
from timewheel.core.names import DRAINS_PROPERTY, RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan
from timewheel.core.steps import hop_bound
from timewheel.events import RelayBatchSplit, RelayHopsBeyondPlan, RelayWaitsForLease
from timewheel.relay.driver.dead_letter_writer import DeadLetterWriter, Verdicts, refusal
from timewheel.relay.driver.hop_producers import (
    Confirmations,
    Connections,
    HopBatch,
    HopBatches,
    HopProducers,
    HopRuns,
    LeaseHeld,
    Member,
    Sent,
)
from timewheel.relay.driver.source import (
    Handle,
    HoleFound,
    Memory,
    PartitionState,
    SessionFailed,
    Source,
    Tools,
    consumer_name,
)
from timewheel.relay.machine.interface import (
    IDLE_MS,
    PROBED,
    RECEIVE,
    Acknowledge,
    AskAgain,
    AskLast,
    Command,
    Examine,
    Forward,
    GiveBack,
    Leave,
    Machine,
    PutProbe,
    Receive,
    Refile,
    SendGroups,
    State,
    Stop,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.readings import Reading, Unreadable, of_large_batch, parsed, taken_in

_ENCRYPTED = Unreadable("it is encrypted, and a relay has no key: producers of a plan do not encrypt")


class Reader:
    """Reads each message once: a timer, or the reason why it is none. No later code can fail on its content.

    After a read, ``entry`` and ``properties`` are those of that message; properties that cannot be read are empty.
    """

    def __init__(self, source: Source, plan: Plan, verdicts: Verdicts) -> None:
        self._source = source
        self._is_intake = source.is_intake
        self._plan = plan
        self._verdicts = verdicts.given
        self.entry = Entries()
        self.properties: dict[str, str] = {}

    def read(self, position: Position, message: Any, message_id: Any) -> Reading:
        self.properties = {}
        verdict = self._verdicts.get(position) if self._verdicts else None
        try:
            self.entry.see(position, message, message_id)
            if (whole := of_large_batch(position.batch_index, self.entry.batch_size)) is not None:
                return whole
            self.properties = properties = message.properties()
            if verdict is None:
                return _ENCRYPTED if self.entry.is_encrypted else self._judged(message, position, properties)
        except UnicodeDecodeError as error:
            return Unreadable(f"a property is no UTF-8, and is lost here with all others: {error.object!r:.100}")
        except Exception:
            if verdict is None:
                raise
        return Unreadable(verdict.reason)

    def _judged(self, message: Any, position: Position, properties: dict[str, str]) -> Reading:
        if not self._is_intake:
            return parsed(properties)
        source, plan = self._source, self._plan
        # Most timers in the intake were moved by a shadow, and have an id.
        own_id = "" if TIMER_PROPERTY in properties else place_id(source.name, *position)
        return taken_in(properties, message.publish_timestamp(), own_id, plan)


RELAY_HELD_ENTRIES = 16
"""Entries, not messages: a thousand of them may be a million messages (broker-facts: queues-count-entries). Where hops
come from hops an entry is one message, and each refill of half the queue waits for the broker: 16 forward a third
more than 8.
"""
BROKER_HELD_ENTRIES = 200
"""Clients batch no delayed messages: an entry is a message. Messages that wait here unacknowledged are gaps at most."""
MESSAGE_BYTES = 1_200  # the client's memory for a message besides its payload (broker-facts: windows-in-bytes)
GROUP_ENTRY_BYTES = GROUP_BYTES + GROUP_MESSAGES * MESSAGE_BYTES
BROKER_HELD_BYTES = 64 << 10  # expected size of an entry, until a larger entry is met


class Prefetch:
    """The receiver queue of a partition's sessions, in entries, by the size of the entries met; for its thread."""

    def __init__(self, memory: Memory, *, by_broker: bool) -> None:
        self._memory = memory
        self._most = BROKER_HELD_ENTRIES if by_broker else RELAY_HELD_ENTRIES
        self._largest_bytes = BROKER_HELD_BYTES if by_broker else GROUP_ENTRY_BYTES
        self._entry_bytes = self._uncounted = 0
        self.entries = self._most  # queue length for the session's consumer

    def begin(self) -> None:
        self._entry_bytes = self._uncounted = 0
        self.entries = self._memory.queue_entries(self._largest_bytes, self._most)

    def met(self, batch_index: int, batch_size: int, size: int, uncounted: int = 0) -> bool:
        """Record the bytes of a received message; return whether another session should begin with a shorter queue.

        ``batch_index`` is 0 or less for the first of an entry, ``batch_size`` is 0 if the entry is unbatched, or of
        unknown size. The broker counts ``uncounted`` messages of the entry as sent, and the client does not count them
        as received (`timewheel.client.native.uncounted_of`).
        """
        self._uncounted += uncounted
        self._entry_bytes = size if batch_index <= 0 else self._entry_bytes + size
        entry_bytes = self._entry_bytes + MESSAGE_BYTES * max(batch_size, batch_index + 1, 1)
        if entry_bytes <= self._largest_bytes:
            return False
        # The rest of a batch is not known yet. Sessions that end inside a batch must be few: each receives all of it
        # again.
        self._largest_bytes = max(entry_bytes, 2 * self._largest_bytes) if batch_index >= 0 else entry_bytes
        return self._memory.queue_entries(self._largest_bytes, self._most) < self.entries

    @property
    def is_spent(self) -> bool:
        """True if the broker may send no more: a consumer renews permits when half of its queue is received."""
        return 2 * self._uncounted >= self.entries


QUIET_MS = 100
"""Time without a receive before the broker is asked for redelivery: the client's queue fills, its permits are used up,
and the broker has no read under way that a second read could cross (broker-facts: interleaved-redelivery).
"""
MAX_UNANSWERED = 10
"""Failed requests in a row for the topic's last position, after which the connection counts as failed."""

_SHOWN = {State.HOLDING: PartitionState.HOLDING, State.WAITING_FOR_LEASE: PartitionState.WAITING_FOR_LEASE}


class Session:
    """A single subscription.

    Attributes:
        begins_anew: Whether it ends to be followed by another session at once: the entries are larger than expected, so
            that it needs a shorter queue; or a message was refused, and has its verdict.
        position: Position of the last received message.
    """

    def __init__(
        self,
        source: Source,
        tools: Tools,
        handle: Handle,
        verdicts: Verdicts,
        watch: ConnectionWatch,
        machine: Machine,
        prefetch: Prefetch,
    ) -> None:
        self._source = source
        self._tools = tools
        self._clock = tools.clock
        self._handle = handle
        self._machine = machine
        self._hops = HopProducers.of(source, tools, handle.held_names, lambda: self.position, self._last)
        self._hop_bound = hop_bound(tools.router.plan)
        self._watch = watch
        self._connections = Connections(tools.client, self._hops, handle, tools.clock)
        self._confirmations = Confirmations(handle, tools.clock)
        self._groups = HopBatches(self._hops, self._confirmations.on_group)
        self._runs = HopRuns(self._confirmations.on_run)
        self._hops.send_held = self._send_held
        self._dead_letter_writer = DeadLetterWriter(source, tools, self._hops, self._confirmations, verdicts, handle)
        self._reader = Reader(source, tools.router.plan, verdicts)
        self._entry = self._reader.entry
        self._prefetch = prefetch
        self.begins_anew = False
        self.position: Position | None = None
        self._consumer: Any = None
        self._unanswered = 0
        self._pending: tuple[bool, Any] = False, None  # whether hops are in flight, and what is confirmed, since when
        self._pending_since_ms = 0
        # The last received message, for the present decision.
        self._message: Any = None
        self._properties: dict[str, str] = {}
        self._size = 0

    def run(self) -> None:
        """Work until stopped, or until the machine leaves.

        Raises:
            SessionFailed: Begin anew.
            HoleFound: Begin anew, and do not go on past the hole.
        """
        try:
            self._consumer = self._handle.consumer = self._subscribe()
            self._watch.inspect(is_connected=True)
            self._handle.state = PartitionState.RUNNING
            self._loop()
        except Exception as error:
            self._acknowledge_confirmed()
            if isinstance(error, pulsar.PulsarException):
                raise SessionFailed(str(error)) from error
            raise
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
        # The broker delays no message there (broker-facts: delays-need-shared).
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
            properties={DRAINS_PROPERTY: "true"} if self._source.is_former else None,
        )
        gate = self._tools.gate
        return gate(self._source, consumer, self._handle) if gate is not None and self._source.is_journal else consumer

    def _loop(self) -> None:
        machine, handle, outcomes = self._machine, self._handle, self._confirmations.outcomes
        command = machine.done(self._clock.now_ms())
        while (kind := type(command)) is not Leave:
            if (handle.stopping or self.begins_anew) and machine.state is not State.DRAINING:
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
                self._runs.end()
                command = self._do_rare(command)

    def _do_rare(self, command: Command) -> Command:
        """Execute a command that is rare in a steady stream of hops."""
        machine = self._machine
        self._show()
        match command:
            case Wait() if machine.state is State.HOLDING and machine.arrivals.wants_end(self._clock.now_ms()):
                self._see_end()  # the wait goes on, if the head is still held
            case Wait(timeout_ms=timeout_ms, wake_at=wake_at):
                stops = machine.state is State.DRAINING
                timeout_ms = self._clock.idle_ms(max(timeout_ms, 0), self._connections.patience_ms)
                self._confirmations.wait(timeout_ms, wake_at=wake_at, also_while_stopping=stops)
            case AskLast():
                return self._ask_last()
            case Examine(after=after, before=before):
                found = self._dead_letter_writer.inspect(after, before)
                return machine.found(found, self._clock.now_ms())
            case Stop(reason=reason, after=after):
                raise HoleFound(reason, after.position)
            case Refile():
                try:
                    self._refile(command)
                except SCHEMA_REFUSALS as error:
                    return machine.refused(f"no topic takes its schema: {error}", self._clock.now_ms())
            case _:
                self._carry_out(command)
        return self._next()

    def _ask_last(self) -> Command:
        try:
            last = self._last()
        except pulsar.PulsarException:
            # A request that fails while its topic moves to another broker is no reason to begin anew.
            self._unanswered += 1
            if self._unanswered > MAX_UNANSWERED:
                raise
            return self._machine.no_last_position()
        self._unanswered = 0
        return self._machine.last_position(last, self._clock.now_ms())

    def _see_end(self) -> None:
        last = None
        with suppress(pulsar.PulsarException):
            last = self._last() if self._handle.connected else None
        self._machine.arrivals.ended(last, self._clock.now_ms())
        self._handle.beat()

    def _last(self) -> Position:
        return Position.of(self._consumer.get_last_message_id())

    def _carry_out(self, command: Command) -> None:
        match command:
            case Acknowledge():
                self._acknowledge(command)
            case AskAgain():
                self.begins_anew |= self._prefetch.is_spent  # the broker would send nothing
                pause(self._clock, QUIET_MS)
                self._consumer.redeliver_unacknowledged_messages()
            case GiveBack():
                self._hops.give_back()
            case SendGroups():
                self._groups.send()
            case PutProbe():
                self._put_probe()
            case StoreDeadLetter(ordinal=ordinal, reason=reason):
                assert self.position is not None, "a dead letter of no message"
                if self._entry.batch_size > LARGEST_BATCH:
                    self._dead_letter_writer.put_entry(ordinal, reason, self.position)
                else:
                    large = self._size >= LARGE_BYTES
                    self._dead_letter_writer.put(
                        ordinal, self._message, self._properties, reason, self.position, large=large
                    )
                self.begins_anew |= self._prefetch.is_spent
            case _:
                raise AssertionError(command)

    def _next(self) -> Command:
        # Confirmations first, so that the machine waits only for sends still under way.
        self._settle()
        if self._handle.stopping or self.begins_anew:
            return self._machine.stopping(self._drain_left_ms())
        return self._machine.done(self._clock.now_ms())

    def _drain_left_ms(self) -> int:
        # A send without an answer ends the session by itself.
        return self._handle.drain_left_ms() if self._handle.stopping else self._tools.send_timeout_ms

    # Commands

    def _receive(self, wait_ms: int) -> Command:
        handle = self._handle
        try:
            message = self._next_message(wait_ms)
        except pulsar.Timeout:
            handle.beat()
            self._settle()
            self._show()
            return self._machine.nothing_came(self._clock.now_ms())
        now_ms = self._clock.now_ms()
        handle.beat()
        if handle.heartbeat_ms >= self._connections.inspect_at_ms:
            self._show()  # a steady stream leaves no other occasion
        message_id = message.message_id()
        self.position = position = Position.of(message_id)
        self._message = message
        reader = self._reader
        reading = reader.read(position, message, message_id)
        self._properties = properties = reader.properties
        self._size = size = size_of(message) + properties_size(properties)
        if self._prefetch.met(position.batch_index, self._entry.batch_size, size, self._entry.uncounted):
            self.begins_anew = True
        return self._machine.received(position, self._entry.batch_size, reading, message_id, now_ms, size)

    def _next_message(self, wait_ms: int) -> Any:
        if self._runs.open:
            with suppress(pulsar.Timeout):
                return self._consumer.receive(0)
            self._runs.end()
        return self._consumer.receive(wait_ms if wait_ms < IDLE_MS else self._clock.idle_ms(None, wait_ms))

    def _forward(self, command: Forward) -> Command:
        machine, envelope = self._machine, command.envelope
        if envelope.hops > self._hop_bound:
            self._report_of_hops(envelope)
        alone = None
        try:
            if has_come := self._has_come(command):
                # The broker returns a number as the last one before its entry is stored. Whether it is stored, the
                # broker says if it is sent once more (broker-facts: late-lane).
                command = command.nominally()
            if command.in_group:
                member = Member(command.ordinal, self._message, self._properties, self._size)
                self._groups.add(command.topic, self._entry.schema_version, command.sequence_id, member)
            else:
                alone = self._hops.to(
                    command.topic,
                    self._entry.schema_version,
                    named=command.named,
                    delayed=not command.batches,
                    leaves_plan=command.leaves_plan,
                    large=self._size >= LARGE_BYTES,
                )
        except LeaseHeld as held:
            if machine.state is not State.WAITING_FOR_LEASE:
                self._tools.hooks.emit(RelayWaitsForLease(topic=self._source.name, producer_name=str(held)))
            return machine.lease_held()
        except SCHEMA_REFUSALS as error:
            return machine.refused(f"{command.topic} does not take its schema: {error}", self._clock.now_ms())
        if machine.state is State.WAITING_FOR_LEASE:
            machine.lease_taken()
            self._show()
        # Not before: without a lease the message stays unchanged, and may go another way. A group member shares these
        # properties.
        self._properties[TIMER_PROPERTY] = envelope.line()
        if alone is not None:
            self._send_alone(alone, command)
        elif has_come:
            self._groups.send()
        return RECEIVE

    def _has_come(self, command: Forward) -> bool:
        """Return whether an earlier session sent the message by its nominal way; raises as `HopProducers.to`."""
        nominal = command.nominal
        return nominal is not None and self._hops.has_come(
            nominal.topic,
            self._entry.schema_version,
            nominal.sequence_id,
            in_group=nominal.in_group,
            leaves_plan=command.leaves_plan,
            large=self._size >= LARGE_BYTES,
        )

    def _send_alone(self, producer: Any, command: Forward) -> None:
        number = command.sequence_id
        is_new = not command.named or self._hops.is_new(producer, number)
        self._runs.add(
            producer, self._message, self._properties, command.deliver_at_ms, number, Sent(command.ordinal, is_new, {})
        )

    def _send_held(self) -> None:
        self._groups.send()
        self._runs.end()

    def _send_singly(self, group: HopBatch, *, refused: bool) -> None:
        """Send the messages of a group by the late lane: the client refused it as one entry, or cut it in two.

        If it was cut, it is unknown which part is stored.
        """
        if not refused:
            self._tools.hooks.emit(
                RelayBatchSplit(topic=self._source.name, destination=group.topic, messages=len(group.members))
            )
        producer = self._hops.to(group.topic, group.version, named=False)
        for ordinal, message, properties, _ in group.members:
            carry(producer, message, partial(self._confirmations.on_sent, ordinal), properties)

    def _report_of_hops(self, envelope: Envelope) -> None:
        plan, handle = self._tools.router.plan, self._handle
        if envelope.revision == plan.revision and not handle.reported_of_hops:
            handle.reported_of_hops = True
            self._tools.hooks.emit(
                RelayHopsBeyondPlan(
                    topic=self._source.name, timer_id=envelope.timer_id, hops=envelope.hops, bound=self._hop_bound
                )
            )

    def _refile(self, command: Refile) -> None:
        message = self._message
        large = self._size >= LARGE_BYTES
        producer = self._hops.to(self._source.topic, self._entry.schema_version, named=False, large=large)
        self._properties[TIMER_PROPERTY] = command.envelope.line()
        carry(producer, message, partial(self._confirmations.on_sent, command.ordinal), self._properties)

    def _put_probe(self) -> None:
        self._hops.to(self._source.topic, NO_SCHEMA, named=False).send_async(
            b"",
            partial(self._confirmations.on_sent, PROBED),
            properties={PROBE_PROPERTY: self._tools.relay_id},
            disable_replication=True,
        )

    def _acknowledge(self, command: Acknowledge) -> None:
        acknowledge = self._consumer.acknowledge_cumulative if self._machine.cumulative else self._consumer.acknowledge
        for receipt in command.receipts:
            acknowledge(receipt)

    def _settle(self) -> None:
        """Report all confirmations received so far to the machine."""
        while self._confirmations.cut:
            group, refused = self._confirmations.cut.popleft()
            self._send_singly(group, refused=refused)
        ordinals, failures = self._confirmations.take()
        self._dead_letter_writer.stored(ordinals)
        acknowledgement = self._machine.confirmed(ordinals)
        if acknowledgement is not None:
            self._acknowledge(acknowledgement)
        for ordinal, failure in failures:
            if not fails_alone(failure):
                raise SessionFailed(f"a send failed: {failure}")
            self._dead_letter_writer.refused(ordinal, self._machine.failed(ordinal), refusal(failure))
            self.begins_anew = True

    def _acknowledge_confirmed(self) -> None:
        """Acknowledge after any failure, so that the next subscription repeats no confirmed message."""
        with suppress(pulsar.PulsarException, SessionFailed):
            self._settle()
        command = self._machine.stopping(0)
        if isinstance(command, Acknowledge):
            with suppress(pulsar.PulsarException):
                self._acknowledge(command)

    def _show(self) -> None:
        handle, machine = self._handle, self._machine
        handle.in_flight = machine.in_flight
        handle.head_release_ms = machine.head_release_ms
        handle.state = _SHOWN.get(machine.state, PartitionState.RUNNING)
        self._watch.inspect(is_connected=handle.connected)
        now_ms = self._clock.monotonic_ms()
        self._connections.inspect(now_ms, (self._source.name, self._consumer))
        if machine.cumulative:
            self._check_answers(now_ms)

    def _check_answers(self, now_ms: int) -> None:
        """Raise SessionFailed if the oldest hop has no answer within the send time-out."""
        pending = self._machine.in_flight > 0, self._machine.confirmed_to
        if not pending[0] or pending != self._pending:
            self._pending, self._pending_since_ms = pending, now_ms
        elif now_ms - self._pending_since_ms >= self._tools.send_timeout_ms:
            raise SessionFailed(f"a send has had no answer for {self._tools.send_timeout_ms} ms")
