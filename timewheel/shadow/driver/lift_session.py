"""A session of a partition's lifter: from the lease to the first failure.

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

from timewheel.admin.internals import CursorStats, InternalStats
from timewheel.binary_protocol.entries import Entry
from timewheel.binary_protocol.reading import EntryReader
from timewheel.consumers.relay.driver.endings import SessionFailed
from timewheel.consumers.relay.driver.handle import Handle
from timewheel.core.envelope import STIR_PROPERTY
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.events import ShadowCaughtUp, ShadowLiftsAgain, ShadowStaysNative
from timewheel.shadow.driver.content import Original
from timewheel.shadow.driver.copies import OF_SESSION, Copies, Stays
from timewheel.shadow.driver.lift_counts import LiftCounts
from timewheel.shadow.driver.lift_tools import LiftTools
from timewheel.shadow.driver.lift_versions import AHEAD_MS, meet_versions, refusal_of, version_of
from timewheel.shadow.driver.recovery import strike_again
from timewheel.shadow.driver.striking import Striker, Subscription
from timewheel.shadow.machine.acked import Acked, AckedByAny
from timewheel.shadow.machine.journal import Journal
from timewheel.shadow.machine.lifting import Fate, Lifting
from timewheel.shadow.machine.stirring import Stirring
from timewheel.shadow.machine.unstruck import Unstruck
from timewheel.shadow.wishing import note_caught_up
from timewheel.wire.native import NO_SCHEMA
from timewheel.wire.own_numbers import own_numbers
from timewheel.wire.positions import EntryPosition

__all__ = ["LiftSession"]

READ_MS = 200
HOUSEKEEPING_MS = 5_000
"""Interval of cursor reads, after which the journal can be acknowledged."""
QUIET_MS = 10_000
"""After this time without an entry the backlog counts as processed."""

_Kinds = frozenset[tuple[str, bool]]


class LiftSession:
    """A session; for a single thread.

    Args:
        tools: Shared by all lifters.
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
        tools: LiftTools,
        part: str,
        partition: int,
        handle: Handle,
        counts: LiftCounts,
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
        self._lifting = Lifting(tools.plan)
        self._stirring = Stirring(tools.plan.tick_ms)
        self._journal = Journal(tools.hold_ms)
        self._unstruck = Unstruck()
        self._copies = Copies(
            tools.client,
            part,
            partition,
            names=names,
            handle=handle,
            clock=tools.clock,
            counts=counts,
            journal=self._journal,
            unstruck=self._unstruck,
            stays=stays,
        )
        self._acker: Any = None
        self._stirrer: Any = None
        self._kept_house_ms = 0
        self._told: set[Fate] = set()
        self._end = self._read_to = self._known = EntryPosition(-1, -1)
        self._read_ms = self._clock.monotonic_ms()
        self._began_ms = self._clock.now_ms()

    def run(self) -> None:
        """Work until the handle signals a stop, or until the wish changes.

        Raises:
            LeaseHeld: Another shadow lifts from this partition.
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
            lifts = tools.looker.view.lifts
            kinds = _kinds(self._subscriptions())
            fence = self._fence() if lifts else self._copies.fence(())
            self._acker = self._subscribe_to_journal()
            stack.callback(_close, self._acker)
            striker = Striker(tools.dialer, self._part, tools.looker, self._clock)
            stack.callback(striker.close)
            loaded = self._begin(striker, fence)
            acked = self._cursors()
            after = self._read_to = min(one.mark_delete for one in acked)
            self._read_ms = self._clock.monotonic_ms()
            reader = stack.enter_context(
                EntryReader(tools.dialer, self._part, after=after, keep_payload=True, chance=tools.chance)
            )
            self._check_loaded(loaded)
            if lifts:
                note_caught_up(tools.admin, tools.plan, self._partition, 0)
            stack.callback(lambda: _close(self._stirrer))
            self._lift_all(reader, striker, AckedByAny(acked), kinds, lifts=lifts)
            self._copies.send()
            self._copies.await_below(also_while_stopping=True)

    # The begin of a session

    def _fence(self) -> EntryPosition:
        try:
            return self._copies.fence({NO_SCHEMA, *self._versions})
        except Exception:
            # A version that cannot be fenced must not keep the next session from striking again.
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

    def _begin(self, striker: Striker, fence: EntryPosition) -> int:
        """Strike again the originals that a broker forgot; return the ledger that the due topic wrote to before."""
        tools = self._tools
        journal = tools.admin.topics.internal_stats(self._journal_part)
        native = tools.admin.topics.internal_stats(self._part)
        self._known = max(journal.last_confirmed, fence)
        held, forgotten = strike_again(
            tools.client,
            self._journal_part,
            after=self._journal_cursor(journal).mark_delete,
            last=self._known,
            acked={one: Acked.of(self._cursor(native, one)) for one in self._subscriptions() if one.delays},
            striker=striker,
            journal=self._journal,
            beat=self._beat,
        )
        self._counts.struck_again += forgotten
        tools.hooks.emit(ShadowLiftsAgain(topic=self._part, journal=held, forgotten=forgotten))
        return native.newest_ledger

    def _check_loaded(self, ledger: int) -> None:
        """Check that the topic was not loaded again. A broker that loads a topic begins another ledger. If it did so
        while the journal was read, it has forgotten acknowledgements that were not struck again; from now on a reload
        ends the session by closing the reader.
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
            self._tools.looker.look_soon()
            raise SessionFailed(f"subscription {subscription.name} of {self._part} is gone")
        return cursor

    def _subscriptions(self) -> tuple[Subscription, ...]:
        return self._tools.looker.subscriptions(self._part)

    # Reading

    def _lift_all(
        self, reader: EntryReader, striker: Striker, acked: AckedByAny, kinds: _Kinds, *, lifts: bool
    ) -> None:
        handle, looker, copies = self._handle, self._tools.looker, self._copies
        while not handle.stopping:
            patience_ms = copies.patience_ms
            entries = reader.read(READ_MS if patience_ms is None else patience_ms)
            handle.beat()
            self.met_others = _kinds(self._subscriptions()) != kinds
            if self.met_others or looker.view.lifts != lifts or self._is_over():
                return  # another session reads the entries that were left, strikes the originals that were not struck
            now_ms = self._clock.now_ms()
            if not lifts:
                self._meet_stirs(entries, acked, now_ms)
            elif self._meets_versions(reader, entries, acked):
                return  # another session begins with a fence for each
            else:
                self._lift(entries, acked, now_ms)
            copies.settle()
            if not entries or copies.patience_ms == 0:
                copies.send()
            if lifts and not self._counts.caught_up and self._is_through(entries):
                self._at_the_end()
            self._keep_house(striker, now_ms)

    def _is_over(self) -> bool:
        return self._until_ms is not None and self._clock.monotonic_ms() >= self._until_ms

    def _lift(self, entries: list[Entry], acked: AckedByAny, now_ms: int) -> None:
        counts = self._counts
        then_ms = now_ms + self._lag_ms()
        for entry in entries:
            if entry.position in acked:
                counts.handled += 1
                continue
            try:
                fate = self._lifting.fate(entry, then_ms)
                if fate is Fate.LIFT:
                    fate = self._take(entry, now_ms)
                elif fate is Fate.STIR:
                    self._stirring.met(entry.position, entry.publish_ms, now_ms)
                elif fate not in _USUAL:
                    self._tell(entry, fate)
            except OF_SESSION:
                raise
            except Exception as error:  # noqa: BLE001 - any error of a single entry concerns that entry only: it stays
                fate = self._tell(entry, Fate.DAMAGED, repr(error))
            counts.fates[fate] += 1

    def _meets_versions(self, reader: EntryReader, entries: list[Entry], acked: AckedByAny) -> bool:
        """Look for new schema versions; if there are any, in the next entries too: each session reads the journal."""
        until_ms, met = self._clock.monotonic_ms() + AHEAD_MS, False
        fate = partial(self._lifting.fate, now_ms=self._clock.now_ms())
        while entries and self._clock.monotonic_ms() < until_ms:
            left = (one for one in entries if one.position not in acked and one.position not in self._stays)
            met |= meet_versions(self._versions, left, fate, self._copies.can_have)
            entries = reader.read(READ_MS) if met else []
        return met

    def _meet_stirs(self, entries: list[Entry], acked: AckedByAny, now_ms: int) -> None:
        """Record the stirs of another session for removal, also if no more timers are to be lifted."""
        for entry in entries:
            if STIR_PROPERTY in entry.properties and entry.position not in acked:
                self._stirring.met(entry.position, entry.publish_ms, now_ms)

    def _lag_ms(self) -> int:
        """Return by how much the acknowledgement of originals lags behind lifting."""
        upto = self._tools.struck_to(self._partition)
        if upto is not None:
            self._unstruck.struck(upto)
        return self._unstruck.age_ms(self._clock.monotonic_ms())

    def _take(self, entry: Entry, now_ms: int) -> Fate:
        """Lift an entry, unless an obstacle is known that its metadata do not show."""
        version = version_of(entry)
        if (known := self._stays.get(entry.position)) is not None:
            return self._tell(entry, *known)
        if not self._copies.is_fenced(version):
            return self._tell(entry, Fate.SCHEMA, refusal_of(version, self._versions))
        original = Original(entry)
        self._copies.add(original, version, self._lifting.copy(entry, self._part, now_ms))
        if entry.publish_ms >= self._began_ms:
            self._counts.lags_ms.append(now_ms - entry.publish_ms)
        self._stirring.lifted(entry.deliver_at_ms or 0)
        return Fate.LIFT

    def _tell(self, entry: Entry, fate: Fate, reason: str = "") -> Fate:
        if fate not in self._told:
            self._told.add(fate)
            told = ShadowStaysNative(topic=self._part, why=fate.value, position=entry.position.text, reason=reason)
            self._tools.hooks.emit(told)
        return fate

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
        # The time of the wish is by another machine's clock, which may be ahead.
        at_ms = max(self._clock.now_ms(), self._tools.looker.view.wish.since_ms)
        note_caught_up(self._tools.admin, self._tools.plan, self._partition, at_ms)
        self._tools.hooks.emit(ShadowCaughtUp(topic=self._part, lifted=self._counts.lifted))

    # Housekeeping

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
            self._stirrer = self._tools.client.create_producer(self._part, batching_enabled=False, **own_numbers())
        self._counts.stirs += 1
        self._stirrer.send(b"", properties={STIR_PROPERTY: str(at_ms)}, deliver_at=at_ms, disable_replication=True)

    def _let_go(self) -> None:
        """Acknowledge in the journal the copies whose originals' acknowledgements no broker can forget any more."""
        topics = self._tools.admin.topics
        journal = topics.internal_stats(self._journal_part)
        self._journal_cursor(journal)
        if (relay := journal.cursors.get(RELAY_SUBSCRIPTION)) is not None:
            self._unstruck.struck(relay.mark_delete)
        native = topics.internal_stats(self._part)
        passed = min(self._cursor(native, one).mark_delete for one in self._subscriptions())
        copy = self._journal.passed(passed, self._clock.monotonic_ms())
        if copy is not None:
            self._let_go_to(copy)
        elif self._journal.is_empty and self._known.entry >= 0:
            # The fence, and the copies before it: another session may have lifted later copies.
            self._let_go_to(self._known)
            self._known = EntryPosition(-1, -1)

    def _let_go_to(self, copy: EntryPosition) -> None:
        self._acker.acknowledge_cumulative(pulsar.MessageId(self._partition, copy.ledger, copy.entry, -1))


_USUAL = frozenset({Fate.UNDELAYED, Fate.NEAR, Fate.MARKER})


def _kinds(subscriptions: Sequence[Subscription]) -> _Kinds:
    return frozenset((one.name, one.delays) for one in subscriptions)


def _close(opened: Any) -> None:
    """Close a consumer or a producer of the client, in any state."""
    if opened is not None:
        with suppress(pulsar.PulsarException, ValueError):
            opened.close()
