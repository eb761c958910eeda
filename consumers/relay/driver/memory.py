"""How much memory each partition of a relay may take, so that all of them together keep to a budget.

Two things grow with the traffic: what the client has received ahead of the relay, and what is on its way out. Each gets
half of a partition's share. The client counts what it receives in entries and not in bytes (broker-facts:
queues-count-entries), so a share is turned into entries by the size of the largest one that was met.
"""

from __future__ import annotations

import threading

from timewheel.consumers.relay.machine.window import WINDOW_BYTES

__all__ = ["MEMORY_BYTES", "Memory"]

MEMORY_BYTES = 512 << 20
LEAST_WINDOW_BYTES = 256 << 10


class Memory:
    """A relay's budget; for any number of threads.

    Args:
        budget_bytes: Of all partitions together. Where it is too small for one entry of each, they take that.
    """

    __slots__ = ("_budget_bytes", "_lock", "_readers")

    def __init__(self, budget_bytes: int = MEMORY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._readers = 0

    def share_with(self, readers: int) -> None:
        """So many more partitions are read at once. Shares that are in use already shrink when their sessions end."""
        with self._lock:
            self._readers += readers

    def resize(self, budget_bytes: int) -> None:
        """Another budget from now on; what is in use already shrinks when its session ends."""
        self._budget_bytes = budget_bytes

    def window_bytes(self) -> int:
        """What may be on its way out of one partition; a message that is larger than that goes alone."""
        return min(max(self._half_bytes(), LEAST_WINDOW_BYTES), WINDOW_BYTES)

    def queue_entries(self, entry_bytes: int, most: int) -> int:
        """How many entries the client may receive ahead, at least one.

        Args:
            entry_bytes: The largest one that was met in the partition, or is expected.
            most: More would be of no use.
        """
        return min(max(self._half_bytes() // max(entry_bytes, 1), 1), most)

    def _half_bytes(self) -> int:
        return self._budget_bytes // (2 * max(self._readers, 1))
