"""The relay of a plan: holds timers in its holding topics, and sends them on when their time has come."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.process import EXIT_MS, ProcessGuard, end_at_exit, has_ended
from timewheel.client.reaching import partition_count, reaching, unpartitioned_problem
from timewheel.client.surface import ClientLike
from timewheel.core.arguments import check_client_and_plan
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import ClientMisuse, TopologyError
from timewheel.core.grouping import default_linger_ms
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.rng import Random, system_random
from timewheel.core.routing import Router
from timewheel.core.topology import FormerTopic, HoldingTopic, TopicSpec, Topology, entrances_of, topology
from timewheel.hooks import Hook
from timewheel.relay.compactor import CancellationCompactor
from timewheel.relay.driver.former_topic_drainer import FormerTopicDrainer
from timewheel.relay.driver.partition import Partition, PartitionWorkers
from timewheel.relay.driver.source import (
    AT_REST,
    MEMORY_BYTES,
    WORKING,
    Handle,
    JournalGate,
    Memory,
    PartitionState,
    Source,
    Tools,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The status of a partition of a holding topic, at a moment in time.

    Args:
        topic: Full name of the partition.
        connected: Whether its consumer is connected to the broker; a slot at rest has no consumer and needs none.
        alive: Whether its thread had a recent heartbeat; a stuck thread cannot report itself (broker-facts:
            lost-hosts-stuck-threads).
        head_release_ms: Release time of the held head, UTC milliseconds; None without a held head.
        newest_release_ms: Release time of the newest message in flight, the head or a message under way; None if there
            is none. Its age is the lag of the relay, also while no head is held.
        in_flight: Hops under way.
        in_flight_bytes: Their payloads and properties.
        forwarded: Hops on time.
        late: Hops by the late lane, after an outage.
        dead: Messages moved to the dead-letter topic.
        refiled: Timers in a ring that were moved to the tail of their slot.
        dropped: Timers not moved on, since they were cancelled or replaced.
        skipped: Messages received again after a reload.
        deduplicated: Sends that the broker dropped as duplicates.
        jumps: Times that readable messages were left out: processed by others, or given to others first.
        failures: Subscriptions given up and begun anew.
        entries: Entries that brokers have stored for it; a group of hops is a single entry.
        reason: Reason why it last began anew; None if it never did.
    """

    topic: str
    state: PartitionState
    connected: bool
    alive: bool
    head_release_ms: int | None
    newest_release_ms: int | None
    in_flight: int
    in_flight_bytes: int
    forwarded: int
    late: int
    dead: int
    refiled: int
    dropped: int
    skipped: int
    deduplicated: int
    jumps: int
    failures: int
    entries: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatus:
    """The status of a relay at a moment in time.

    Args:
        ready: Whether every partition is subscribed and connected (for a ring's slots: their keeper has checked them
            and is alive), none is stuck, and no topic is unreadable.
        partitions: Status of each partition of the plan's holding topics, and of earlier plans' topics that it drains.
        unreadable: Topics of earlier plans in which timers wait, and that it cannot drain: see the event
            ``relay_former_topic_unreadable``.
    """

    relay_id: str
    ready: bool
    partitions: tuple[PartitionStatus, ...]
    unreadable: tuple[str, ...] = ()

    def total(self, count: str) -> int:
        """Return the sum of a counter over all partitions, by its name."""
        return sum(getattr(partition, count) for partition in self.partitions)

    def story(self) -> dict[str, Any]:
        """Return the status for JSON."""
        return {
            "relay_id": self.relay_id,
            "ready": self.ready,
            "unreadable": list(self.unreadable),
            "partitions": [{**asdict(partition), "state": partition.state.value} for partition in self.partitions],
        }


MAX_IN_FLIGHT = 4_000  # four groups of hops: one gathers while others are under way
SEND_TIMEOUT_MS = 30_000
LEASE_IDLE_MS = 1_000
DRAIN_MS = 30_000
STUCK_MS = 60_000  # twice as long as the longest call of the client


def new_relay_id() -> str:
    """Return an id that no other relay has, made of host and process."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


class Relay:
    """Moves a plan's timers onward from its holding topics, in threads of its own.

    Any number of relays of the same plan may run, in as many processes: they share the partitions, and take over from
    each other. Where the plan has no holding topics (native, calendar) there are no timers to move. With ``[cancel]``
    in the plan it does not move timers that it knows to be cancelled, and keeps the log of cancellations short.

    Args:
        client: The user's `pulsar.Client`; the user closes it, after `stop`.
        plan: Defines the topics and their delays.
        relay_id: Id, unique among the relays that run at once; None makes it of host and process.
        clock: Source of time.
        rng: Spreads attempts over time, so that relays do not fall into step; None for the machine's randomness.
        hooks: Receive events; None logs them.
        max_in_flight: Maximum number of hops under way, per partition.
        send_timeout_ms: Time without an answer after which a send has failed, and its partition begins anew.
        lease_idle_ms: A longer pause lets another relay have the names of the producers.
        hop_linger_ms: Hops between holding topics leave in groups, as one entry each, and wait this long for each
            other, if their due times leave room for it; None for a second, or a tenth of the plan's guard if that is
            less.
        memory_bytes: Maximum bytes of payloads and properties that all partitions together may receive ahead and have
            under way; where it is too small for an entry each, they exceed it by that.
        stuck_ms: A thread without a heartbeat for this long makes the relay not ready; more than any single call of the
            client takes.
        former_topics: Lists the topics of earlier plans, such as `timewheel.provision.FormerTopics`: called at the
            start and once a minute. They are drained by this plan's routing. The client alone cannot list topics; None
            leaves them to another relay, and ``timewheel topics ensure`` reports them.
        cancellation_log: The log of cancellations that this process reads anyway, started and stopped by the caller;
            None lets the relay read it, if the plan has ``[cancel]``.
        gate: Guards the journal of a plan with an intake; a shadow provides it.
        drains_from_ms: The way out of a plan: timers released later than this, UTC milliseconds, go to the due topic at
            once. None lets all wait for their time.

    Raises:
        ClientMisuse: The plan has an intake, and its journal has no gate: moved copies would be sent on while their
            originals can be delivered, too. Or gevent or eventlet has replaced the threads of this process.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        *,
        relay_id: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        hooks: tuple[Hook, ...] | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        lease_idle_ms: int = LEASE_IDLE_MS,
        hop_linger_ms: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        stuck_ms: int = STUCK_MS,
        former_topics: Callable[[], Sequence[FormerTopic]] | None = None,
        cancellation_log: CancellationLog | None = None,
        gate: JournalGate | None = None,
        drains_from_ms: int | None = None,
    ) -> None:
        check_client_and_plan(client, plan)
        if plan.intake and gate is None:
            raise ClientMisuse("a plan with an intake is relayed by its shadow: timewheel shadow run PLAN")
        self._process = ProcessGuard()
        self.plan = plan
        self.relay_id = relay_id or new_relay_id()
        self._client = client = reaching(client)
        self._clock = clock or SystemClock()
        emitting = Hooks(hooks)
        self._own_cancellation_log: CancellationLog | None = None
        if plan.cancel is not None and cancellation_log is None:
            cancellation_log = self._own_cancellation_log = CancellationLog(client, plan, self._clock, emitting)
        self._compactor = (
            None if cancellation_log is None else CancellationCompactor(client, cancellation_log, self._clock, emitting)
        )
        self._tools = Tools(
            client=client, router=Router(plan), names=Names(plan), relay_id=self.relay_id, clock=self._clock,
            rng=rng or system_random(), hooks=emitting, alarms=Alarms(emitting, self._clock),
            max_in_flight=max_in_flight, send_timeout_ms=send_timeout_ms, lease_idle_ms=lease_idle_ms,
            hop_linger_ms=default_linger_ms(plan.guard_ms) if hop_linger_ms is None else hop_linger_ms,
            memory=Memory(memory_bytes),
            is_cancelled=None if cancellation_log is None else cancellation_log.table.is_cancelled, gate=gate,
            drains_from_ms=drains_from_ms,
        )  # fmt: skip
        self._workers: PartitionWorkers | None = None
        self._former = None
        if former_topics is not None:
            self._former = FormerTopicDrainer(former_topics, self._partitions_of_former, self._tools)
        self._stuck_ms = stuck_ms
        self._started = self._stopped = False

    def check(self) -> None:
        """Check that the plan's topics exist, without starting.

        Raises:
            TopologyError: As in `start`.
            PulsarException: As in `start`.
        """
        wanted = topology(self.plan, self._clock.now_ms())
        if wanted.holding:
            self._counts_of(wanted)

    def resize_memory(self, memory_bytes: int) -> None:
        """Set another budget from now on; see `memory_bytes` above."""
        self._tools.memory.resize(memory_bytes)

    def start(self) -> Self:
        """Check that the plan's topics exist, and start; returns before all is subscribed, see `ready`.

        Raises:
            TopologyError: A topic is missing or has too few partitions.
            ClientMisuse: It was started before, or made before a fork.
            PulsarException: The broker cannot be reached.
        """
        self._process.check("relay")
        if self._started:
            raise ClientMisuse("a relay is started once; make a new one")
        self._started = True
        wanted = topology(self.plan, self._clock.now_ms())
        if wanted.holding:
            self._workers = self._crew_of(wanted)
        end_at_exit(self, Relay._end, keep=True)
        if self._workers is not None:
            self._workers.start()
        if self._former is not None:
            self._former.start()
        if self._own_cancellation_log is not None:
            self._own_cancellation_log.start(patiently=True)
        if self._compactor is not None:
            self._compactor.start()
        return self

    def stop(self, drain_ms: int = DRAIN_MS) -> None:
        """Take no new messages, wait for hops under way, and end all threads. Further calls do no harm.

        Args:
            drain_ms: Maximum time to wait. Messages that are unconfirmed by then stay unacknowledged: the next relay
                sends them again, and the broker drops duplicates.
        """
        # Beyond the drain a thread may be in a call of the client, which has a bound of its own.
        self._end(drain_ms, drain_ms + self._stuck_ms)

    def _end(self, drain_ms: int = EXIT_MS, timeout_ms: int = EXIT_MS) -> None:
        self._stopped = True
        has_ended(self)
        working = [part for part in (self._workers, self._former) if part is not None]
        for part in working:
            part.stop(drain_ms)
        if self._compactor is not None:
            self._compactor.stop()
        for part in working:
            part.join(timeout_ms)
        self._tools.alarms.flush(at_end=True)
        if self._own_cancellation_log is not None:
            self._own_cancellation_log.stop()

    @property
    def ready(self) -> bool:
        """True if every partition is subscribed, connected and not stuck, and no earlier plan's topic is unreadable."""
        alive_since_ms = self._alive_since_ms()
        return (
            self._started
            and not self._stopped
            and not self._unreadable()
            and all(
                handle.state in WORKING and _is_alive(handle, alive_since_ms) and handle.connected
                for handle in (partition.handle for partition in self._partitions())
            )
            and all(workers.is_looked_after(alive_since_ms) for workers in self._workers_of())
        )

    @property
    def alive(self) -> bool:
        """True if no partition is stuck: every thread had a recent heartbeat."""
        alive_since_ms = self._alive_since_ms()
        return all(_is_alive(partition.handle, alive_since_ms) for partition in self._partitions())

    def status(self) -> RelayStatus:
        """Return the status of every partition."""
        alive_since_ms = self._alive_since_ms()
        return RelayStatus(
            relay_id=self.relay_id,
            ready=self.ready,
            partitions=tuple(_status_of(partition, alive_since_ms) for partition in self._partitions()),
            unreadable=self._unreadable(),
        )

    def story(self) -> dict[str, Any]:
        """Return the status for JSON."""
        return self.status().story()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _workers_of(self) -> tuple[PartitionWorkers, ...]:
        own = () if self._workers is None else (self._workers,)
        return own if self._former is None else (*own, *self._former.workers_of)

    def _partitions(self) -> Iterator[Partition]:
        return (partition for workers in self._workers_of() for partition in workers.partitions)

    def _unreadable(self) -> tuple[str, ...]:
        return () if self._former is None else self._former.unreadable

    def _alive_since_ms(self) -> int:
        return self._clock.monotonic_ms() - self._stuck_ms

    def _counts_of(self, wanted: Topology) -> dict[str, int]:
        """Return the number of partitions of every topic that relays use."""
        topics = _used(wanted)
        counts = {spec.name: self._partition_count(spec.name, spec.partitions) for spec in topics}
        most = max(counts[topic.name] for topic in wanted.holding)
        for spec in topics:
            if spec.takes_hops and spec.partitions and counts[spec.name] < most:
                # A hop keeps the partition's index, so that a key stays on its partition.
                raise _too_few(spec.name, counts[spec.name], most)
        return counts

    def _crew_of(self, wanted: Topology) -> PartitionWorkers:
        counts = self._counts_of(wanted)
        holding = (*wanted.holding, *entrances_of(self.plan))
        partitions = [partition for topic in holding for partition in self._partitions_of(topic, counts[topic.name])]
        return PartitionWorkers(partitions, self._tools)

    def _partitions_of(self, topic: HoldingTopic, count: int, *, is_former: bool = False) -> list[Partition]:
        sources = (Source(holding=topic, partition=number, is_former=is_former) for number in range(count))
        return [Partition(source, self._tools) for source in sources]

    def _partitions_of_former(self, topic: HoldingTopic) -> list[Partition]:
        count = self._partition_count(topic.name, 1)
        for spec in _used(topology(self.plan, self._clock.now_ms(), drains=True)):
            # A hop keeps the partition's index.
            self._partition_count(spec.name, count if spec.takes_hops else spec.partitions)
        return self._partitions_of(topic, count, is_former=True)

    def _partition_count(self, topic: str, wanted: int) -> int:
        if not self._tools.names.is_partitioned(topic):
            # It takes hops from every partition.
            problem = unpartitioned_problem(self._client, self._tools.names, topic)
            if problem is not None:
                raise problem
            return 0
        count = partition_count(self._client, topic)
        if count < wanted:
            raise _too_few(topic, count, wanted)
        return count


def _used(wanted: Topology) -> list[TopicSpec]:
    """Return the topics that relays read or write, to which their role needs a right; consumers alone park."""
    return [spec for spec in wanted.topics if spec.role != "parked"]


def _too_few(topic: str, count: int, wanted: int) -> TopologyError:
    problem = (
        f"has {counted(count, 'partition')}, and the plan says {wanted}"
        if count
        else "is missing, or is not partitioned"
    )
    return TopologyError(topic, problem, "run: timewheel topics ensure PLAN")


def _is_alive(handle: Handle, alive_since_ms: int) -> bool:
    # A slot at rest has no thread that could send a heartbeat.
    return handle.state in AT_REST or handle.heartbeat_ms > alive_since_ms


def _status_of(partition: Partition, alive_since_ms: int) -> PartitionStatus:
    handle = partition.handle
    moving = None if handle.state in AT_REST else partition.moving
    return PartitionStatus(
        topic=partition.source.name, state=handle.state, connected=handle.connected,
        alive=_is_alive(handle, alive_since_ms), head_release_ms=handle.head_release_ms,
        newest_release_ms=None if moving is None else moving.newest_release_ms, in_flight=handle.in_flight,
        in_flight_bytes=0 if moving is None or handle.consumer is None else moving.in_flight_bytes,
        **asdict(handle.counts), reason=handle.reason,
    )  # fmt: skip
