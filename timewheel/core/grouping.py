"""How many messages are one entry: of hops, and how long they wait for each other, what relays do and the planner
reckons with (broker-facts: batched-hops); and of what others send, the most that is read one by one.
"""

from __future__ import annotations

__all__ = [
    "GROUP_BYTES",
    "GROUP_MESSAGES",
    "LARGEST_BATCH",
    "LARGE_BYTES",
    "LIFT_LINGER_MS",
    "PARTS_OF_ROOM",
    "default_linger_ms",
]

GROUP_MESSAGES = 1_000
LARGEST_BATCH = 10_000
"""Messages of one entry that are read one by one: ten times what clients put into one by their defaults. An empty one
takes 6 bytes, and next to none compressed: an entry of 500 bytes may hold 870,000."""
GROUP_BYTES = 1_000_000
"""Of payloads and properties, in characters, of which none is more than four bytes. A broker takes entries of 5 MB."""
LARGE_BYTES = 256_000
"""Counted alike. What is as large goes alone, and compressed: its sender may have stored it only so. By its size alone,
so that every relay sends it by the same producer."""

LONGEST_LINGER_MS = 1_000
LIFT_LINGER_MS = 20
"""How long what a shadow lifts waits for others: until it is stored, its original stays where it is."""
PARTS_OF_ROOM = 10
"""A hop waits for no more than a tenth of the time after which it would be late, and by default of the plan's guard."""


def default_linger_ms(guard_ms: int) -> int:
    """How long a hop waits for others where nobody says otherwise: a second, or a tenth of the guard if that is less.

    The guard is the room that a plan leaves for everything that delays a hop (broker-facts: guard-and-skew).
    """
    return min(LONGEST_LINGER_MS, guard_ms // PARTS_OF_ROOM)
