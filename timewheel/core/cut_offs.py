"""Cut-offs: how timers are cancelled and replaced, as values.

A cut-off says of a timer id, or of a group, up to where its timers are dead: those whose generation (whose stamp in the
group) is below the cut. It is merged by maximum and never taken back, so that it may be read twice, late, or in any
order, by any number of readers, and each comes to the same in the end (broker-facts: cut-off-log).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import Enum, unique
from threading import Lock
from typing import Literal, NamedTuple

from timewheel.core.chance import Chance
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import (
    MAX_GENERATION,
    MAX_GROUP_CHARS,
    MAX_TIME_MS,
    MAX_TIMER_ID_CHARS,
    Envelope,
    first_wanted_ms,
)
from timewheel.core.errors import CutOffUnreadable

__all__ = [
    "PACK_BYTES",
    "Answer",
    "Cancellation",
    "CutOff",
    "Stamps",
    "answer_of",
    "is_too_late",
    "latest_forget_ms",
    "packs",
    "read_cut_offs",
]

PACK_BYTES = 512 * 1024
"""One message of the log at most; a broker takes ten times that by default."""
MOST_REFUSED = 100
"""Lines of one message that cannot be read; with the last of them the message ends. Each costs a refusal of its own."""

_OF_LETTER: dict[object, Literal["timer", "group"]] = {"t": "timer", "g": "group"}
_MAX_NAME_CHARS = max(MAX_TIMER_ID_CHARS, MAX_GROUP_CHARS)


class CutOff(NamedTuple):
    """One record of the log.

    Args:
        kind: What is named: a timer id, or a group.
        name: The id, or the group.
        cut: A copy is dead if its generation, or its stamp in the group, is below this.
        forget_ms: From when on nothing can come any more that it is about, UTC milliseconds.
    """

    kind: Literal["timer", "group"]
    name: str
    cut: int
    forget_ms: int

    def line(self) -> str:
        """As one line of JSON, without a line's end."""
        return json.dumps([self.kind[0], self.name, self.cut, self.forget_ms], separators=(",", ":"))


def latest_forget_ms(max_delay_ms: int, keep_ms: int, written_ms: int) -> int:
    """Until when a plan's cut-off can matter: the day is for clocks that differ, by ``skew`` at most.

    Args:
        max_delay_ms: The plan's.
        keep_ms: The plan's.
        written_ms: When it was written, UTC milliseconds.
    """
    return written_ms + max_delay_ms + keep_ms + DAY_MS


def read_cut_offs(data: bytes, latest_ms: int = MAX_TIME_MS) -> list[CutOff]:
    """Read a message of the log: one line for each cut-off.

    Args:
        data: The message.
        latest_ms: None of them is remembered for longer, whatever it says (`latest_forget_ms`).

    Raises:
        CutOffUnreadable: Some of it is none of ours, garbled, or of a later version; it has those that can be read.
    """
    try:
        # All lines at once: a pack has thousands, and JSON has no line's end within a line.
        return _read(data.strip(b"\n").replace(b"\n", b","), latest_ms)
    except _UNREADABLE as error:
        readable: list[CutOff] = []
        refused = 0
        for line in data.split(b"\n"):
            try:
                readable += _read(line, latest_ms)
            except _UNREADABLE:
                refused += 1
                if refused == MOST_REFUSED:
                    break
        raise CutOffUnreadable(data, str(error), readable) from error


_UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)


def _read(lines: bytes, latest_ms: int) -> list[CutOff]:
    return [_checked(latest_ms, *fields) for fields in json.loads(b"[%b]" % lines)]


def _checked(latest_ms: int, letter: object, name: object, cut: object, forget_ms: object) -> CutOff:
    if type(name) is not str or not 0 < len(name) <= _MAX_NAME_CHARS:
        raise TypeError(f"a name has 1 to {_MAX_NAME_CHARS} characters")
    if not name.isascii():
        name.encode()  # half of a surrogate pair is a ValueError: no timer has such an id
    if type(cut) is not int or not 0 <= cut <= MAX_GENERATION:
        raise ValueError("a cut is a whole number of at most 16 digits")
    if type(forget_ms) is not int or not 0 <= forget_ms <= 2 * MAX_TIME_MS:
        raise ValueError("a time is whole milliseconds since 1970")
    # As the class itself makes one, at half the cost: a start reads them by the million.
    return tuple.__new__(CutOff, (_OF_LETTER[letter], name, cut, min(latest_ms, forget_ms)))


def packs(cut_offs: Iterable[CutOff], most_bytes: int = PACK_BYTES) -> Iterator[bytes]:
    """Many cut-offs as few messages of the log: packs are only more cut-offs, so halves and repeats do no harm.

    Args:
        cut_offs: In any order.
        most_bytes: Of one message.
    """
    lines: list[bytes] = []
    size = 0
    for cut_off in cut_offs:
        line = cut_off.line().encode()
        if lines and size + len(line) + 1 > most_bytes:
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


class Stamps:
    """Numbers that order what happened to one timer id: microseconds by this machine's clock, none twice from here.

    Any thread may ask. Producers of one process share them, so that what one of them sent is before another's cancel.

    Args:
        chance: Draws what the clock does not say, so that two processes hardly ever make the same stamp.
    """

    __slots__ = ("_chance", "_last", "_lock")

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._last = 0
        self._lock = Lock()

    def new(self, now_ms: int, above: int = 0) -> int:
        """A stamp above ``above`` and above all that were made here.

        Args:
            now_ms: UTC milliseconds.
            above: A generation that is known: what replaces it comes after it, whatever the clock says.
        """
        drawn = now_ms * 1_000 + int(self._chance.random() * 1_000)
        with self._lock:
            self._last = min(max(drawn, above + 1, self._last + 1), MAX_GENERATION)
            return self._last


@unique
class Answer(Enum):
    """What a cancel can truthfully say when its cut-off is stored."""

    CERTAIN = "certain"
    """Stored well before the timer was due: no consumer hands it out."""
    TOO_CLOSE = "too close"
    """Stored when the timer was nearly or already due: it may have been handed out, and is not handed out again."""
    UNSEEN = "unseen"
    """When it is due was not said: what was sent before and was not handed out yet will not be. What another process
    sent within the plan's ``skew`` counts as before if clocks say so."""


class Cancellation(NamedTuple):
    """A cut-off that is stored.

    Args:
        answer: What it means for the timer.
        confirmed_ms: When the broker had it, by this machine's clock, UTC milliseconds.
        cut_off: What was stored.
    """

    answer: Answer
    confirmed_ms: int
    cut_off: CutOff


def answer_of(due_ms: int | None, confirmed_ms: int, skew_ms: int) -> Answer:
    """What may be promised.

    Args:
        due_ms: When the timer is due; None: not known.
        confirmed_ms: When its cut-off was confirmed.
        skew_ms: How far clocks may differ, by the plan.
    """
    if due_ms is None:
        return Answer.UNSEEN
    return Answer.CERTAIN if confirmed_ms < due_ms - skew_ms else Answer.TOO_CLOSE


def is_too_late(envelope: Envelope, now_ms: int, keep_ms: int) -> bool:
    """Whether a timer comes when its cut-off may have been forgotten: only an operator can say what becomes of it.

    Args:
        envelope: Its.
        now_ms: UTC milliseconds.
        keep_ms: The plan's.
    """
    return now_ms - first_wanted_ms(envelope) > keep_ms
