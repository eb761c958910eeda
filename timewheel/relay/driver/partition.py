"""A partition of a holding topic, through all its subscriptions; and the threads that read the partitions of some
topics.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pulsar

from timewheel.client.hooks import ConnectionWatch
from timewheel.client.native import first_chunk_of
from timewheel.client.positions import Position
from timewheel.core.clock import wait_until
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.next_hop import NextHop
from timewheel.events import RelayPositionJumped, RelaySessionCrashed, RelaySessionFailed
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.session import Prefetch, Session
from timewheel.relay.driver.source import Handle, HoleFound, PartitionState, SessionFailed, Source, Tools
from timewheel.relay.machine.backoff import Backoff
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.interface import Machine
from timewheel.relay.machine.order import Arrivals, Beginning, Outcome, Spot
from timewheel.relay.machine.relay_held import Forwarding, RelayHeld
from timewheel.relay.machine.visits import Times, Visit, last_times, next_times


class Visiting:
    """The visit to a slot's partition: a value that is replaced as a whole, under a lock.

    The scheduler begins and prolongs it; the session's thread reads it, and ends a visit that is complete.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visit: Visit | None = None

    def now(self) -> Visit | None:
        """Return the visit; None if there is no visit, or the partition is read all the time."""
        return self._visit

    def begin(self, visit: Visit) -> bool:
        """Begin a visit, or prolong the running visit; True: none was running, so the caller has to run it."""
        with self._lock:
            if self._visit is not None:
                self._visit = self._visit.prolonged(visit)
                return False
            self._visit = visit
            return True

    def end(self, left: Visit | None, *, unfinished: bool) -> bool:
        """End the visit that the session has completed, unless it was prolonged meanwhile; True: no visit is left."""
        with self._lock:
            if self._visit == left or unfinished:
                self._visit = None
            return self._visit is None


RETRY_FIRST_MS = 100
RETRY_LONGEST_MS = 5_000
"""The longest pause before a refusing destination is tried again; the relay's window for it protects its tiers."""
BROKER_HELD_WINDOW = 1_000  # each message under way there is acknowledged individually, and may be a gap until then


class Partition:
    """Runs sessions, one at a time, each in the thread of the caller of `run`, or of `run_visit`."""

    def __init__(self, source: Source, tools: Tools) -> None:
        self.source = source
        self.handle = Handle(tools.clock)
        self._tools = tools
        self.moving: Forwarding | BrokerHeld | None = None
        """The messages in flight, of the last subscription; others may read how many they are and how old."""
        self._known: Spot | None = None
        self._confirmed_behind: Mapping[Position, Outcome] = {}
        self._beginning = Beginning()
        self._verdicts = Verdicts()
        self._watch = ConnectionWatch(source.name, tools.clock, tools.hooks)
        self._arrivals = Arrivals(source.step.stay_ms, tools.router.plan.skew_ms)
        self._prefetch = Prefetch(tools.memory, by_broker=source.holding.by_broker)
        self._visiting = Visiting()
        self._left: Visit | None = None

    def run(self) -> None:
        """Work until stopped."""
        handle = self.handle
        backoff = Backoff(RETRY_FIRST_MS, RETRY_LONGEST_MS, self._tools.rng)
        while not handle.stopping:
            done = handle.counts.done
            try:
                if self._has_ended():
                    break
            except Exception as error:  # noqa: BLE001 - a bug must not end a partition's relay in silence
                self._failed(repr(error), RelaySessionCrashed)
            if handle.counts.done != done:
                backoff.reset()
            handle.state = PartitionState.BACKING_OFF
            handle.pause(backoff.next_ms())
        handle.state = PartitionState.CLOSED if handle.stopping else PartitionState.RESTING

    def visit(self, visit: Visit) -> bool:
        """Begin a visit, or prolong the running visit; True: the caller has to call `run_visit`."""
        return self._visiting.begin(visit)

    def run_visit(self) -> None:
        """Work until the visit, with all its prolongations, is over."""
        while True:
            self.run()
            if self._visiting.end(self._left, unfinished=self.handle.stopping):
                return

    def _has_ended(self) -> bool:
        """Run a subscription; return whether no other is to follow."""
        if self._is_gone():
            self.handle.stop(0)
            return True
        machine, known = self._machine(), self._known
        session = Session(self.source, self._tools, self.handle, self._verdicts, self._watch, machine, self._prefetch)
        is_known = True
        try:
            session.run()
            self._left = machine.left
        except HoleFound as hole:
            is_known = False
            # Before this subscription's first message another relay was at work, as on a slot that it visits in turn.
            if known is None or hole.after != known.position:
                self.handle.counts.jumps += 1
                self._tools.hooks.emit(RelayPositionJumped(topic=self.source.name, reason=str(hole)))
            return False
        except SessionFailed as failed:
            self._failed(str(failed))
            return False
        except Exception as error:
            self._verdicts.crashed(session.position, repr(error))
            raise
        finally:
            # The next session skips these positions (broker-facts: received-again).
            self._known = machine.confirmed_to if is_known else None
            if isinstance(self.moving, Forwarding):
                self._confirmed_behind = self.moving.confirmed_behind
                self._beginning.outlives()
                if self.moving.has_begun or not session.begins_anew:
                    self._beginning = Beginning()
        return self.handle.stopping or not (session.begins_anew or machine.begins_anew)

    def _is_gone(self) -> bool:
        """True if it is an earlier plan's and was removed. Subscribing all the same could create it again."""
        if not self.source.is_former:
            return False
        try:
            return self.source.topic in self._tools.client.get_topic_partitions(self.source.topic)
        except pulsar.TopicNotFound:
            return True
        except pulsar.PulsarException:
            return False  # unknown: subscribing will show it

    def _machine(self) -> Machine:
        tools = self._tools
        next_hop = NextHop(tools.router, self.source.step, tools.is_cancelled, drains_from_ms=tools.drains_from_ms)
        out_of_order = OutOfOrder(tools.router.plan)
        counts = self.handle.counts
        if self.source.holding.by_broker:
            limit = min(tools.max_in_flight, BROKER_HELD_WINDOW)
            self.moving = machine = BrokerHeld(
                next_hop,
                out_of_order,
                window_limit=limit,
                counts=counts,
                rng=tools.rng,
                window_bytes=tools.memory.window_bytes(),
            )
            return machine
        self.moving = forwarding = Forwarding(
            next_hop, out_of_order, known=self._known, beginning=self._beginning,
            confirmed_behind=self._confirmed_behind, first_chunk=first_chunk_of, window_limit=tools.max_in_flight,
            window_bytes=tools.memory.window_bytes(), counts=counts, linger_ms=tools.hop_linger_ms,
            arrivals=self._arrivals,
        )  # fmt: skip
        return RelayHeld(forwarding, visit=self._visiting.now, lease_idle_ms=tools.lease_idle_ms, rng=tools.rng)

    def _failed(self, reason: str, kind: type[RelaySessionFailed | RelaySessionCrashed] = RelaySessionFailed) -> None:
        self.handle.counts.failures += 1
        self.handle.reason = reason
        self._tools.hooks.emit(kind(topic=self.source.name, reason=reason))


MAX_CATCH_UPS = 16
"""Slots checked at once after a start: timers that became due while no relay ran must not wait for a whole turn."""
LOOK_AGAIN_MS = 15_000  # for a `native` plan: processes that use the earlier plan may still send
WAKE_MS = 2_000  # the longest wait, so that a jump of the clock is noticed
SET_BACK_MS = 500
"""A clock that is set back by more has all visits planned anew; between two checks it is slewed by less."""


class SlotScheduler:
    """Starts visits to the slots of rings when they need it, so that a wheel of many slots runs on few threads."""

    def __init__(self, partitions: Iterable[Partition], tools: Tools) -> None:
        self._partitions = tuple(partitions)
        self._clock = tools.clock
        self._is_native = tools.router.is_native
        self._changed = threading.Condition()
        self._stopping = False
        self._threads: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="timewheel-relay-rings", daemon=True)
        self.caught_up = threading.Event()  # set once every slot has been checked after the start
        self.heartbeat_ms = self._clock.monotonic_ms()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further visit; running visits end through their partitions' handles."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_ms: int) -> None:
        self._clock.join(self._thread, timeout_ms)
        for thread in tuple(self._threads):
            self._clock.join(thread, timeout_ms)

    def _run(self) -> None:
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms - self._clock.monotonic_ms()
        waiting = self._visits_after(now_ms)
        catching_up = threading.Thread(
            target=self._catch_up, args=(now_ms,), name="timewheel-relay-catch-up", daemon=True
        )
        catching_up.start()
        while True:
            with self._changed:
                if self._stopping:
                    break
                wait_ms = self._clock.idle_ms(waiting[0][0].open_ms - self._clock.now_ms(), WAKE_MS)
                if wait_ms > 0:
                    self._clock.wait(self._changed, wait_ms)
            now_ms, self.heartbeat_ms = self._clock.now_ms(), self._clock.monotonic_ms()
            if now_ms - self.heartbeat_ms < ahead_ms - SET_BACK_MS:
                # Visits that were begun or skipped at the wrong time are still to come.
                waiting = self._visits_after(now_ms)
            ahead_ms = now_ms - self.heartbeat_ms
            while waiting[0][0].open_ms <= self._clock.now_ms():
                times, order = waiting[0]
                partition = self._partitions[order]
                heapq.heapreplace(waiting, (self._next(partition, times.release_ms), order))
                self._begin(partition, Visit.at(times))
        catching_up.join()

    def _visits_after(self, now_ms: int) -> list[tuple[Times, int]]:
        """Return the next visit to each partition, with its index: a heap."""
        waiting = [(self._next(partition, now_ms), order) for order, partition in enumerate(self._partitions)]
        heapq.heapify(waiting)
        return waiting

    def _catch_up(self, now_ms: int) -> None:
        """Check every slot once; repeatedly for a native plan: all its timers leave at once, at no set time."""
        while True:
            self._look_into_all(now_ms)
            self.caught_up.set()
            with self._changed:
                wait_until(self._clock, self._changed, lambda: self._stopping or not self._is_native, LOOK_AGAIN_MS)
                if self._stopping or not self._is_native:
                    return
            now_ms = self._clock.now_ms()

    def _look_into_all(self, now_ms: int) -> None:
        """Check all slots, those with the latest release first."""

        def inspect(partition: Partition) -> None:
            if self._stopping:
                return
            times = self._last(partition, now_ms)
            if times.leave_ms > now_ms:
                self._begin(partition, Visit.at(times))
            elif partition.visit(Visit(now_ms)):
                partition.run_visit()

        by_release = sorted(self._partitions, key=lambda partition: -self._last(partition, now_ms).release_ms)
        with ThreadPoolExecutor(MAX_CATCH_UPS, thread_name_prefix="timewheel-relay-catch-up") as pool:
            for _ in pool.map(inspect, by_release):
                pass

    def _begin(self, partition: Partition, visit: Visit) -> None:
        if not partition.visit(visit):
            return
        name = f"timewheel-relay {partition.source.name}"
        thread = threading.Thread(target=partition.run_visit, name=name, daemon=True)
        with self._changed:
            self._threads = {known for known in self._threads if known.is_alive()} | {thread}
            thread.start()

    @staticmethod
    def _next(partition: Partition, after_ms: int) -> Times:
        return next_times(partition.source.step, partition.source.holding.slot, after_ms)

    @staticmethod
    def _last(partition: Partition, at_ms: int) -> Times:
        return last_times(partition.source.step, partition.source.holding.slot, at_ms)


SLOTS_AT_ONCE = 2  # slots of a ring's partition that are open together: a slot is drained while the next is opened


class PartitionWorkers:
    """A thread per partition of a tier, of the intake or of the journal, and a scheduler for all slots."""

    def __init__(self, partitions: Iterable[Partition], tools: Tools) -> None:
        self._all = tuple(partitions)
        self._clock = tools.clock
        self._retired: frozenset[str] = frozenset()
        slots = [partition for partition in self._all if partition.source.step.kind == "slot"]
        self._scheduler = SlotScheduler(slots, tools) if slots else None
        self._memory = tools.memory
        self._memory.share_with(self._readers())
        self._threads = tuple(
            threading.Thread(target=partition.run, name=f"timewheel-relay {partition.source.name}", daemon=True)
            for partition in self._all
            if partition.source.step.kind != "slot"
        )

    @property
    def partitions(self) -> Sequence[Partition]:
        retired = self._retired
        return [partition for partition in self._all if partition.source.topic not in retired]

    def start(self) -> None:
        if self._scheduler is not None:
            self._scheduler.start()
        for thread in self._threads:
            thread.start()

    def retire(self, topic: str) -> None:
        """Stop reading a topic that is empty and stays empty."""
        before = self._readers()
        self._retired |= {topic}
        self._memory.share_with(self._readers() - before)
        for partition in self._all:
            if partition.source.topic == topic:
                partition.handle.stop(0)
        if self._scheduler is not None and not self.partitions:
            self._scheduler.stop()

    def stop(self, drain_ms: int) -> None:
        """Take no new messages; `join` waits for the end."""
        if self._scheduler is not None:
            self._scheduler.stop()
        for partition in self._all:
            partition.handle.stop(drain_ms)

    def join(self, timeout_ms: int) -> None:
        """Wait for all threads, together at most this long."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        for thread in self._threads:
            self._clock.join(thread, deadline_ms - self._clock.monotonic_ms())
        if self._scheduler is not None:
            self._scheduler.join(deadline_ms - self._clock.monotonic_ms())

    def _readers(self) -> int:
        """Return the number of partitions that are read at once: those of tiers, and the few slots whose time it is."""
        sources = [partition.source for partition in self.partitions]
        slots = [source for source in sources if source.step.kind == "slot"]
        rings = {(source.step, source.partition) for source in slots}
        return len(sources) - len(slots) + min(len(slots), SLOTS_AT_ONCE * len(rings) + MAX_CATCH_UPS)

    def is_looked_after(self, alive_since_ms: int) -> bool:
        """True if the keeper of the slots is alive and has checked each of them."""
        scheduler = self._scheduler
        return scheduler is None or (scheduler.caught_up.is_set() and scheduler.heartbeat_ms > alive_since_ms)
