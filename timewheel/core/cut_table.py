"""What is cut off, in memory: merged by maximum, forgotten when nothing can come any more that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from timewheel.core.cut_offs import CutOff
from timewheel.core.durations import MINUTE_MS
from timewheel.core.envelope import Envelope

__all__ = ["MOST_LIVE", "CutTable"]

MOST_LIVE = 1_000_000
"""Cut-offs that one process is made for: some 250 MB. Beyond that it refuses new names, and says so; a group takes one,
however many timers it has."""

BUCKET_MS = 10 * MINUTE_MS
"""So exactly are cut-offs forgotten, and never too early."""


class CutTable:
    """Answers whether a copy is dead.

    Any thread may ask (`is_dead`); one at a time may change it. An answer meanwhile is that from before or that from
    after, each true at some moment since the question.

    Args:
        most: Cut-offs that it remembers.
    """

    __slots__ = ("_buckets", "_groups", "_most", "_timers")

    def __init__(self, most: int = MOST_LIVE) -> None:
        self._most = most
        self._timers: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, tuple[int, int]] = {}
        # By when they are forgotten. A name whose time was put off stands in an earlier bucket too, at most once each.
        # Timers and groups apart: a list of names alone costs a third of a list of pairs, in memory and in time.
        self._buckets: dict[int, tuple[list[str], list[str]]] = {}

    def __len__(self) -> int:
        """Cut-offs that are remembered."""
        return len(self._timers) + len(self._groups)

    def is_dead(self, envelope: Envelope) -> bool:
        """Whether what carries this envelope was cancelled or replaced, as far as is known here."""
        # Without a cut-off, which is the rule, this is one look into an empty dictionary.
        if self._timers:
            found = self._timers.get(envelope.timer_id)
            if found is not None and envelope.generation < found[0]:
                return True
        life = envelope.life
        if self._groups and life.group:
            found = self._groups.get(life.group)
            return found is not None and life.group_stamp < found[0]
        return False

    def of_timer(self, timer_id: str) -> CutOff | None:
        """What is remembered of this id; its timers of other generations may live."""
        found = self._timers.get(timer_id)
        return None if found is None else CutOff("timer", timer_id, *found)

    def why_dead(self, envelope: Envelope) -> CutOff | None:
        """The cut-off by which `is_dead` says yes; None: it says no."""
        if not self.is_dead(envelope):
            return None
        by_id = self.of_timer(envelope.timer_id)
        if by_id is not None and envelope.generation < by_id.cut:
            return by_id
        return CutOff("group", envelope.life.group, *self._groups[envelope.life.group])

    def merge(self, cut_off: CutOff) -> bool:
        """Take a cut-off in: the higher cut counts, and the later time to forget it.

        Returns:
            False: it is full, and of this name nothing is in it; the cut-off is not remembered.
        """
        kind, name, cut, forget_ms = cut_off
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
        """Forget what nothing can come for any more; how many.

        Args:
            now_ms: UTC milliseconds.
        """
        # A bucket is over when its end has passed: none of it is needed then.
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

    def live(self) -> Iterator[CutOff]:
        """All that are remembered, as they are now."""
        for kind, table in self._tables():
            for name, (cut, forget_ms) in list(table.items()):
                yield CutOff(kind, name, cut, forget_ms)

    def _tables(self) -> Iterable[tuple[Literal["timer", "group"], dict[str, tuple[int, int]]]]:
        return (("timer", self._timers), ("group", self._groups))
