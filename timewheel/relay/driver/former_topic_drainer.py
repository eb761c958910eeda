"""Finds topics of earlier plans and drains them, by the present plan's routing, until they are removed.

The search is repeated, since processes that use the earlier plan still send to its topics: during a rolling deployment
a tier that was empty at the start may fill afterwards (broker-facts: topics-outside-the-plan).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pulsar

from timewheel.core.clock import wait_until
from timewheel.core.errors import AdminError, TopologyError
from timewheel.core.topology import FormerTopic, HoldingTopic
from timewheel.events import RelayDrainsFormerTopic, RelayFormerTopicsUnknown, RelayFormerTopicUnreadable
from timewheel.relay.driver.partition import Partition, PartitionWorkers
from timewheel.relay.driver.source import Tools

LOOK_MS = 60_000  # time between two searches; a topic that was empty in two of them is let go


@dataclass(eq=False)
class FormerTopicDrainer:
    """A thread that searches, and workers for each search that found new topics.

    ``partitions_of`` raises `TopologyError` if the plan's topics cannot take the timers of a topic.
    """

    _look: Callable[[], Sequence[FormerTopic]]
    _partitions_of: Callable[[HoldingTopic], Sequence[Partition]]
    _tools: Tools

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._stopping = False
        self._answers = True
        self._thread = threading.Thread(target=self._run, name="timewheel-relay-former", daemon=True)
        self._drained_by: dict[str, PartitionWorkers] = {}
        self.workers_of: tuple[PartitionWorkers, ...] = ()
        """All crews that were made so far and have work; replaced, never changed."""
        self._unreadable: frozenset[str] = frozenset()
        self._empty: set[str] = set()

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Topics with a backlog that cannot be drained."""
        return tuple(sorted(self._unreadable))

    def start(self) -> None:
        """Search once, begin to drain, and continue to search."""
        self.inspect()
        self._thread.start()

    def stop(self, drain_ms: int) -> None:
        """Stop searching; take no new messages."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for workers in self.workers_of:
            workers.stop(drain_ms)

    def join(self, timeout_ms: int) -> None:
        if self._thread.ident is not None:
            self._tools.clock.join(self._thread, timeout_ms)
        for workers in self.workers_of:
            workers.join(timeout_ms)

    def inspect(self) -> None:
        """Begin with new topics, let go of empty topics."""
        try:
            found = self._look()
        except AdminError as error:
            # Holding up every timer because of an unanswered request would do greater harm.
            self._report_no_answer(str(error))
            return
        self._answers = True
        listed = {topic.name for topic in found}
        empty = {topic.name for topic in found if topic.drained}
        # Empty in two searches, since a producer that has connected may not have sent yet. A drained topic is let go,
        # so that it can be removed, and is searched for again: a late timer waits for a minute.
        for name in [name for name in self._drained_by if name not in listed or name in empty & self._empty]:
            self._drained_by.pop(name).retire(name)
        self._empty = empty
        self.workers_of = tuple(
            workers for workers in self.workers_of if workers.partitions
        )  # the others have ended, or are about to
        self._unreadable &= {topic.name for topic in found if topic.backlog}
        self._begin([topic for topic in found if topic.name not in self._drained_by and not topic.drained])

    def _begin(self, new: Sequence[FormerTopic]) -> None:
        partitions: list[Partition] = []
        topics: list[FormerTopic] = []
        for topic in new:
            if topic.holding is None:
                if topic.backlog and not topic.is_due and topic.parked_by is None:
                    self._report_unreadable(topic, "its name is unknown to this version of timewheel")
                continue
            try:
                partitions += self._partitions_of(topic.holding)
            except (TopologyError, pulsar.PulsarException) as error:
                self._report_unreadable(topic, str(error))  # tried again in a minute
            else:
                topics.append(topic)
        if not topics:
            return
        workers = PartitionWorkers(partitions, self._tools)
        with self._changed:
            if self._stopping:
                return
            self.workers_of = (*self.workers_of, workers)
            workers.start()
        for topic in topics:
            self._drained_by[topic.name] = workers
            self._unreadable -= {topic.name}
            self._tools.hooks.emit(RelayDrainsFormerTopic(topic=topic.name, backlog=topic.backlog))

    def _report_unreadable(self, topic: FormerTopic, reason: str) -> None:
        if topic.name not in self._unreadable:
            self._unreadable |= {topic.name}
            self._tools.hooks.emit(RelayFormerTopicUnreadable(topic=topic.name, backlog=topic.backlog, reason=reason))

    def _report_no_answer(self, reason: str) -> None:
        if self._answers:
            self._tools.hooks.emit(RelayFormerTopicsUnknown(due_topic=self._tools.router.plan.due_topic, reason=reason))
        self._answers = False

    def _run(self) -> None:
        clock = self._tools.clock
        while True:
            with self._changed:
                wait_until(clock, self._changed, lambda: self._stopping, clock.idle_ms(None, LOOK_MS))
                if self._stopping:
                    return
            try:
                self.inspect()
            except Exception as error:  # noqa: BLE001 - a thread that died in silence would stop draining
                self._report_no_answer(repr(error))
