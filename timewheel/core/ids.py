"""Generated timer ids, ordered by time, unique across producers, cheap and readable; and ids from the positions of
messages that no SDK has sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol

from timewheel.core.durations import whole_number
from timewheel.core.envelope import MAX_TIMER_ID_CHARS
from timewheel.core.names import partition_of

_GENERATED = re.compile(r"([0-9a-f]{12})-([0-9a-f]{16})-([0-9a-f]{8,})", re.ASCII)


class GeneratedId(NamedTuple):
    """Fields of a generated timer id."""

    sent_ms: int  # send time of the timer, UTC milliseconds
    producer: str  # tag of the process that sent the timer
    number: int  # number of the id among the producer's generated ids, from 0

    @classmethod
    def parse(cls, timer_id: str) -> GeneratedId | None:
        """Parse a timer id; None: the id was not made by `TimerIds`, but by a caller."""
        match = _GENERATED.fullmatch(timer_id)
        return cls(int(match[1], 16), match[2], int(match[3], 16)) if match else None


class TimerIds:
    """Generates ids ``<12 hex of UTC ms>-<16 hex of this producer>-<8 hex of a counter>``.

    The ids sort by send time, which keeps a store of handled ids local, and contain the send time.

    Args:
        random_bytes: Returns the producer's 8 random bytes, called once (``os.urandom``); a fork needs a new instance.
    """

    __slots__ = ("_counter", "_newest", "_tag")

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._tag = random_bytes(8).hex()
        self._counter = count()
        self._newest = (-1, "")

    def new(self, now_ms: int) -> str:
        # Many ids are made within the same millisecond: they share everything but the counter. A single tuple, so that
        # threads never mix the time of one id with the prefix of another.
        made_ms, prefix = self._newest
        if made_ms != now_ms:
            prefix = f"{now_ms:012x}-{self._tag}-"
            self._newest = (now_ms, prefix)
        return f"{prefix}{next(self._counter):08x}"


class _Place(Protocol):
    """Position of an entry in its topic."""

    @property
    def ledger(self) -> int: ...
    @property
    def entry(self) -> int: ...


def native_id(part: str, position: _Place, batch_index: int = -1) -> str:
    """Return the timer id of a message that no SDK has sent: its position, so that copy and original share the id.
    ``part`` is the partition's full name; ``batch_index`` -1: the entry is no batch, as all that a shadow copies.
    """
    text = place_id(part, position.ledger, position.entry, batch_index)
    # The end distinguishes entries; a topic's name may be longer than an id.
    return text[-MAX_TIMER_ID_CHARS:]


def is_native_id(timer_id: str, topic: str) -> bool:
    """Return whether a timer id is a `native_id` of a topic: a shadow has copied the message from a position there."""
    place, _, entry = timer_id.rpartition(":")
    part, _, ledger = place.rpartition(":")
    if not part or whole_number(ledger) is None or whole_number(entry) is None:
        return False
    if len(timer_id) == MAX_TIMER_ID_CHARS:
        return partition_of(topic)[0].endswith(partition_of(part)[0])
    return partition_of(part)[0] == partition_of(topic)[0]


def place_id(part: str, ledger: int, entry: int, batch_index: int = -1) -> str:
    """Name a message by the position at which it is stored; the name has any length."""
    return f"{part}:{ledger}:{entry}" + (f":{batch_index}" if batch_index >= 0 else "")
