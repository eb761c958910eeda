"""Timer ids that no caller gave: generated ones, ordered by time, unique across producers, cheap and readable; and the
places of messages that no SDK has sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol

from timewheel.core.envelope import MAX_TIMER_ID_CHARS

__all__ = ["GeneratedId", "TimerIds", "native_id", "place_id"]

_GENERATED = re.compile(r"([0-9a-f]{12})-([0-9a-f]{16})-([0-9a-f]{8,})", re.ASCII)


class GeneratedId(NamedTuple):
    """What a generated id says.

    Args:
        sent_ms: When the timer was sent, UTC milliseconds.
        producer: Of the process that sent it.
        number: Counts that producer's generated ids, from 0.
    """

    sent_ms: int
    producer: str
    number: int

    @classmethod
    def parse(cls, timer_id: str) -> GeneratedId | None:
        """Read an id; None if it is not one of `TimerIds`, but a caller's own."""
        match = _GENERATED.fullmatch(timer_id)
        return cls(int(match[1], 16), match[2], int(match[3], 16)) if match else None


class TimerIds:
    """Makes ids ``<12 hex of UTC ms>-<16 hex of this producer>-<8 hex of a counter>``.

    They sort by send time, which keeps a store of handled ids local, and say when a timer was sent.

    Args:
        random_bytes: Gives the producer's 8 random bytes, once (``os.urandom``); a fork needs a new instance.
    """

    __slots__ = ("_counter", "_newest", "_tag")

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._tag = random_bytes(8).hex()
        self._counter = count()
        self._newest = (-1, "")

    def new(self, now_ms: int) -> str:
        """The next id."""
        # Many are made within one millisecond: all but the counter is made once for them. One tuple, so that threads
        # never mix the time of one with the prefix of another.
        made_ms, prefix = self._newest
        if made_ms != now_ms:
            prefix = f"{now_ms:012x}-{self._tag}-"
            self._newest = (now_ms, prefix)
        return f"{prefix}{next(self._counter):08x}"


class _Place(Protocol):
    """Where an entry stands in its topic."""

    @property
    def ledger(self) -> int: ...
    @property
    def entry(self) -> int: ...


def native_id(part: str, position: _Place, batch_index: int = -1) -> str:
    """The timer id of a message that no SDK has sent: its place. So the copy and the original have the same.

    Args:
        part: Full name of the partition, or of a due topic without partitions.
        position: Of its entry.
        batch_index: Its number in a batch, of which no shadow makes copies; -1: its entry is no batch.
    """
    text = place_id(part, position.ledger, position.entry, batch_index)
    # The end tells entries apart; a topic's name may be longer than an id.
    return text[-MAX_TIMER_ID_CHARS:]


def place_id(part: str, ledger: int, entry: int, batch_index: int = -1) -> str:
    """A name for a message by where it is stored; as long as it is.

    Args:
        part: Full name of a partition, or of a topic without partitions.
        ledger: Of its entry.
        entry: Its entry.
        batch_index: Its number in a batch; -1: its entry is no batch.
    """
    return f"{part}:{ledger}:{entry}" + (f":{batch_index}" if batch_index >= 0 else "")
