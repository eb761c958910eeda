"""What becomes of a timer that is due, before any handler has it: the pure decision."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Literal, get_args

from timewheel.consumers.onward import Parked, too_late_to_judge
from timewheel.core.cut_offs import is_too_late
from timewheel.core.durations import spelled
from timewheel.core.envelope import Envelope, first_wanted_ms

__all__ = ["Judge", "Overdue", "Verdict", "judged"]

WhenOverdue = Literal["deliver", "drop", "park"]


@dataclass(frozen=True, slots=True)
class Judge:
    """Whether timers may be handed out, where they may be cancelled.

    Args:
        is_dead: Whether a timer was cut off, as far as is known here now.
        keep_ms: How long after its due time a timer's cut-off is remembered for certain.
    """

    is_dead: Callable[[Envelope], bool]
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """What becomes of timers that come too late to be of use, after an outage for instance.

    Args:
        after: How much later than its due time a timer is overdue. Of one that is tried again, its attempt's due time.
        then: ``"drop"`` it (it is acknowledged and counted), ``"park"`` it, or ``"deliver"`` it all the same.

    Raises:
        ValueError: One of them cannot be.
    """

    after: dt.timedelta
    then: WhenOverdue = "park"

    def __post_init__(self) -> None:
        after: object = self.after
        if not isinstance(after, dt.timedelta) or after <= dt.timedelta(0):
            raise ValueError(f"Overdue: after ({after!r}) must be a duration above 0")
        if self.then not in get_args(WhenOverdue):
            raise ValueError(f"Overdue: then ({self.then!r}) must be one of {', '.join(get_args(WhenOverdue))}")

    def is_met(self, late_ms: int) -> bool:
        """Whether a timer that comes so late is overdue."""
        return dt.timedelta(milliseconds=late_ms) > self.after


@unique
class Verdict(Enum):
    """On a timer that is due, and that is not parked."""

    HAND = "hand"
    """A handler may have it."""
    ASK = "ask"
    """It may have been cancelled: the log of cut-offs must be asked first."""
    DEAD = "dead"
    """It was cancelled or replaced."""
    OVERDUE = "overdue"
    """It is too late to be of use."""


def judged(envelope: Envelope | None, now_ms: int, judge: Judge | None, overdue: Overdue | None) -> Verdict | Parked:
    """Decide about a timer that is due.

    Args:
        envelope: Its; None: it says no due time, so it is nothing of this.
        now_ms: UTC milliseconds.
        judge: Where timers may be cancelled.
        overdue: What becomes of late ones; None: they are delivered.
    """
    if envelope is None or (judge is None and overdue is None):
        return Verdict.HAND
    if judge is not None and judge.is_dead(envelope):
        # No question needed: nothing takes a cut-off back.
        return Verdict.DEAD
    late_ms = now_ms - envelope.due_ms
    if overdue is not None and overdue.then != "deliver" and overdue.is_met(late_ms):
        if overdue.then == "drop":
            return Verdict.OVERDUE
        use = spelled(overdue.after // dt.timedelta(milliseconds=1))
        return Parked(f"it came {spelled(late_ms)} after its due time, and is of use for {use} only")
    if judge is None:
        return Verdict.HAND
    if is_too_late(envelope, now_ms, judge.keep_ms):
        return too_late_to_judge(now_ms - first_wanted_ms(envelope), judge.keep_ms)
    return Verdict.ASK
