"""The counters of a lifter."""

from __future__ import annotations

from collections import Counter, deque

from timewheel.shadow.machine.lifting import Fate

__all__ = ["LiftCounts"]

LAGS = 1_000


class LiftCounts:
    """The counters of a partition; written by its thread and read by others, without a lock.

    Attributes:
        lifted: Copies that are stored.
        deduplicated: Copies that the broker had already.
        handled: Entries that some subscription had acknowledged when they were read.
        struck_again: Originals whose acknowledgement a broker had forgotten.
        stirs: Stirs that were published.
        failures: Sessions that began anew.
        caught_up: Whether the running session has processed all entries that existed when it began.
        fates: Entries by fate.
        lags_ms: Times from the publish of an original to that of its copy, of the last `LAGS` originals that came while
            a session ran; those that it found when it began were late for other reasons.
    """

    __slots__ = (
        "caught_up",
        "deduplicated",
        "failures",
        "fates",
        "handled",
        "lags_ms",
        "lifted",
        "stirs",
        "struck_again",
    )

    def __init__(self) -> None:
        self.lifted = self.deduplicated = self.handled = self.struck_again = self.stirs = self.failures = 0
        self.caught_up = False
        self.fates: Counter[Fate] = Counter()
        self.lags_ms: deque[int] = deque(maxlen=LAGS)
