"""Choose the next entry of a partition to read: pure. A partition is nearly in the order in which timers entered it.

Entries are numbered through all ledgers. The content of an entry shows on which side of it the wanted timer is; between
two known entries, the number is guessed by their times. At close range the order is not strict: clocks of producers
differ, and hops arrive beside sends. So when no entry is left in between, the neighbours are read as well, from the
inside out, if requested.
"""

from __future__ import annotations

from dataclasses import dataclass

GUESSES = 4
"""Guesses by time between two known entries; after these, every other read bisects, which is safer."""

CLOSE_MS = 1_000
"""Relays of several topics hop to the same topic: each in order, each a little later after the release."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry that was read and helps to guess.

    Args:
        number: Number of the entry.
        entered_ms: Time at which a timer in it entered the topic.
        sent_ms: Send time from the timer's id; 0 if the id has none.
        ahead: Distance to the wanted entry, by the counter in the ids; 0 if unknown.
    """

    number: int
    entered_ms: int
    sent_ms: int = 0
    ahead: int = 0


class Hunt:
    """The search of a partition.

    Args:
        entries: Number of stored entries.
        first: Lower bound of the wanted number, as far as publish times are in order.
        start: Most likely number.
        entered_ms: Time at which the wanted timer entered.
        sent_ms: Time at which it was sent.
        end: Number to read next if the wanted entry is after ``start``: the last entry that entered with it, as timers
            of a slot do; None if unknown.
        slack: Number of neighbours to read outside the order.
        near: The same, if the following entry entered at nearly the same time: sent by another relay, the wanted entry
            may be before it.
    """

    __slots__ = (
        "_end",
        "_entered_ms",
        "_entries",
        "_first",
        "_guesses",
        "_high",
        "_last",
        "_low",
        "_near",
        "_seen",
        "_sent_ms",
        "_slack",
        "_start",
        "_step",
    )

    def __init__(
        self,
        entries: int,
        *,
        first: int,
        start: int,
        entered_ms: int,
        sent_ms: int = 0,
        end: int | None = None,
        slack: int = 0,
        near: int = 0,
    ) -> None:
        self._entries = entries
        self._start = start
        self._entered_ms = entered_ms
        self._sent_ms = sent_ms
        self._end = end
        self._slack = slack
        self._near = near
        self._first = first
        self._last = entries - 1
        self._low: Mark | None = None
        self._high: Mark | None = None
        self._seen: set[int] = set()
        self._step = 1
        self._guesses = 0

    @property
    def is_before_all(self) -> bool:
        """True if no stored entry entered before the wanted timer: it is no longer stored, or never was."""
        return self._last < 0

    def next(self) -> int | None:
        """Return the number of the entry to read next; None if the wanted entry is not in this partition."""
        if self._first > self._last or all(number in self._seen for number in range(self._first, self._last + 1)):
            return self._neighbour()
        return self._free(min(max(self._guess(), self._first), self._last))

    def saw(self, mark: Mark, side: int) -> None:
        """Record an entry that was read.

        Args:
            mark: The entry.
            side: -1 if its timers entered before the wanted timer, 1 if after, 0 if unknown.
        """
        self._seen.add(mark.number)
        if side < 0 and mark.number >= self._first:
            self._first, self._low = mark.number + 1, mark
        elif side > 0 and mark.number <= self._last:
            self._last, self._high = mark.number - 1, mark

    def _guess(self) -> int:
        low, high = self._low, self._high
        if low is None and high is None:
            return self._start
        self._step *= 2
        if low is None or high is None:
            mark = low or high
            assert mark is not None
            if mark.ahead:
                return mark.number + mark.ahead
            if mark is low and self._end is not None and self._end > mark.number:
                return self._end
            return mark.number + self._step // 2 * (1 if mark is low else -1)
        for mark in (low, high):
            if mark.ahead and low.number < mark.number + mark.ahead < high.number:
                return mark.number + mark.ahead
        self._guesses += 1
        at_ms, low_ms, high_ms = self._entered_ms, low.entered_ms, high.entered_ms
        if low_ms == high_ms:  # as with all timers of a slot, which keep the order of their sends
            at_ms, low_ms, high_ms = self._sent_ms, low.sent_ms, high.sent_ms
        if (self._guesses > GUESSES and self._guesses % 2) or not low_ms <= at_ms <= high_ms or low_ms == high_ms:
            return (low.number + high.number) // 2
        return low.number + round((at_ms - low_ms) / (high_ms - low_ms) * (high.number - low.number))

    def _free(self, guess: int) -> int:
        """Return the nearest unread number in the bracket, preferring later numbers."""
        for distance in range(self._last - self._first + 1):
            for number in (guess + distance, guess - distance):
                if self._first <= number <= self._last and number not in self._seen:
                    return number
        raise AssertionError("somebody asked for a free one where there is none")

    def _neighbour(self) -> int | None:
        high = self._high
        if self._near and high is not None and high.entered_ms - self._entered_ms <= CLOSE_MS:
            self._near -= 1
        elif self._slack:
            self._slack -= 1
        else:
            return None
        for distance in range(self._entries):
            for number in (self._first + distance, self._first - 1 - distance):
                if 0 <= number < self._entries and number not in self._seen:
                    return number
        return None
