"""Generated timer ids: ordered by time, unique across producers, cheap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

__all__ = ["TimerIds"]


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
