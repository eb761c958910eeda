"""The mover of a partition: sessions, each from the lease to its first failure.

A session's fence shuts earlier sessions out. Then it acknowledges again the originals of the journal's copies whose
acknowledgements a broker has forgotten. So an entry that is pending when the session begins to read has no copy, and
will get none but the session's own, at any position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any

import pulsar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import CursorStats, InternalStats
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError
from timewheel.client.hooks import Hooks
from timewheel.client.native import NO_SCHEMA, batch_size_of
from timewheel.client.positions import EntryPosition
from timewheel.client.surface import own_numbers
from timewheel.core.clock import Clock
from timewheel.core.envelope import FROM_PROPERTY, NUDGE_PROPERTY
from timewheel.core.errors import AdminError
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.core.rng import Random
from timewheel.events import ShadowCaughtUp, ShadowMoveFailed, ShadowMovesAgain, ShadowStaysNative, ShadowWaitsForLease
from timewheel.relay.driver.hop_producers import LeaseHeld
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.relay.machine.backoff import Backoff
from timewheel.shadow.driver.acker import OriginalAcker
from timewheel.shadow.driver.copies import OF_SESSION, Copies, MoveCounts, Stays
from timewheel.shadow.driver.inspector import AT_LEAST_MS, Subscription, TopicInspector
from timewheel.shadow.machine.cursors import Acked, AckedByAny
from timewheel.shadow.machine.journal import HOLD_MS, Journal, UnackedOriginals
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision, moved_from
from timewheel.shadow.machine.nudges import Nudges
from timewheel.shadow.stored_entries import Original

READ_MS = 200
HOUSEKEEPING_MS = 5_000  # interval of cursor reads, after which the journal can be acknowledged
QUIET_MS = 10_000  # after this time without an entry the backlog counts as processed
RETRY_FIRST_MS = 100
RETRY_LONGEST_MS = 5_000
LEASE_MS = 2_000  # interval at which a waiting mover requests the lease
MAX_STAYS = 100_000
ALL_KNOW_MS = AT_LEAST_MS + 10_000
"""Time after which every shadow knows a subscription that another shadow has seen first. Until then another shadow may
have acknowledged originals without it that this shadow has moved, so the journal's originals are acknowledged once
more then."""
MAX_VERSIONS = 32
"""Each version takes a producer and a fence whenever a session begins, and any number of versions can be registered."""
AHEAD_MS = 1_000  # time for which a session that read a new version looks for more of them
AT_ONCE = 10_000  # copies of the journal that are read before their originals are acknowledged again
JOURNAL_ENTRIES = 16
JOURNAL_READ_MS = 1_000
MAX_SILENT = 30
_NOWHERE = EntryPosition(-1, -1)
_USUAL = frozenset({MoveDecision.UNDELAYED, MoveDecision.NEAR, MoveDecision.MARKER})


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverTools:
    """The objects that all movers of a shadow share."""

    client: Any
    dialer: Dialer
    admin: AdminClient
    plan: Plan
    inspector: TopicInspector
    clock: Clock
    rng: Random
    hooks: Hooks
    hold_ms: int = HOLD_MS
    acked_to: Callable[[int], EntryPosition | None] = lambda _: None
    """Returns the copy of a journal's partition up to which the originals are acknowledged, as far as this process
    knows, or None: another process may relay the partition."""
    look_soon: Callable[[], None] = lambda: None  # called when `Mover.caught_up_ms` has changed


class Mover:
    """Runs sessions, one at a time, in the thread that calls `run`; of a due topic without partitions as of 0."""

    def __init__(self, tools: MoverTools, part: str, partition: int) -> None:
        self.tools = tools
        self.part = part
        self.partition = partition
        self.handle = Handle(tools.clock)
        self.counts = MoveCounts()
        self.leads = False
        self.caught_up_ms: int | None = None
        """When it had processed the backlog, UTC milliseconds; 0: not yet; None: it does not move. Whoever looks after
        it stores the value: the broker to ask may hang, and serve none of its topics."""
        self.reason: str | None = None  # why it last began anew
        self.stays: Stays = {}
        self.versions: set[int] = set()  # the schema versions that are copied: the first `MAX_VERSIONS` that it read
        self._reported_of_lease = False
        self._again_ms: int | None = None

    def run(self) -> None:
        """Work until the handle signals a stop."""
        handle, tools = self.handle, self.tools
        backoff = Backoff(RETRY_FIRST_MS, RETRY_LONGEST_MS, tools.rng)
        while not handle.stopping:
            moved = self.counts.moved
            session = MoveSession(self, self._again_ms)
            try:
                session.run()
            except LeaseHeld:
                if not self._reported_of_lease:
                    self._reported_of_lease = True
                    tools.hooks.emit(ShadowWaitsForLease(topic=self.part))
                handle.pause(LEASE_MS)
                continue
            except (SessionFailed, AdminError, BinaryProtocolError, pulsar.PulsarException) as error:
                self._failed(str(error) or repr(error))
            except Exception as error:  # noqa: BLE001 - a bug must not end a partition's mover in silence
                self._failed(repr(error))
            else:
                now_ms = tools.clock.monotonic_ms()
                if session.met_others:
                    self._again_ms = now_ms + ALL_KNOW_MS
                elif self._again_ms is not None and now_ms >= self._again_ms:
                    self._again_ms = None
                continue
            finally:
                self.leads = False
                self.caught_up_ms = None
                self.counts.caught_up = False
            if self.counts.moved != moved:
                backoff.reset()
            handle.pause(backoff.next_ms())

    def led(self) -> None:
        """Record that the session has the lease."""
        self.leads, self._reported_of_lease = True, False

    def note(self, caught_up_ms: int) -> None:
        """Have it stored when the backlog had been processed, UTC milliseconds; 0: it no longer has."""
        self.caught_up_ms = caught_up_ms
        self.tools.look_soon()

    def _failed(self, reason: str) -> None:
        self.counts.failures += 1
        self.reason = reason
        if len(self.stays) > MAX_STAYS:
            self.stays.clear()
        self.tools.hooks.emit(ShadowMoveFailed(topic=self.part, reason=reason))


class MoveSession:
    """A session of a mover, for a single thread; it ends at `until_ms`, monotonic, so that another begins anew."""

    def __init__(self, mover: Mover, until_ms: int | None) -> None:
        self._mover = mover
        self._tools = tools = mover.tools
        self._until_ms = until_ms
        self.met_others = False  # it ended because the subscriptions have changed
        self._clock = tools.clock
        self._part, self._partition = mover.part, mover.partition
        self._handle, self._counts = mover.handle, mover.counts
        names = Names(tools.plan)
        self._journal_part = partition_topic(names.journal, mover.partition)
        self._move_decider = MoveDecider(tools.plan)
        self._nudges = Nudges(tools.plan.tick_ms)
        self._journal = Journal(tools.hold_ms)
        self._unacked_originals = UnackedOriginals()
        self._copies = Copies(
            tools.client, mover.part, mover.partition, names=names, handle=mover.handle, clock=tools.clock,
            counts=mover.counts, journal=self._journal, unacked_originals=self._unacked_originals, stays=mover.stays,
        )  # fmt: skip
        self._acker = OriginalAcker(tools.dialer, mover.part, tools.inspector, tools.clock)
        self._acked = AckedByAny(())
        self._journal_consumer: Any = None
        self._nudger: Any = None
        self._kept_house_ms = 0
        self._reported: set[MoveDecision] = set()
        self._end = self._read_to = self._known = _NOWHERE
        self._read_ms = self._clock.monotonic_ms()
        self._began_ms = self._clock.now_ms()

    def run(self) -> None:
        """Work until the handle signals a stop, or until the desired state changes; LeaseHeld: another shadow moves."""
        tools, admin = self._tools, self._tools.admin
        with ExitStack() as stack:
            # Checked first: to open a producer on a deleted topic may create it again, without its journal
            # subscription.
            self._journal_cursor(admin.topics.internal_stats(self._journal_part))
            stack.callback(self._copies.close)
            self._copies.take_lease()
            self._mover.led()
            moves, kinds = tools.inspector.view.moves, self._kinds()
            fence = self._fence() if moves else _NOWHERE
            self._journal_consumer = tools.client.subscribe(
                self._journal_part,
                JOURNAL_SUBSCRIPTION,
                consumer_type=pulsar.ConsumerType.Failover,
                initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
                receiver_queue_size=1,  # it acknowledges, and receives no message
                consumer_name=f"timewheel-journal-{self._partition}",
            )
            stack.callback(_close, self._journal_consumer)
            stack.callback(self._acker.close)
            loaded = self._begin(fence)
            native = admin.topics.internal_stats(self._part)
            self._end = native.last_confirmed
            acked = [Acked.of(self._cursor(native, one)) for one in self._subscriptions()]
            self._acked = AckedByAny(acked)
            after = self._read_to = min(one.mark_delete for one in acked)
            self._read_ms = self._clock.monotonic_ms()
            reader = stack.enter_context(
                EntryReader(tools.dialer, self._part, after=after, keep_payload=True, rng=tools.rng)
            )
            # A broker that loads a topic begins another ledger. If it did so while the journal was read, it has
            # forgotten acknowledgements that were not acknowledged again; from now on a reload closes the reader.
            if admin.topics.internal_stats(self._part).newest_ledger != loaded:
                raise SessionFailed("the topic was loaded again, or began another ledger, while the journal was read")
            if moves:
                self._mover.note(0)
            stack.callback(lambda: _close(self._nudger))
            self._move_all(reader, kinds, moves=moves)
            self._copies.send()
            self._copies.await_below(also_while_stopping=True)

    # The begin of a session

    def _fence(self) -> EntryPosition:
        try:
            return self._copies.fence({NO_SCHEMA, *self._mover.versions})
        except Exception:
            # A version that cannot be fenced must not keep the next session from acknowledging again.
            self._mover.versions.clear()
            raise

    def _begin(self, fence: EntryPosition) -> int:
        """Acknowledge again the originals that a broker forgot; return the ledger of the due topic before."""
        topics = self._tools.admin.topics
        journal, native = topics.internal_stats(self._journal_part), topics.internal_stats(self._part)
        self._known = max(journal.last_confirmed, fence)
        acked = {one: Acked.of(self._cursor(native, one)) for one in self._subscriptions() if one.delays}
        held, forgotten = self._ack_again(acked, self._journal_cursor(journal).mark_delete)
        self._counts.acked_again += forgotten
        self._tools.hooks.emit(ShadowMovesAgain(topic=self._part, journal=held, forgotten=forgotten))
        return native.newest_ledger

    def _ack_again(self, acked: Mapping[Subscription, Acked], after: EntryPosition) -> tuple[int, int]:
        """Read the journal to its known end, and acknowledge its originals on each subscription that has not.

        Every copy that is read is stored, so no original is acknowledged without a stored copy. Returns the number of
        copies in the journal, and of forgotten acknowledgements.
        """
        held = forgotten = 0
        pending: dict[Subscription, list[EntryPosition]] = {one: [] for one in acked}
        for original, copy in self._journaled(after):
            held += 1
            self._journal.add(original, copy)
            for subscription, known in acked.items():
                if original not in known:
                    pending[subscription].append(original)
            if held % AT_ONCE == 0:
                forgotten += self._ack_pending(pending)
        return held, forgotten + self._ack_pending(pending)

    def _ack_pending(self, pending: dict[Subscription, list[EntryPosition]]) -> int:
        count = max(map(len, pending.values()), default=0)
        self._acker.ack_on(pending)
        for positions in pending.values():
            positions.clear()
        return count

    def _journaled(self, after: EntryPosition) -> Iterator[tuple[EntryPosition, EntryPosition]]:
        """Yield the positions of each original and its copy behind a position; no shadow moves meanwhile."""
        last = self._known
        if last <= after or last.entry < 0:
            return
        # The end is known before: for a reader that begins behind a batch the client reports that more messages exist.
        start = pulsar.MessageId.earliest if after.entry < 0 else pulsar.MessageId(-1, after.ledger, after.entry, -1)
        silent, client = 0, self._tools.client
        with closing(client.create_reader(self._journal_part, start, receiver_queue_size=JOURNAL_ENTRIES)) as reader:
            while True:
                self._handle.beat()
                if self._handle.stopping:
                    raise SessionFailed("it is to stop")
                try:
                    message = reader.read_next(JOURNAL_READ_MS)
                except pulsar.Timeout:
                    silent += 1
                    if silent == MAX_SILENT:
                        raise SessionFailed(f"{self._journal_part} could not be read up to {tuple(last)}") from None
                    continue
                silent = 0
                place = message.message_id()
                copy = EntryPosition(place.ledger_id(), place.entry_id())
                with suppress(UnicodeDecodeError):  # not written by a shadow
                    if (found := moved_from(message.properties().get(FROM_PROPERTY, ""))) is not None:
                        yield found[0], copy
                if copy >= last and place.batch_index() >= batch_size_of(place) - 1:
                    return

    def _journal_cursor(self, journal: InternalStats) -> CursorStats:
        cursor = journal.cursors.get(JOURNAL_SUBSCRIPTION)
        if cursor is None:
            raise SessionFailed(
                f"{self._journal_part} has no subscription {JOURNAL_SUBSCRIPTION}: was the journal deleted? "
                "run timewheel shadow start PLAN"
            )
        return cursor

    def _cursor(self, native: InternalStats, subscription: Subscription) -> CursorStats:
        cursor = native.cursors.get(subscription.name)
        if cursor is None:
            self._tools.inspector.inspect_soon()
            raise SessionFailed(f"subscription {subscription.name} of {self._part} is gone")
        return cursor

    def _subscriptions(self) -> tuple[Subscription, ...]:
        return self._tools.inspector.subscriptions(self._part)

    def _kinds(self) -> frozenset[tuple[str, bool]]:
        return frozenset((one.name, one.delays) for one in self._subscriptions())

    # Reading

    def _move_all(self, reader: EntryReader, kinds: frozenset[tuple[str, bool]], *, moves: bool) -> None:
        handle, inspector, copies = self._handle, self._tools.inspector, self._copies
        while not handle.stopping:
            patience_ms = copies.patience_ms
            entries = reader.read(READ_MS if patience_ms is None else patience_ms)
            handle.beat()
            self.met_others = self._kinds() != kinds
            is_over = self._until_ms is not None and self._clock.monotonic_ms() >= self._until_ms
            if self.met_others or inspector.view.moves != moves or is_over:
                return  # another session reads the entries that were left, and acknowledges originals
            now_ms = self._clock.now_ms()
            if not moves:
                # Nudges of another session are removed also if no more timers are to be moved.
                for entry in entries:
                    if NUDGE_PROPERTY in entry.properties and entry.position not in self._acked:
                        self._nudges.met(entry.position, entry.publish_ms, now_ms)
            elif self._meets_versions(reader, entries):
                return  # another session begins with a fence for each
            else:
                self._move(entries, now_ms)
            copies.settle()
            if not entries or copies.patience_ms == 0:
                copies.send()
            if moves and not self._counts.caught_up and self._is_through(entries):
                self._at_the_end()
            self._keep_house(now_ms)

    def _move(self, entries: list[Entry], now_ms: int) -> None:
        counts = self._counts
        # Originals are acknowledged later while the shadow lags: what is moved must be due later by as much.
        upto = self._tools.acked_to(self._partition)
        if upto is not None:
            self._unacked_originals.acked_originals(upto)
        then_ms = now_ms + self._unacked_originals.age_ms(self._clock.monotonic_ms())
        for entry in entries:
            if entry.position in self._acked:
                counts.handled += 1
                continue
            try:
                decision = self._move_decider.decision(entry, then_ms)
                if decision is MoveDecision.MOVE:
                    decision = self._take(entry, now_ms)
                elif decision is MoveDecision.NUDGE:
                    self._nudges.met(entry.position, entry.publish_ms, now_ms)
                elif decision not in _USUAL:
                    self._report(entry, decision)
            except OF_SESSION:
                raise
            except Exception as error:  # noqa: BLE001 - any error of a single entry concerns that entry only: it stays
                decision = self._report(entry, MoveDecision.DAMAGED, repr(error))
            counts.decisions[decision] += 1

    def _take(self, entry: Entry, now_ms: int) -> MoveDecision:
        """Move an entry, unless an obstacle is known that its metadata do not show."""
        version, versions = _version_of(entry), self._mover.versions
        if (known := self._mover.stays.get(entry.position)) is not None:
            return self._report(entry, *known)
        if not self._copies.is_fenced(version):
            is_met = version in versions or len(versions) < MAX_VERSIONS
            why = "" if is_met else f": copies are made of the {MAX_VERSIONS} versions that were met first"
            return self._report(entry, MoveDecision.SCHEMA, f"version {version}{why}")
        self._copies.add(Original(entry), version, self._move_decider.copy(entry, self._part, now_ms))
        if entry.publish_ms >= self._began_ms:
            self._counts.lags_ms.append(now_ms - entry.publish_ms)
        self._nudges.moved(entry.deliver_at_ms or 0)
        return MoveDecision.MOVE

    def _report(self, entry: Entry, decision: MoveDecision, reason: str = "") -> MoveDecision:
        if decision not in self._reported:
            self._reported.add(decision)
            told = ShadowStaysNative(topic=self._part, why=decision.value, position=entry.position.text, reason=reason)
            self._tools.hooks.emit(told)
        return decision

    def _meets_versions(self, reader: EntryReader, entries: list[Entry]) -> bool:
        """Look for new schema versions; if there are any, in the next entries too: each session reads the journal."""
        until_ms, now_ms = self._clock.monotonic_ms() + AHEAD_MS, self._clock.now_ms()
        versions = self._mover.versions
        known = len(versions)
        while entries and self._clock.monotonic_ms() < until_ms:
            for entry in entries:
                if len(versions) < MAX_VERSIONS and self._is_of_new_version(entry, now_ms):
                    versions.add(_version_of(entry))
            entries = reader.read(READ_MS) if len(versions) > known else []
        return len(versions) > known

    def _is_of_new_version(self, entry: Entry, now_ms: int) -> bool:
        version = _version_of(entry)
        if version == NO_SCHEMA or version in self._mover.versions:
            return False
        if entry.position in self._acked or entry.position in self._mover.stays:
            return False
        try:
            moves = self._move_decider.decision(entry, now_ms) is MoveDecision.MOVE
        except Exception:  # noqa: BLE001 - it concerns that entry only, and is reported in its turn
            return False
        return moves and self._copies.can_have(version)

    def _is_through(self, entries: list[Entry]) -> bool:
        """Return whether all entries that existed when the session began have been read."""
        now_ms = self._clock.monotonic_ms()
        if entries:
            self._read_to, self._read_ms = entries[-1].position, now_ms
        # A broker does not deliver its own entries, so the last entry may never come. A short pause proves nothing: a
        # broker has to find the requested entries first.
        return self._read_to >= self._end or now_ms - self._read_ms >= QUIET_MS

    def _at_the_end(self) -> None:
        self._copies.send()
        self._copies.await_below()
        if self._copies.in_flight:
            return  # it is to stop
        self._counts.caught_up = True
        # The time of the desired state is by another machine's clock, which may be ahead.
        at_ms = max(self._clock.now_ms(), self._tools.inspector.view.desired.since_ms)
        self._mover.note(at_ms)
        self._tools.hooks.emit(ShadowCaughtUp(topic=self._part, moved=self._counts.moved))

    # Housekeeping

    def _keep_house(self, now_ms: int) -> None:
        if done := self._nudges.over(now_ms):
            self._acker.ack(done)
        self._acker.keep_alive()
        if self._tools.inspector.view.moves and (at_ms := self._nudges.wanted(now_ms)) is not None:
            if self._nudger is None:
                self._nudger = self._tools.client.create_producer(self._part, batching_enabled=False, **own_numbers())
            self._counts.nudges += 1
            self._nudger.send(b"", properties={NUDGE_PROPERTY: str(at_ms)}, deliver_at=at_ms, disable_replication=True)
        if self._clock.monotonic_ms() - self._kept_house_ms >= HOUSEKEEPING_MS:
            self._kept_house_ms = self._clock.monotonic_ms()
            self._let_go()

    def _let_go(self) -> None:
        """Acknowledge in the journal the copies whose originals' acknowledgements no broker can forget any more."""
        topics = self._tools.admin.topics
        journal = topics.internal_stats(self._journal_part)
        self._journal_cursor(journal)
        if (relay := journal.cursors.get(RELAY_SUBSCRIPTION)) is not None:
            self._unacked_originals.acked_originals(relay.mark_delete)
        native = topics.internal_stats(self._part)
        passed = min(self._cursor(native, one).mark_delete for one in self._subscriptions())
        copy = self._journal.passed(passed, self._clock.monotonic_ms())
        if copy is None and self._journal.is_empty and self._known.entry >= 0:
            # The fence, and the copies before it: another session may have moved later copies.
            copy, self._known = self._known, _NOWHERE
        if copy is not None:
            place = pulsar.MessageId(self._partition, copy.ledger, copy.entry, -1)
            self._journal_consumer.acknowledge_cumulative(place)


def _version_of(entry: Entry) -> int:
    return NO_SCHEMA if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")


def _close(opened: Any) -> None:
    """Close a consumer or a producer of the client, in any state."""
    if opened is not None:
        with suppress(pulsar.PulsarException, ValueError):
            opened.close()
