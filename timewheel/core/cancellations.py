"""Cancellations: cancellations and replacements of timers, as values and as a table in memory.

A cancellation names a timer id or a group, and a limit: timers whose generation (whose stamp in the group) is below the
limit are dead. Cancellations are merged by maximum and never taken back. So readers may read a cancellation twice,
late, or in any order, and all readers come to the same result in the end (broker-facts: cancellation-log).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum, unique
from threading import Lock
from typing import Literal, NamedTuple

from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.core.envelope import (
    MAX_GENERATION,
    MAX_GROUP_CHARS,
    MAX_TIME_MS,
    MAX_TIMER_ID_CHARS,
    Envelope,
    first_wanted_ms,
)
from timewheel.core.errors import CancellationUnreadable
from timewheel.core.rng import Random

PACK_BYTES = 512 * 1024  # size limit of one message of the log; a broker takes ten times that by default
MAX_REFUSED = 100
"""Limit on unreadable lines of a message. The rest of the message is skipped, since each line costs an attempt of its
own."""

_OF_DEAD_LETTER: dict[object, Literal["timer", "group"]] = {"t": "timer", "g": "group"}
_MAX_NAME_CHARS = max(MAX_TIMER_ID_CHARS, MAX_GROUP_CHARS)


class Cancellation(NamedTuple):
    """Record of the log of cancellations.

    Args:
        kind: Kind of the name: a timer id, or a group.
        name: The timer id, or the group.
        cut: A copy is dead if its generation, or its stamp in the group, is below this limit.
        forget_ms: Time from which no message that this cancellation concerns can arrive any more, UTC milliseconds.
    """

    kind: Literal["timer", "group"]
    name: str
    cut: int
    forget_ms: int

    def line(self) -> str:
        """Return the record as one line of JSON, without a line's end."""
        return json.dumps([self.kind[0], self.name, self.cut, self.forget_ms], separators=(",", ":"))


def latest_forget_ms(max_delay_ms: int, keep_ms: int, written_ms: int) -> int:
    """Return the time until which a plan's cancellation can matter. A day is added for clocks that differ."""
    return written_ms + max_delay_ms + keep_ms + DAY_MS


def read_cancellations(data: bytes, latest_ms: int = MAX_TIME_MS) -> list[Cancellation]:
    """Read a message of the log: one line for each cancellation, remembered until ``latest_ms`` (`latest_forget_ms`) at
    most, whatever its line declares. `CancellationUnreadable`: a line is foreign, garbled, or of a later version; the
    error has the readable cancellations.
    """
    try:
        # All lines at once: a pack has thousands of lines, and JSON never has a line's end within a line.
        return _read(data.strip(b"\n").replace(b"\n", b","), latest_ms)
    except _UNREADABLE as error:
        readable: list[Cancellation] = []
        refused = 0
        for line in data.split(b"\n"):
            try:
                readable += _read(line, latest_ms)
            except _UNREADABLE:
                refused += 1
                if refused == MAX_REFUSED:
                    break
        raise CancellationUnreadable(data, str(error), readable) from error


_UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)


def _read(lines: bytes, latest_ms: int) -> list[Cancellation]:
    return [_checked(latest_ms, *fields) for fields in json.loads(b"[%b]" % lines)]


def _checked(latest_ms: int, dead_letter: object, name: object, cut: object, forget_ms: object) -> Cancellation:
    if type(name) is not str or not 0 < len(name) <= _MAX_NAME_CHARS:
        raise TypeError(f"a name has 1 to {_MAX_NAME_CHARS} characters")
    if not name.isascii():
        name.encode()  # half of a surrogate pair raises ValueError: no timer has such an id
    if type(cut) is not int or not 0 <= cut <= MAX_GENERATION:
        raise ValueError("a cut is a whole number of at most 16 digits")
    if type(forget_ms) is not int or not 0 <= forget_ms <= 2 * MAX_TIME_MS:
        raise ValueError("a time is whole milliseconds since 1970")
    # Equal to calling the class, at half the cost: a start reads millions of cancellations.
    return tuple.__new__(Cancellation, (_OF_DEAD_LETTER[dead_letter], name, cut, min(latest_ms, forget_ms)))


def packs(cancellations: Iterable[Cancellation], max_bytes: int = PACK_BYTES) -> Iterator[bytes]:
    """Pack many cancellations into few messages. A repeated or partial pack does no harm: it only adds some."""
    lines: list[bytes] = []
    size = 0
    for cancellation in cancellations:
        line = cancellation.line().encode()
        if lines and size + len(line) + 1 > max_bytes:
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


class Stamps:
    """Stamps that order the events of one timer id: microseconds by this machine's clock, each issued only once.

    Thread-safe. The producers of a process share an instance, so that a send by one of them is ordered before a later
    cancel by another.

    Args:
        rng: Draws the digits below a millisecond, so that two processes hardly ever issue the same stamp.
    """

    __slots__ = ("_last", "_lock", "_rng")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._last = 0
        self._lock = Lock()

    def new(self, now_ms: int, above: int = 0) -> int:
        """Return a stamp above all stamps issued so far, and above ``above``, a known generation: its replacement is
        ordered after it, whatever the clock shows.
        """
        drawn = now_ms * 1_000 + int(self._rng.random() * 1_000)
        with self._lock:
            self._last = min(max(drawn, above + 1, self._last + 1), MAX_GENERATION)
            return self._last


@unique
class Answer(Enum):
    """Guarantee that a cancel can give once its cancellation is stored."""

    CERTAIN = "certain"
    """Stored well before the timer was due: no consumer delivers the timer."""
    TOO_CLOSE = "too close"
    """Stored when the timer was nearly or already due: it may have been delivered, and is not delivered again."""
    UNSEEN = "unseen"
    """The caller gave no due time: timers that were sent before the cancel and are not yet delivered will not be.
    Timers that another process sent within the plan's ``skew`` count as before if the clocks order them so."""


class CancelResult(NamedTuple):
    """Stored cancellation.

    Args:
        answer: Guarantee for the timer.
        confirmed_ms: Time at which the broker confirmed the cancellation, by this machine's clock, UTC milliseconds.
        cancellation: The stored cancellation.
    """

    answer: Answer
    confirmed_ms: int
    cancellation: Cancellation


def answer_of(due_ms: int | None, confirmed_ms: int, skew_ms: int) -> Answer:
    """Return the guarantee of a stored cancellation."""
    if due_ms is None:
        return Answer.UNSEEN
    return Answer.CERTAIN if confirmed_ms < due_ms - skew_ms else Answer.TOO_CLOSE


def is_too_late(envelope: Envelope, now_ms: int, keep_ms: int) -> bool:
    """Return whether a timer arrives when its cancellation may have been forgotten, so that an operator must decide."""
    return now_ms - first_wanted_ms(envelope) > keep_ms


MAX_LIVE = 1_000_000
"""Cancellations that a process is designed for, about 250 MB. A full table refuses new names and reports the refusal. A
group takes one entry, however many timers it has."""

BUCKET_MS = 10 * MINUTE_MS  # precision with which cancellations are forgotten; never too early


class CancellationTable:
    """Cancellations of timers and groups, to decide whether a copy is dead.

    Any thread may read (`is_cancelled`); only one thread at a time may change the table. A concurrent read returns the
    state before or after the change; either was true at some moment since the call.

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
        self._buckets: defaultdict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))

    def __len__(self) -> int:
        return len(self._timers) + len(self._groups)

    def is_cancelled(self, envelope: Envelope) -> bool:
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
        """Return the cancellation that makes a copy dead; None: the copy is not dead (`is_cancelled`)."""
        if not self.is_cancelled(envelope):
            return None
        by_id = self.of_timer(envelope.timer_id)
        if by_id is not None and envelope.generation < by_id.cut:
            return by_id
        return Cancellation("group", envelope.life.group, *self._groups[envelope.life.group])

    def merge(self, cancellation: Cancellation) -> bool:
        """Merge a cancellation: the higher limit and the later time to forget it win. False: the table is full and has
        no entry for this name, and the cancellation is not remembered.
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
            self._buckets[forget_ms // BUCKET_MS][kind == "group"].append(name)
        return True

    def forget(self, now_ms: int) -> int:
        """Forget the cancellations for which no timer can arrive any more, and return their number."""
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
        for name, found in list(self._timers.items()):
            yield Cancellation("timer", name, *found)
        for name, found in list(self._groups.items()):
            yield Cancellation("group", name, *found)
