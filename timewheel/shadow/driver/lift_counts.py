"""What a lifter has counted."""

from __future__ import annotations

from collections import Counter, deque

from timewheel.shadow.machine.lifting import Fate

__all__ = ["LiftCounts"]

LAGS = 1_000


class LiftCounts:
    """Of one partition; written by its thread and read by onlookers, without a lock.

    Attributes:
        lifted: Copies that are stored.
        deduplicated: Copies that the broker had already.
        handled: Entries that were acknowledged on some subscription when they were met.
        struck_again: Originals whose acknowledgement a broker had forgotten.
        stirs: Stirs that were published.
        failures: Sessions that began anew.
        caught_up: Whether the running session has gone through what was there when it began.
        fates: Entries by what became of them.
        lags_ms: From the publish of an original to that of its copy, of the last `LAGS` that came
            while a session ran; what it found when it began lagged for other reasons.
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
