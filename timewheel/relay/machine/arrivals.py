"""Bounds the time at which a message can have arrived, from positions at which its topic has ended.

The "entered" time of a message is its sender's word, and so is its publish time. A message that is not behind the end
that a topic had at some time was stored by then (broker-facts: clocks-too-fast).
"""

from __future__ import annotations

from collections import deque

from timewheel.client.positions import Position

LEAST_EVERY_MS = 1_000
MARKS_A_STAY = 256
MAX_MARKS = 1_024


class Arrivals:
    """Ends of a topic, over all subscriptions of a partition.

    Args:
        stay_ms: Time that a message stays in the topic; 0: bounds are of no use there.
        skew_ms: A bound may be too high by this much, or by a small part of the stay.
    """

    __slots__ = ("_every_ms", "_marked_ms", "_marks")

    def __init__(self, stay_ms: int, skew_ms: int) -> None:
        self._every_ms = max(skew_ms, stay_ms // MARKS_A_STAY, LEAST_EVERY_MS) if stay_ms else 0
        self._marked_ms: int | None = None
        self._marks: deque[tuple[Position, int]] = deque()

    def wants_end(self, now_ms: int) -> bool:
        """Return whether it is time to ask for the topic's last position."""
        last_ms = self._marked_ms
        return bool(self._every_ms) and (last_ms is None or not 0 <= now_ms - last_ms < self._every_ms)

    def ended(self, last: Position | None, now_ms: int) -> None:
        """Record the topic's last position, after its request was answered; None: there was no answer."""
        self._marked_ms = now_ms
        marks = self._marks
        if last is None or (marks and last <= marks[-1][0]):
            return
        marks.append((last._replace(batch_index=1 << 31), now_ms))  # at any index of a batch
        if len(marks) > MAX_MARKS:
            self._marks = deque(mark for number, mark in enumerate(marks) if number % 2)

    def arrived_by(self, position: Position, now_ms: int) -> int:
        """Return a time by which a received message had arrived, UTC milliseconds; earlier messages are forgotten."""
        marks = self._marks
        while marks and marks[0][0] < position:
            marks.popleft()
        return min(marks[0][1], now_ms) if marks else now_ms
