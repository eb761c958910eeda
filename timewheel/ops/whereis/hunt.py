"""Which entry of a partition to look at next: pure. A partition is in the order in which timers entered it, nearly.

Entries are numbered through all ledgers. What an entry holds tells on which side of it the wanted one stands; between
two that are known, its number is guessed by their times. Close by, the order is not strict: producers' clocks differ,
and hops come in beside sends. So where nothing is left in between, the neighbours are looked at as well, from the
inside out, if that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Hunt", "Mark"]

GUESSES = 4
"""By times, between two known entries; from there on every other look halves, which is surer."""

CLOSE_MS = 1_000
"""Relays of several topics hop to one: each in order, and each as much later than the release as its hops wait."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry that was looked at, and is of use for a guess.

    Args:
        number: Of the entry.
        entered_ms: When a timer in it entered the topic.
        sent_ms: When that was sent, by its id; 0: it does not say.
        ahead: How many entries further on the wanted one is, by the count in its id; 0: not known.
    """

    number: int
    entered_ms: int
    sent_ms: int = 0
    ahead: int = 0


class Hunt:
    """The search of one partition.

    Args:
        entries: How many the partition stores.
        first: The wanted one has this number or a later one, as far as publish times are in order.
        start: The likeliest one.
        entered_ms: When the wanted one entered.
        sent_ms: When it was sent.
        end: Looked at next if the wanted one is behind ``start``: the last of those that entered with it, as timers of
            one slot do; None: not known.
        slack: So many neighbours are looked at beyond what the order says.
        near: The same, if what stands behind it entered at nearly the same time: by another relay, it may be before it.
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
        """Nothing is stored that entered before it: it is not there any more, or never was."""
        return self._last < 0

    def next(self) -> int | None:
        """The number of the entry to look at; None: it is not here."""
        if self._first > self._last or all(number in self._seen for number in range(self._first, self._last + 1)):
            return self._neighbour()
        return self._free(min(max(self._guess(), self._first), self._last))

    def saw(self, mark: Mark, side: int) -> None:
        """Tell what an entry holds.

        Args:
            mark: The entry.
            side: -1: its timers entered before the wanted one, 1: after it, 0: it cannot be told.
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
        if low_ms == high_ms:  # as all timers of a slot, which keep the order of their sends
            at_ms, low_ms, high_ms = self._sent_ms, low.sent_ms, high.sent_ms
        if (self._guesses > GUESSES and self._guesses % 2) or not low_ms <= at_ms <= high_ms or low_ms == high_ms:
            return (low.number + high.number) // 2
        return low.number + round((at_ms - low_ms) / (high_ms - low_ms) * (high.number - low.number))

    def _free(self, guess: int) -> int:
        """The nearest one in the bracket that was not looked at yet, rather behind than before."""
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
