"""Table of cancellations in memory: merged by maximum, forgotten when no timer that they concern can come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from timewheel.core.cancellations import Cancellation
from timewheel.core.durations import MINUTE_MS
from timewheel.core.envelope import Envelope

MAX_LIVE = 1_000_000
"""Cancellations that a process is designed for, about 250 MB. A full table refuses new names and reports the refusal. A
group takes one entry, however many timers it has."""

BUCKET_MS = 10 * MINUTE_MS
"""Precision with which cancellations are forgotten; never too early."""


class CancellationTable:
    """Cancellations of timers and groups, to decide whether a copy is dead.

    Any thread may read (`is_dead`); only one thread at a time may change the table. A concurrent read returns the state
    before or after the change; either was true at some moment since the call.

    Args:
        most: Cancellations that the table holds at most.
    """

    __slots__ = ("_buckets", "_groups", "_most", "_timers")

    def __init__(self, most: int = MAX_LIVE) -> None:
        self._most = most
        self._timers: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, tuple[int, int]] = {}
        # Names by the time to forget them. A name whose time was postponed stands in an earlier bucket too, at most
        # once in each. Timers and groups are separate: a list of names costs a third of a list of pairs, in memory and
        # in time.
        self._buckets: dict[int, tuple[list[str], list[str]]] = {}

    def __len__(self) -> int:
        """Return the number of cancellations in the table."""
        return len(self._timers) + len(self._groups)

    def is_dead(self, envelope: Envelope) -> bool:
        """Return whether the message with this envelope was cancelled or replaced, as far as this table knows."""
        # Usually there is no cancellation: then this is one check of an empty dictionary.
        if self._timers:
            found = self._timers.get(envelope.timer_id)
            if found is not None and envelope.generation < found[0]:
                return True
        life = envelope.life
        if self._groups and life.group:
            found = self._groups.get(life.group)
            return found is not None and life.group_stamp < found[0]
        return False

    def of_timer(self, timer_id: str) -> Cancellation | None:
        """Return the cancellation of this timer id; timers of the same id with other generations may live."""
        found = self._timers.get(timer_id)
        return None if found is None else Cancellation("timer", timer_id, *found)

    def why_dead(self, envelope: Envelope) -> Cancellation | None:
        """Return the cancellation that makes a copy dead; None: the copy is not dead (`is_dead`)."""
        if not self.is_dead(envelope):
            return None
        by_id = self.of_timer(envelope.timer_id)
        if by_id is not None and envelope.generation < by_id.cut:
            return by_id
        return Cancellation("group", envelope.life.group, *self._groups[envelope.life.group])

    def merge(self, cancellation: Cancellation) -> bool:
        """Merge a cancellation: the higher limit and the later time to forget it win.

        Returns:
            False if the table is full and has no entry for this name: the cancellation is not remembered.
        """
        kind, name, cut, forget_ms = cancellation
        table = self._timers if kind == "timer" else self._groups
        known = table.get(name)
        if known is not None:
            if cut <= known[0] and forget_ms <= known[1]:
                return True
            cut, later_ms = max(cut, known[0]), max(forget_ms, known[1])
            put_off = later_ms // BUCKET_MS != known[1] // BUCKET_MS
            forget_ms = later_ms
        elif len(self) >= self._most:
            return False
        else:
            put_off = True
        table[name] = (cut, forget_ms)
        if put_off:
            number = forget_ms // BUCKET_MS
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = ([], [])
            bucket[kind == "group"].append(name)
        return True

    def forget(self, now_ms: int) -> int:
        """Forget the cancellations for which no timer can arrive any more, and return their number.

        Args:
            now_ms: UTC milliseconds.
        """
        # A bucket is over when its end has passed: none of its cancellations is needed then.
        over = [bucket for bucket in self._buckets if (bucket + 1) * BUCKET_MS <= now_ms]
        forgotten = 0
        for bucket in over:
            for table, names in zip((self._timers, self._groups), self._buckets.pop(bucket), strict=True):
                for name in names:
                    known = table.get(name)
                    if known is not None and known[1] // BUCKET_MS == bucket:
                        del table[name]
                        forgotten += 1
        return forgotten

    def live(self) -> Iterator[Cancellation]:
        """Iterate over all cancellations in the table, as they are now."""
        for kind, table in self._tables():
            for name, (cut, forget_ms) in list(table.items()):
                yield Cancellation(kind, name, cut, forget_ms)

    def _tables(self) -> Iterable[tuple[Literal["timer", "group"], dict[str, tuple[int, int]]]]:
        return (("timer", self._timers), ("group", self._groups))
