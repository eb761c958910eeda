"""The partitions of some holding topics together with the threads that read them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from timewheel.consumers.relay.driver.partition import Partition
from timewheel.consumers.relay.driver.ring_keeper import RingKeeper
from timewheel.consumers.relay.driver.source import Tools

__all__ = ["Crew"]


class Crew:
    """One thread per partition of a tier, and one keeper for all slots.

    Args:
        partitions: All of them.
        tools: Of the relay.
    """

    def __init__(self, partitions: Iterable[Partition], tools: Tools) -> None:
        self._all = tuple(partitions)
        self._clock = tools.clock
        self._retired: frozenset[str] = frozenset()
        slots = [partition for partition in self._all if partition.source.step.kind == "slot"]
        self._keeper = RingKeeper(slots, tools) if slots else None
        self._threads = tuple(
            threading.Thread(target=partition.run, name=f"timewheel-relay {partition.source.name}", daemon=True)
            for partition in self._all
            if partition.source.step.kind == "tier"
        )

    @property
    def partitions(self) -> Sequence[Partition]:
        """Those that are read."""
        retired = self._retired
        return [partition for partition in self._all if partition.source.topic not in retired]

    def start(self) -> None:
        """Begin; returns at once."""
        if self._keeper is not None:
            self._keeper.start()
        for thread in self._threads:
            thread.start()

    def retire(self, topic: str) -> None:
        """Read a topic no more: nothing waits there, and nothing can come.

        Args:
            topic: Full name, without a partition suffix.
        """
        self._retired |= {topic}
        for partition in self._all:
            if partition.source.topic == topic:
                partition.handle.stop(0)
        if self._keeper is not None and not self.partitions:
            self._keeper.stop()

    def stop(self, drain_ms: int) -> None:
        """Take nothing new; `join` waits for the end."""
        if self._keeper is not None:
            self._keeper.stop()
        for partition in self._all:
            partition.handle.stop(drain_ms)

    def join(self, timeout_ms: int) -> None:
        """Wait for all threads."""
        for thread in self._threads:
            self._clock.join(thread, timeout_ms)
        if self._keeper is not None:
            self._keeper.join(timeout_ms)

    def is_looked_after(self, alive_since_ms: int) -> bool:
        """Whether the keeper of the slots has looked into each of them and is alive."""
        keeper = self._keeper
        return keeper is None or (keeper.caught_up.is_set() and keeper.heartbeat_ms > alive_since_ms)
