"""The receiver queue of a session's consumer: its length in entries, by the size of the entries met."""

from __future__ import annotations

from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES
from timewheel.relay.driver.memory import Memory

RELAY_HELD_ENTRIES = 16
"""Entries, not messages: a thousand of them may be a million messages (broker-facts: queues-count-entries). Where hops
come from hops an entry is one message, and each refill of half the queue waits for the broker: 16 forward a third
more than 8.
"""
BROKER_HELD_ENTRIES = 200
"""Clients batch no delayed messages: an entry is a message. Messages that wait here unacknowledged are gaps at most."""
MESSAGE_BYTES = 1_200
"""The client's memory for a message besides its payload (broker-facts: windows-in-bytes)."""
GROUP_ENTRY_BYTES = GROUP_BYTES + GROUP_MESSAGES * MESSAGE_BYTES
BROKER_HELD_BYTES = 64 << 10
"""Expected size of an entry, until a larger entry is met."""


class Prefetch:
    """The queue of a partition's sessions; for its thread.

    Args:
        memory: The relay's memory budget.
        by_broker: Whether the partition's messages are held by the broker.
    """

    __slots__ = ("_entry_bytes", "_largest_bytes", "_memory", "_most", "_uncounted", "entries")

    def __init__(self, memory: Memory, *, by_broker: bool) -> None:
        self._memory = memory
        self._most = BROKER_HELD_ENTRIES if by_broker else RELAY_HELD_ENTRIES
        self._largest_bytes = BROKER_HELD_BYTES if by_broker else GROUP_ENTRY_BYTES
        self._entry_bytes = self._uncounted = 0
        self.entries = self._most
        """Queue length for the session's consumer."""

    def begin(self) -> None:
        """Begin a session."""
        self._entry_bytes = self._uncounted = 0
        self.entries = self._memory.queue_entries(self._largest_bytes, self._most)

    def met(self, batch_index: int, batch_size: int, size: int, uncounted: int = 0) -> bool:
        """Record the size of a received message.

        Args:
            batch_index: Its index in its entry; 0 or less for the first.
            batch_size: Number of messages in its entry; 0 if it is unbatched, or unknown to the client.
            size: Bytes of payload and properties.
            uncounted: Messages of its entry that the broker counts as sent, and the client does not count as received
                (`timewheel.client.native.uncounted_of`).

        Returns:
            True if the queue is too long for such entries, so that another session should begin with a shorter queue.
        """
        self._uncounted += uncounted
        self._entry_bytes = size if batch_index <= 0 else self._entry_bytes + size
        entry_bytes = self._entry_bytes + MESSAGE_BYTES * max(batch_size, batch_index + 1, 1)
        if entry_bytes <= self._largest_bytes:
            return False
        # The rest of a batch is not known yet. Sessions that end inside a batch must be few: each receives all of it
        # again.
        self._largest_bytes = max(entry_bytes, 2 * self._largest_bytes) if batch_index >= 0 else entry_bytes
        return self._memory.queue_entries(self._largest_bytes, self._most) < self.entries

    @property
    def is_spent(self) -> bool:
        """True if the broker may send no more: a consumer renews permits when half of its queue is received."""
        return 2 * self._uncounted >= self.entries
