"""The counters of a mover."""

from __future__ import annotations

from collections import Counter, deque

from timewheel.shadow.machine.move_decider import MoveDecision

LAGS = 1_000


class MoveCounts:
    """The counters of a partition; written by its thread and read by others, without a lock.

    Attributes:
        moved: Copies that are stored.
        deduplicated: Copies that the broker had already.
        handled: Entries that some subscription had acknowledged when they were read.
        acked_again: Originals whose acknowledgement a broker had forgotten.
        nudges: Nudges that were published.
        failures: Sessions that began anew.
        caught_up: Whether the running session has processed all entries that existed when it began.
        decisions: Entries by decision.
        lags_ms: Times from the publish of an original to that of its copy, of the last `LAGS` originals that came while
            a session ran; those that it found when it began were late for other reasons.
    """

    __slots__ = (
        "acked_again",
        "caught_up",
        "decisions",
        "deduplicated",
        "failures",
        "handled",
        "lags_ms",
        "moved",
        "nudges",
    )

    def __init__(self) -> None:
        self.moved = self.deduplicated = self.handled = self.acked_again = self.nudges = self.failures = 0
        self.caught_up = False
        self.decisions: Counter[MoveDecision] = Counter()
        self.lags_ms: deque[int] = deque(maxlen=LAGS)
