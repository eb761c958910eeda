"""The relay of one plan: holds what waits in its holding topics, and sends it on when its time has come."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from timewheel.consumers.relay.driver.handle import AT_REST, WORKING
from timewheel.consumers.relay.driver.partition import Partition
from timewheel.consumers.relay.driver.ring_keeper import RingKeeper
from timewheel.consumers.relay.driver.source import Source, Tools
from timewheel.consumers.relay.status import PartitionStatus, RelayStatus
from timewheel.core.chance import Chance, system_chance
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import AdminError, ClientMisuse, TopologyError
from timewheel.core.former_topics import FormerTopic, TimersLeftBehind
from timewheel.core.names import Names, partition_of
from timewheel.core.plan import Plan
from timewheel.core.routing import Router
from timewheel.core.topology import topology
from timewheel.events import RelayFormerTopicsUnknown
from timewheel.hooks import Hook
from timewheel.wire.hooks import Hooks
from timewheel.wire.surface import ClientLike

__all__ = ["Relay"]

MAX_IN_FLIGHT = 1_000
SEND_TIMEOUT_MS = 30_000
LEASE_IDLE_MS = 1_000
DRAIN_MS = 30_000
STUCK_MS = 60_000
"""Twice as long as the client's own calls take at most."""


class Relay:
    """Moves a plan's timers from its holding topics onwards, in threads of its own.

    Any number of relays of one plan may run, in as many processes: they share the partitions, and take over from each
    other. Where the plan has no holding topics (native, calendar) there is nothing to do.

    Args:
        client: The user's `pulsar.Client`; stays theirs to close, after `stop`.
        plan: Which topics, and how long.
        relay_id: Unique among the relays that run at once; None: made of host and process.
        clock: Time.
        chance: Spreads attempts over time, so that relays do not fall into step; None: the machine's.
        hooks: Whom to tell what happens; None: it is logged.
        max_in_flight: Hops under way at most, per partition.
        send_timeout_ms: After this time without an answer a send has failed, and its partition begins anew.
        lease_idle_ms: A pause longer than this lets another relay have the names of the producers.
        stuck_ms: A thread without a sign of life for this long makes the relay not ready; more than any one call of
            the client takes.
        former_topics: Tells what waits in topics of an earlier plan, such as `timewheel.ops.FormerTopics`: asked once,
            at the start. The client alone cannot list topics; None: rely on ``timewheel topics ensure``, which looks.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        *,
        relay_id: str | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        hooks: tuple[Hook, ...] | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        lease_idle_ms: int = LEASE_IDLE_MS,
        stuck_ms: int = STUCK_MS,
        former_topics: Callable[[], Sequence[FormerTopic]] | None = None,
    ) -> None:
        self.plan = plan
        self.relay_id = relay_id or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._client = client
        self._clock = clock or SystemClock()
        self._tools = Tools(
            client=client,
            router=Router(plan),
            names=Names(plan),
            relay_id=self.relay_id,
            clock=self._clock,
            chance=chance or system_chance(),
            hooks=Hooks(hooks),
            max_in_flight=max_in_flight,
            send_timeout_ms=send_timeout_ms,
            lease_idle_ms=lease_idle_ms,
        )
        self._partitions: tuple[Partition, ...] = ()
        self._threads: list[threading.Thread] = []
        self._keeper: RingKeeper | None = None
        self._stuck_ms = stuck_ms
        self._former_topics = former_topics
        self._started = self._stopped = False

    def start(self) -> Self:
        """Look whether the plan's topics are there, and begin; returns before all is subscribed, see `ready`.

        Raises:
            TopologyError: A topic is missing or has too few partitions.
            TimersLeftBehind: Timers wait in topics that the plan does not name (broker-facts: topics-outside-the-plan).
            ClientMisuse: It was started before.
            PulsarException: The broker cannot be reached.
        """
        if self._started:
            raise ClientMisuse("a relay is started once; make a new one")
        self._started = True
        self._refuse_to_leave_timers_behind()
        wanted = topology(self.plan, self._clock.now_ms())
        if not wanted.holding:
            return self
        counts = {spec.name: self._partition_count(spec.name, spec.partitions) for spec in wanted.topics}
        most = max(counts[topic.name] for topic in wanted.holding)
        for spec in wanted.topics:
            if spec.role != "dead_letter" and counts[spec.name] < most:
                # A hop keeps the partition's index, so that a key stays on its partition.
                raise _too_few(spec.name, counts[spec.name], most)
        self._partitions = tuple(
            Partition(Source(topic=topic.name, partition=partition, step=topic.step, slot=topic.slot), self._tools)
            for topic in wanted.holding
            for partition in range(counts[topic.name])
        )
        slots = [partition for partition in self._partitions if partition.source.step.kind == "slot"]
        if slots:
            self._keeper = RingKeeper(slots, self._tools)
            self._keeper.start()
        for partition in self._partitions:
            if partition.source.step.kind == "tier":
                name = f"timewheel-relay {partition.source.name}"
                self._threads.append(threading.Thread(target=partition.run, name=name, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, drain_ms: int = DRAIN_MS) -> None:
        """Take nothing new, wait for hops under way, and end all threads. Once is enough; more does no harm.

        Args:
            drain_ms: How long to wait. What is not confirmed by then stays unacknowledged: the next relay sends it
                again, and the broker drops what it has.
        """
        self._stopped = True
        if self._keeper is not None:
            self._keeper.stop()
        for partition in self._partitions:
            partition.handle.stop(drain_ms)
        # Beyond the drain a thread may be in one call of the client, which has a bound of its own.
        timeout_ms = drain_ms + self._stuck_ms
        for thread in self._threads:
            self._clock.join(thread, timeout_ms)
        if self._keeper is not None:
            self._keeper.join(timeout_ms)

    @property
    def ready(self) -> bool:
        """Whether every partition is looked after: subscribed, connected, not stuck, not stopped."""
        return self._started and not self._stopped and self.status().ready

    def status(self) -> RelayStatus:
        """What every partition is doing."""
        now_ms = self._clock.monotonic_ms()
        partitions = tuple(_status_of(partition, now_ms - self._stuck_ms) for partition in self._partitions)
        keeper = self._keeper
        return RelayStatus(
            relay_id=self.relay_id,
            ready=self._started
            and not self._stopped
            and all(status.alive and status.connected and status.state in WORKING for status in partitions)
            and (keeper is None or (keeper.caught_up.is_set() and keeper.heartbeat_ms > now_ms - self._stuck_ms)),
            partitions=partitions,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _refuse_to_leave_timers_behind(self) -> None:
        if self._former_topics is None:
            return
        try:
            left_behind = self._former_topics()
        except AdminError as error:
            # To hold up every timer because one question has no answer would be the greater harm.
            self._tools.hooks.emit(RelayFormerTopicsUnknown(due_topic=self.plan.due_topic, reason=str(error)))
            return
        if left_behind:
            raise TimersLeftBehind(left_behind)

    def _partition_count(self, topic: str, wanted: int) -> int:
        names = self._client.get_topic_partitions(topic)
        # For a topic that does not exist, or is not partitioned, the client gives the name itself.
        count = sum(partition_of(name)[1] >= 0 for name in names)
        if count < wanted:
            raise _too_few(topic, count, wanted)
        return count


def _too_few(topic: str, count: int, wanted: int) -> TopologyError:
    problem = f"has {count} partitions, and {wanted} are needed" if count else "is missing, or is not partitioned"
    return TopologyError(topic, problem, "run: timewheel topics ensure PLAN")


def _status_of(partition: Partition, alive_since_ms: int) -> PartitionStatus:
    handle = partition.handle
    counts = handle.counts
    # A slot at rest has no thread that could give a sign.
    alive = handle.state in AT_REST or handle.heartbeat_ms > alive_since_ms
    return PartitionStatus(
        topic=partition.source.name,
        state=handle.state,
        connected=handle.connected,
        alive=alive,
        head_release_ms=handle.head_release_ms,
        in_flight=handle.in_flight,
        forwarded=counts.forwarded,
        late=counts.late,
        dead=counts.dead,
        refiled=counts.refiled,
        skipped=counts.skipped,
        deduplicated=counts.deduplicated,
        jumps=counts.jumps,
        failures=counts.failures,
        reason=handle.reason,
    )
