"""The partitions of some holding topics together with the threads that read them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from timewheel.relay.driver.partition import Partition
from timewheel.relay.driver.slot_scheduler import MAX_CATCH_UPS, SlotScheduler
from timewheel.relay.driver.source import Tools

SLOTS_AT_ONCE = 2
"""Slots of a ring's partition that are open together: a slot is drained while the next is opened."""


class PartitionWorkers:
    """A thread per partition of a tier, of the intake or of the journal, and a keeper for all slots.

    Args:
        partitions: All partitions.
        tools: The relay's tools.
    """

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
        """The partitions that are read."""
        retired = self._retired
        return [partition for partition in self._all if partition.source.topic not in retired]

    def start(self) -> None:
        """Begin; returns at once."""
        if self._scheduler is not None:
            self._scheduler.start()
        for thread in self._threads:
            thread.start()

    def retire(self, topic: str) -> None:
        """Stop reading a topic that is empty and stays empty.

        Args:
            topic: Full name, without a partition suffix.
        """
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
