"""One session of a partition's lifter: from the lease to the first thing that fails.

It begins by acknowledging again what the journal holds and a broker has forgotten. So whatever was lifted before is
acknowledged when it begins to read, and what is pending has no copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pulsar

from timewheel.admin.client import AdminClient
from timewheel.admin.internals import CursorStats, InternalStats
from timewheel.binary_protocol.dialing import Dialer
from timewheel.binary_protocol.entries import Entry
from timewheel.binary_protocol.reading import EntryReader
from timewheel.consumers.relay.driver.endings import SessionFailed
from timewheel.consumers.relay.driver.groups import Group, Groups, Member
from timewheel.consumers.relay.driver.handle import Handle
from timewheel.consumers.relay.driver.hop_producers import HopProducers
from timewheel.consumers.relay.machine.order import sequence_id
from timewheel.core.chance import Chance
from timewheel.core.clock import Clock
from timewheel.core.envelope import FROM_PROPERTY, STIR_PROPERTY
from timewheel.core.names import JOURNAL_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.events import ShadowCaughtUp, ShadowLiftsAgain, ShadowStaysNative
from timewheel.shadow.driver.content import DamagedPayload, Original
from timewheel.shadow.driver.lift_counts import LiftCounts
from timewheel.shadow.driver.looking import Looker
from timewheel.shadow.driver.recovery import strike_again
from timewheel.shadow.driver.striking import Striker
from timewheel.shadow.machine.acked import Acked, AckedByAny
from timewheel.shadow.machine.journal import HOLD_MS, Journal
from timewheel.shadow.machine.lifting import Fate, Lifting, timer_of
from timewheel.shadow.machine.states import caught_up_property
from timewheel.shadow.machine.stirring import Stirring
from timewheel.wire.hooks import Hooks
from timewheel.wire.native import NO_SCHEMA, properties_size
from timewheel.wire.own_numbers import OWN_NUMBERS
from timewheel.wire.positions import EntryPosition, Position

__all__ = ["LiftSession", "LiftTools"]

MAX_IN_FLIGHT = 4_000
MAX_BYTES_IN_FLIGHT = 16_000_000
LINGER_MS = 20
"""How long a copy waits for others that go with it as one entry."""
READ_MS = 200
SEND_TIMEOUT_MS = 30_000
HOUSEKEEPING_MS = 5_000
"""How often cursors are looked at, so that the journal is let go."""
LARGEST_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""Of a payload: with what a copy has more than its original, a broker takes no larger one."""
ROOM_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftTools:
    """What all lifters of a shadow share.

    Args:
        client: The user's `pulsar.Client`.
        dialer: Of the binary protocol.
        admin: Of any broker.
        plan: Has an intake.
        looker: Knows the wish and the subscriptions.
        clock: Time.
        chance: For pauses.
        hooks: Whom to tell.
        hold_ms: For how long the journal keeps what every subscription has passed.
    """

    client: Any
    dialer: Dialer
    admin: AdminClient
    plan: Plan
    looker: Looker
    clock: Clock
    chance: Chance
    hooks: Hooks
    hold_ms: int = HOLD_MS


class LiftSession:
    """For one thread.

    Args:
        tools: Shared.
        part: Full name of the due topic's partition, or of a due topic without partitions.
        partition: Its index; 0 for a due topic without partitions.
        handle: Says when to stop.
        counts: Goes on counting here.
        stays: Entries that cannot be lifted, as was learnt; goes on there.
        led: Called once it has the lease.
    """

    def __init__(
        self,
        tools: LiftTools,
        part: str,
        partition: int,
        handle: Handle,
        counts: LiftCounts,
        stays: set[EntryPosition],
        led: Callable[[], None],
    ) -> None:
        self._tools = tools
        self._clock = tools.clock
        self._part = part
        self._partition = partition
        self._handle = handle
        self._counts = counts
        self._stays = stays
        self._led = led
        names = Names(tools.plan)
        self._intake = names.intake
        self._intake_part = partition_topic(names.intake, partition)
        self._lifting = Lifting(tools.plan)
        self._stirring = Stirring(tools.plan.tick_ms)
        self._journal = Journal(tools.hold_ms)
        self._hops = HopProducers(
            tools.client,
            part,
            partition,
            names=names,
            fingerprint="",
            max_pending=MAX_IN_FLIGHT,
            send_timeout_ms=SEND_TIMEOUT_MS,
            label="lift|",
        )
        self._groups = Groups(self._hops, self._on_sent)
        self._outcomes: deque[tuple[Group, Any, Any]] = deque()
        self._in_flight = self._bytes_in_flight = 0
        self._waiting_since_ms: int | None = None
        self._ordinal = 0
        self._acker: Any = None
        self._stirrer: Any = None
        self._kept_house_ms = 0
        self._told: set[Fate] = set()

    def run(self) -> None:
        """Work until told to stop, or until the wish changes.

        Raises:
            LeaseHeld: Another shadow lifts from this partition.
            SessionFailed: Begin anew.
            AdminError: The same.
            BinaryProtocolError: The same.
            PulsarException: The same.
        """
        tools = self._tools
        with ExitStack() as stack:
            # What is looked at first: to open a producer on a topic that is gone may make it anew, without its journal.
            self._journal_cursor(tools.admin.topics.internal_stats(self._intake_part))
            stack.callback(self._hops.give_back)
            self._hops.for_groups(self._intake, NO_SCHEMA)  # the lease
            self._led()
            self._acker = stack.enter_context(_closing(self._subscribe_to_journal()))
            striker = Striker(tools.dialer, self._part, self._subscriptions, self._clock)
            stack.callback(striker.close)
            self._begin(striker)
            acked = self._cursors()
            after = min(one.mark_delete for one in acked)
            reader = stack.enter_context(
                EntryReader(tools.dialer, self._part, after=after, keep_payload=True, chance=tools.chance)
            )
            stack.callback(self._close_stirrer)
            self._lift_all(reader, striker, AckedByAny(acked))
            self._send()
            self._await(1, also_while_stopping=True)

    # The beginning

    def _subscribe_to_journal(self) -> Any:
        return self._tools.client.subscribe(
            self._intake_part,
            JOURNAL_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
            receiver_queue_size=1,  # it acknowledges, and receives nothing
            consumer_name=f"timewheel-journal-{self._partition}",
        )

    def _begin(self, striker: Striker) -> None:
        tools = self._tools
        intake = tools.admin.topics.internal_stats(self._intake_part)
        native = tools.admin.topics.internal_stats(self._part)
        journal, forgotten = strike_again(
            tools.client,
            self._intake_part,
            after=self._journal_cursor(intake).mark_delete,
            acked={one: Acked.of(native.cursors[one.name]) for one in self._subscriptions()},
            striker=striker,
            journal=self._journal,
            beat=self._handle.beat,
        )
        self._counts.struck_again += forgotten
        tools.hooks.emit(ShadowLiftsAgain(topic=self._part, journal=journal, forgotten=forgotten))

    def _journal_cursor(self, intake: InternalStats) -> CursorStats:
        cursor = intake.cursors.get(JOURNAL_SUBSCRIPTION)
        if cursor is None:
            raise SessionFailed(
                f"{self._intake_part} has no subscription {JOURNAL_SUBSCRIPTION}: was the intake deleted? "
                "run timewheel topics ensure PLAN"
            )
        return cursor

    def _cursors(self) -> tuple[Acked, ...]:
        native = self._tools.admin.topics.internal_stats(self._part)
        return tuple(Acked.of(native.cursors[one.name]) for one in self._subscriptions())

    def _subscriptions(self) -> Any:
        return self._tools.looker.subscriptions(self._part)

    # Reading

    def _lift_all(self, reader: EntryReader, striker: Striker, acked: AckedByAny) -> None:
        handle, looker = self._handle, self._tools.looker
        lifts, subscriptions = looker.view.lifts, self._subscriptions()
        while not handle.stopping:
            view = looker.view
            if view.lifts != lifts or self._subscriptions() != subscriptions:
                return  # what was left meanwhile has to be looked at anew
            entries = reader.read(self._patience_ms())
            handle.beat()
            now_ms = self._clock.now_ms()
            if lifts:
                self._lift(entries, acked, now_ms)
            self._settle()
            if not entries or self._is_time_to_send():
                self._send()
            if not entries:
                self._at_the_end(lifts=lifts)
            self._keep_house(striker, now_ms)

    def _patience_ms(self) -> int:
        since_ms = self._waiting_since_ms
        if since_ms is None:
            return READ_MS
        return max(since_ms + LINGER_MS - self._clock.monotonic_ms(), 0)

    def _lift(self, entries: list[Entry], acked: AckedByAny, now_ms: int) -> None:
        counts, fate_of = self._counts, self._lifting.fate
        for entry in entries:
            if entry.position in acked:
                counts.handled += 1
                continue
            fate = fate_of(entry, now_ms)
            counts.fates[fate] += 1
            if fate is Fate.LIFT:
                self._take(entry, now_ms)
            elif fate is Fate.STIR:
                self._stirring.met(entry.position, entry.publish_ms)
            elif fate not in _USUAL and fate not in self._told:
                self._tell(fate)

    def _take(self, entry: Entry, now_ms: int) -> None:
        if entry.position in self._stays or max(entry.payload_bytes, entry.uncompressed_bytes) > LARGEST_BYTES:
            self._tell(Fate.LARGE)
            return
        try:
            original = Original(entry)
        except DamagedPayload:
            self._tell(Fate.DAMAGED)
            return
        properties = dict(entry.properties)
        properties.update(timer_of(entry, self._part, now_ms, self._tools.plan.revision).properties())
        place = entry.position
        properties[FROM_PROPERTY] = f"{place.ledger}:{place.entry} {entry.publish_ms}"
        version = NO_SCHEMA if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")
        size = original.size + properties_size(properties)
        self._make_room(size)
        number = sequence_id(Position(*place, -1))
        self._groups.add(self._intake, version, number, Member(self._ordinal, original, properties, size))
        self._ordinal += 1
        self._in_flight += 1
        self._bytes_in_flight += size
        self._counts.lags_ms.append(now_ms - entry.publish_ms)
        self._stirring.lifted(entry.deliver_at_ms or 0)
        if self._waiting_since_ms is None:
            self._waiting_since_ms = self._clock.monotonic_ms()

    def _tell(self, fate: Fate) -> None:
        if fate not in self._told:
            self._told.add(fate)
            self._tools.hooks.emit(ShadowStaysNative(topic=self._part, why=fate.value))

    def _at_the_end(self, *, lifts: bool) -> None:
        """Nothing more is there now."""
        if not lifts or self._counts.caught_up or self._in_flight:
            return
        self._counts.caught_up = True
        now = {caught_up_property(self._partition): str(self._clock.now_ms())}
        self._tools.admin.topics.update_properties(self._intake, now)
        self._tools.hooks.emit(ShadowCaughtUp(topic=self._part, lifted=self._counts.lifted))

    # Sending

    def _is_time_to_send(self) -> bool:
        since_ms = self._waiting_since_ms
        return since_ms is not None and self._clock.monotonic_ms() - since_ms >= LINGER_MS

    def _send(self) -> None:
        if self._waiting_since_ms is not None:
            self._waiting_since_ms = None
            self._groups.send()

    def _make_room(self, size: int) -> None:
        if self._in_flight < MAX_IN_FLIGHT and self._bytes_in_flight + size <= MAX_BYTES_IN_FLIGHT:
            return
        self._send()
        self._await(MAX_IN_FLIGHT // 2)

    def _await(self, below: int, *, also_while_stopping: bool = False) -> None:
        """Wait until fewer are on their way, and fewer bytes; sends that are not answered fail by themselves."""
        handle = self._handle
        while self._in_flight >= below or self._bytes_in_flight > MAX_BYTES_IN_FLIGHT // 2:
            if handle.stopping and (not also_while_stopping or not handle.drain_left_ms()):
                return
            with handle.changed:
                if not self._outcomes:
                    self._clock.wait(handle.changed, ROOM_MS)
            handle.beat()
            self._settle()
            if not self._in_flight:
                return

    def _on_sent(self, group: Group, result: Any, message_id: Any) -> None:
        """Runs on the client's thread."""
        self._outcomes.append((group, result, message_id))
        with self._handle.changed:
            self._handle.changed.notify_all()

    def _settle(self) -> None:
        while self._outcomes:
            group, result, message_id = self._outcomes.popleft()
            members = group.members
            self._in_flight -= len(members)
            self._bytes_in_flight -= sum(member.size for member in members)
            if result.value:
                if result == pulsar.Result.MessageTooBig:
                    self._stays.update(_original(member) for member in members)
                raise SessionFailed(f"a copy was not stored: {result.name}")
            if message_id.batch_index() != len(members) - 1:
                raise SessionFailed("the client has cut a group of copies: which of them are stored is read again")
            if message_id.ledger_id() < 0:
                self._counts.deduplicated += len(members)
                continue
            self._counts.lifted += len(members)
            copy = EntryPosition(message_id.ledger_id(), message_id.entry_id())
            self._journal.add(_original(members[-1]), copy)

    # Beside

    def _keep_house(self, striker: Striker, now_ms: int) -> None:
        done = self._stirring.over(now_ms)
        if done:
            striker.strike(done)
        striker.keep_alive()
        if self._tools.looker.view.lifts and (at_ms := self._stirring.wanted(now_ms)) is not None:
            self._stir(at_ms)
        if self._clock.monotonic_ms() - self._kept_house_ms >= HOUSEKEEPING_MS:
            self._kept_house_ms = self._clock.monotonic_ms()
            self._let_go()

    def _stir(self, at_ms: int) -> None:
        if self._stirrer is None:
            self._stirrer = self._tools.client.create_producer(self._part, batching_enabled=False, **OWN_NUMBERS)
        self._counts.stirs += 1
        self._stirrer.send(b"", properties={STIR_PROPERTY: str(at_ms)}, deliver_at=at_ms, disable_replication=True)

    def _close_stirrer(self) -> None:
        if self._stirrer is not None:
            with suppress(pulsar.PulsarException):
                self._stirrer.close()

    def _let_go(self) -> None:
        """Acknowledge in the journal what no broker can forget any more."""
        topics = self._tools.admin.topics
        self._journal_cursor(topics.internal_stats(self._intake_part))
        cursors = topics.internal_stats(self._part).cursors
        passed = min(cursors[one.name].mark_delete for one in self._subscriptions())
        copy = self._journal.passed(passed, self._clock.monotonic_ms())
        if copy is not None:
            self._acknowledge_journal(pulsar.MessageId(self._partition, copy.ledger, copy.entry, -1))
        elif self._journal.is_empty and not self._in_flight:
            # What others have put into the intake needs no journal.
            last = self._acker.get_last_message_id()
            if last.entry_id() >= 0:
                self._acknowledge_journal(last)

    def _acknowledge_journal(self, message_id: Any) -> None:
        self._acker.acknowledge_cumulative(message_id)


_USUAL = frozenset({Fate.UNDELAYED, Fate.NEAR, Fate.MARKER})


def _original(member: Member) -> EntryPosition:
    return EntryPosition.parse(member.properties[FROM_PROPERTY].partition(" ")[0])


class _closing:  # noqa: N801 - as contextlib's
    """Closes a client's consumer, whatever state it is in."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __enter__(self) -> Any:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        with suppress(pulsar.PulsarException, ValueError):
            self._consumer.close()
