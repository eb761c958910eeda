"""A session of a partition's mover: from the lease to the first failure.

Its fence shuts earlier sessions out. Then it acknowledges again the originals of the journal's copies whose
acknowledgements a broker has forgotten. So an entry that is pending when the session begins to read has no copy, and
will get none but the session's own, at any position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pulsar

from timewheel.broker.admin.stats import CursorStats, InternalStats
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.entries import Entry
from timewheel.client.native import NO_SCHEMA
from timewheel.client.own_numbers import own_numbers
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import NUDGE_PROPERTY
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.events import ShadowCaughtUp, ShadowMovesAgain, ShadowStaysNative
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.shadow.desired_state import note_caught_up
from timewheel.shadow.driver.acker import OriginalAcker, Subscription
from timewheel.shadow.driver.content import Original
from timewheel.shadow.driver.copies import OF_SESSION, Copies, Stays
from timewheel.shadow.driver.move_counts import MoveCounts
from timewheel.shadow.driver.move_versions import AHEAD_MS, meet_versions, refusal_of, version_of
from timewheel.shadow.driver.mover_tools import MoverTools
from timewheel.shadow.driver.recovery import ack_again
from timewheel.shadow.machine.acked import Acked, AckedByAny
from timewheel.shadow.machine.journal import Journal
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.shadow.machine.nudges import Nudges
from timewheel.shadow.machine.unacked_originals import UnackedOriginals

READ_MS = 200
HOUSEKEEPING_MS = 5_000
"""Interval of cursor reads, after which the journal can be acknowledged."""
QUIET_MS = 10_000
"""After this time without an entry the backlog counts as processed."""

_Kinds = frozenset[tuple[str, bool]]


class MoveSession:
    """A session; for a single thread.

    Args:
        tools: Shared by all movers.
        part: Full name of the due topic's partition, or of a due topic without partitions.
        partition: Its index; 0 for a due topic without partitions.
        handle: Signals when to stop.
        counts: Updated here.
        stays: Updated here.
        versions: Schema versions that were read; updated here.
        led: Called once the session has the lease.
        until_ms: Monotonic time at which it ends, so that another session begins anew; None: no such time.

    Attributes:
        met_others: It ended because the subscriptions have changed.
    """

    def __init__(
        self,
        tools: MoverTools,
        part: str,
        partition: int,
        handle: Handle,
        counts: MoveCounts,
        stays: Stays,
        versions: set[int],
        led: Callable[[], None],
        until_ms: int | None = None,
    ) -> None:
        self._tools = tools
        self._until_ms = until_ms
        self.met_others = False
        self._clock = tools.clock
        self._part = part
        self._partition = partition
        self._handle = handle
        self._counts = counts
        self._stays = stays
        self._versions = versions
        self._led = led
        names = Names(tools.plan)
        self._journal_part = partition_topic(names.journal, partition)
        self._move_decider = MoveDecider(tools.plan)
        self._nudges = Nudges(tools.plan.tick_ms)
        self._journal = Journal(tools.hold_ms)
        self._unacked_originals = UnackedOriginals()
        self._copies = Copies(
            tools.client,
            part,
            partition,
            names=names,
            handle=handle,
            clock=tools.clock,
            counts=counts,
            journal=self._journal,
            unacked_originals=self._unacked_originals,
            stays=stays,
        )
        self._acker: Any = None
        self._nudger: Any = None
        self._kept_house_ms = 0
        self._reported: set[MoveDecision] = set()
        self._end = self._read_to = self._known = EntryPosition(-1, -1)
        self._read_ms = self._clock.monotonic_ms()
        self._began_ms = self._clock.now_ms()

    def run(self) -> None:
        """Work until the handle signals a stop, or until the desired state changes.

        Raises:
            LeaseHeld: Another shadow moves from this partition.
            SessionFailed: A new session must begin.
            AdminError: A new session must begin.
            BinaryProtocolError: A new session must begin.
            PulsarException: A new session must begin.
        """
        tools = self._tools
        with ExitStack() as stack:
            # Checked first: to open a producer on a deleted topic may create it again, without its journal
            # subscription.
            self._journal_cursor(tools.admin.topics.internal_stats(self._journal_part))
            stack.callback(self._copies.close)
            self._copies.take_lease()
            self._led()
            moves = tools.inspector.view.moves
            kinds = _kinds(self._subscriptions())
            fence = self._fence() if moves else self._copies.fence(())
            self._acker = self._subscribe_to_journal()
            stack.callback(_close, self._acker)
            acker = OriginalAcker(tools.dialer, self._part, tools.inspector, self._clock)
            stack.callback(acker.close)
            loaded = self._begin(acker, fence)
            acked = self._cursors()
            after = self._read_to = min(one.mark_delete for one in acked)
            self._read_ms = self._clock.monotonic_ms()
            reader = stack.enter_context(
                EntryReader(tools.dialer, self._part, after=after, keep_payload=True, rng=tools.rng)
            )
            self._check_loaded(loaded)
            if moves:
                note_caught_up(tools.admin, tools.plan, self._partition, 0)
            stack.callback(lambda: _close(self._nudger))
            self._move_all(reader, acker, AckedByAny(acked), kinds, moves=moves)
            self._copies.send()
            self._copies.await_below(also_while_stopping=True)

    # The begin of a session

    def _fence(self) -> EntryPosition:
        try:
            return self._copies.fence({NO_SCHEMA, *self._versions})
        except Exception:
            # A version that cannot be fenced must not keep the next session from acknowledging again.
            self._versions.clear()
            raise

    def _subscribe_to_journal(self) -> Any:
        return self._tools.client.subscribe(
            self._journal_part,
            JOURNAL_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,  # broker-facts: earliest-always
            receiver_queue_size=1,  # it acknowledges, and receives no message
            consumer_name=f"timewheel-journal-{self._partition}",
        )

    def _begin(self, acker: OriginalAcker, fence: EntryPosition) -> int:
        """Acknowledge again the originals that a broker forgot; return the ledger of the due topic before."""
        tools = self._tools
        journal = tools.admin.topics.internal_stats(self._journal_part)
        native = tools.admin.topics.internal_stats(self._part)
        self._known = max(journal.last_confirmed, fence)
        held, forgotten = ack_again(
            tools.client,
            self._journal_part,
            after=self._journal_cursor(journal).mark_delete,
            last=self._known,
            acked={one: Acked.of(self._cursor(native, one)) for one in self._subscriptions() if one.delays},
            acker=acker,
            journal=self._journal,
            beat=self._beat,
        )
        self._counts.acked_again += forgotten
        tools.hooks.emit(ShadowMovesAgain(topic=self._part, journal=held, forgotten=forgotten))
        return native.newest_ledger

    def _check_loaded(self, ledger: int) -> None:
        """Check that the topic was not loaded again. A broker that loads a topic begins another ledger. If it did so
        while the journal was read, it has forgotten acknowledgements that were not acknowledged again; from now on a
        reload ends the session by closing the reader.
        """
        if self._tools.admin.topics.internal_stats(self._part).newest_ledger != ledger:
            raise SessionFailed("the topic was loaded again, or began another ledger, while the journal was read")

    def _beat(self) -> None:
        self._handle.beat()
        if self._handle.stopping:
            raise SessionFailed("it is to stop")

    def _journal_cursor(self, journal: InternalStats) -> CursorStats:
        cursor = journal.cursors.get(JOURNAL_SUBSCRIPTION)
        if cursor is None:
            raise SessionFailed(
                f"{self._journal_part} has no subscription {JOURNAL_SUBSCRIPTION}: was the journal deleted? "
                "run timewheel shadow start PLAN"
            )
        return cursor

    def _cursors(self) -> tuple[Acked, ...]:
        native = self._tools.admin.topics.internal_stats(self._part)
        self._end = native.last_confirmed
        return tuple(Acked.of(self._cursor(native, one)) for one in self._subscriptions())

    def _cursor(self, native: InternalStats, subscription: Subscription) -> CursorStats:
        cursor = native.cursors.get(subscription.name)
        if cursor is None:
            self._tools.inspector.inspect_soon()
            raise SessionFailed(f"subscription {subscription.name} of {self._part} is gone")
        return cursor

    def _subscriptions(self) -> tuple[Subscription, ...]:
        return self._tools.inspector.subscriptions(self._part)

    # Reading

    def _move_all(
        self, reader: EntryReader, acker: OriginalAcker, acked: AckedByAny, kinds: _Kinds, *, moves: bool
    ) -> None:
        handle, inspector, copies = self._handle, self._tools.inspector, self._copies
        while not handle.stopping:
            patience_ms = copies.patience_ms
            entries = reader.read(READ_MS if patience_ms is None else patience_ms)
            handle.beat()
            self.met_others = _kinds(self._subscriptions()) != kinds
            if self.met_others or inspector.view.moves != moves or self._is_over():
                return  # another session reads the entries that were left, and acknowledges originals
            now_ms = self._clock.now_ms()
            if not moves:
                self._meet_nudges(entries, acked, now_ms)
            elif self._meets_versions(reader, entries, acked):
                return  # another session begins with a fence for each
            else:
                self._move(entries, acked, now_ms)
            copies.settle()
            if not entries or copies.patience_ms == 0:
                copies.send()
            if moves and not self._counts.caught_up and self._is_through(entries):
                self._at_the_end()
            self._keep_house(acker, now_ms)

    def _is_over(self) -> bool:
        return self._until_ms is not None and self._clock.monotonic_ms() >= self._until_ms

    def _move(self, entries: list[Entry], acked: AckedByAny, now_ms: int) -> None:
        counts = self._counts
        then_ms = now_ms + self._lag_ms()
        for entry in entries:
            if entry.position in acked:
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

    def _meets_versions(self, reader: EntryReader, entries: list[Entry], acked: AckedByAny) -> bool:
        """Look for new schema versions; if there are any, in the next entries too: each session reads the journal."""
        until_ms, met = self._clock.monotonic_ms() + AHEAD_MS, False
        decision = partial(self._move_decider.decision, now_ms=self._clock.now_ms())
        while entries and self._clock.monotonic_ms() < until_ms:
            left = (one for one in entries if one.position not in acked and one.position not in self._stays)
            met |= meet_versions(self._versions, left, decision, self._copies.can_have)
            entries = reader.read(READ_MS) if met else []
        return met

    def _meet_nudges(self, entries: list[Entry], acked: AckedByAny, now_ms: int) -> None:
        """Record the nudges of another session for removal, also if no more timers are to be moved."""
        for entry in entries:
            if NUDGE_PROPERTY in entry.properties and entry.position not in acked:
                self._nudges.met(entry.position, entry.publish_ms, now_ms)

    def _lag_ms(self) -> int:
        """Return by how much the acknowledgement of originals lags behind moving."""
        upto = self._tools.acked_to(self._partition)
        if upto is not None:
            self._unacked_originals.acked_originals(upto)
        return self._unacked_originals.age_ms(self._clock.monotonic_ms())

    def _take(self, entry: Entry, now_ms: int) -> MoveDecision:
        """Move an entry, unless an obstacle is known that its metadata do not show."""
        version = version_of(entry)
        if (known := self._stays.get(entry.position)) is not None:
            return self._report(entry, *known)
        if not self._copies.is_fenced(version):
            return self._report(entry, MoveDecision.SCHEMA, refusal_of(version, self._versions))
        original = Original(entry)
        self._copies.add(original, version, self._move_decider.copy(entry, self._part, now_ms))
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
        note_caught_up(self._tools.admin, self._tools.plan, self._partition, at_ms)
        self._tools.hooks.emit(ShadowCaughtUp(topic=self._part, moved=self._counts.moved))

    # Housekeeping

    def _keep_house(self, acker: OriginalAcker, now_ms: int) -> None:
        done = self._nudges.over(now_ms)
        if done:
            acker.ack(done)
        acker.keep_alive()
        if self._tools.inspector.view.moves and (at_ms := self._nudges.wanted(now_ms)) is not None:
            self._nudge(at_ms)
        if self._clock.monotonic_ms() - self._kept_house_ms >= HOUSEKEEPING_MS:
            self._kept_house_ms = self._clock.monotonic_ms()
            self._let_go()

    def _nudge(self, at_ms: int) -> None:
        if self._nudger is None:
            self._nudger = self._tools.client.create_producer(self._part, batching_enabled=False, **own_numbers())
        self._counts.nudges += 1
        self._nudger.send(b"", properties={NUDGE_PROPERTY: str(at_ms)}, deliver_at=at_ms, disable_replication=True)

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
        if copy is not None:
            self._let_go_to(copy)
        elif self._journal.is_empty and self._known.entry >= 0:
            # The fence, and the copies before it: another session may have moved later copies.
            self._let_go_to(self._known)
            self._known = EntryPosition(-1, -1)

    def _let_go_to(self, copy: EntryPosition) -> None:
        self._acker.acknowledge_cumulative(pulsar.MessageId(self._partition, copy.ledger, copy.entry, -1))


_USUAL = frozenset({MoveDecision.UNDELAYED, MoveDecision.NEAR, MoveDecision.MARKER})


def _kinds(subscriptions: Sequence[Subscription]) -> _Kinds:
    return frozenset((one.name, one.delays) for one in subscriptions)


def _close(opened: Any) -> None:
    """Close a consumer or a producer of the client, in any state."""
    if opened is not None:
        with suppress(pulsar.PulsarException, ValueError):
            opened.close()
