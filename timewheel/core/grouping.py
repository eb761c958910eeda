"""Batching: how many hops a relay puts into an entry and how long they wait for each other, as the planner assumes too
(broker-facts: batched-hops); and the largest foreign batch whose messages are read individually.
"""

from __future__ import annotations

GROUP_MESSAGES = 1_000
LARGEST_BATCH = 10_000
"""Limit on messages of an entry that are read individually: ten times the default batch of clients. An empty message
takes 6 bytes, and almost none compressed: an entry of 500 bytes may hold 870,000."""
GROUP_BYTES = 1_000_000
"""Limit on payloads and properties, in characters of at most four bytes each. A broker takes entries of 5 MB."""
LARGE_BYTES = 256_000
"""Size, counted in the same way, from which a message goes alone and compressed: its sender may have stored it only by
compression. Only the size decides, so that every relay sends the message with the same producer."""

LONGEST_LINGER_MS = 1_000
MOVE_LINGER_MS = 20
"""Linger of messages that a shadow moves: until the copy is stored, its original stays in the due topic."""
PARTS_OF_ROOM = 10
"""A hop lingers for at most a tenth of the time after which it would be late; by default that is the plan's guard."""


def default_linger_ms(guard_ms: int) -> int:
    """Return how long a hop waits for other hops by default: a second, or a tenth of the guard if that is less.

    The guard is the time that a plan leaves for everything that delays a hop (broker-facts: guard-and-skew).
    """
    return min(LONGEST_LINGER_MS, guard_ms // PARTS_OF_ROOM)
