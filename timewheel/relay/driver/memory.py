"""The memory share of each partition of a relay, so that all of them together keep to a budget.

Two things grow with the traffic: messages that the client has received ahead of the relay, and sends under way. Each
gets half of a partition's share. The client counts received entries and not bytes (broker-facts: queues-count-entries),
so a share is converted to entries by the size of the largest entry met.
"""

from __future__ import annotations

import threading

from timewheel.relay.machine.window import WINDOW_BYTES

MEMORY_BYTES = 512 << 20
LEAST_WINDOW_BYTES = 256 << 10


class Memory:
    """A relay's memory budget; safe from any number of threads.

    Args:
        budget_bytes: Budget of all partitions together. If it is too small for an entry each, they exceed it by that.
    """

    __slots__ = ("_budget_bytes", "_lock", "_readers")

    def __init__(self, budget_bytes: int = MEMORY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._readers = 0

    def share_with(self, readers: int) -> None:
        """Add partitions that are read at once. Shares already in use shrink when their sessions end."""
        with self._lock:
            self._readers += readers

    def resize(self, budget_bytes: int) -> None:
        """Set another budget from now on; a share already in use shrinks when its session ends."""
        self._budget_bytes = budget_bytes

    def window_bytes(self) -> int:
        """Return the bytes that may be under way out of one partition; a larger message is sent alone."""
        return min(max(self._half_bytes(), LEAST_WINDOW_BYTES), WINDOW_BYTES)

    def queue_entries(self, entry_bytes: int, most: int) -> int:
        """Return how many entries the client may receive ahead, at least 1.

        Args:
            entry_bytes: The largest entry met in the partition, or expected.
            most: Upper bound, beyond which more entries are useless.
        """
        return min(max(self._half_bytes() // max(entry_bytes, 1), 1), most)

    def _half_bytes(self) -> int:
        return self._budget_bytes // (2 * max(self._readers, 1))
