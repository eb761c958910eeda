"""The pure decision about a timer that is due, before any handler has it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Literal, get_args

from timewheel.consumers.redirect import Parked, too_late_to_know
from timewheel.core.cancellations import is_too_late
from timewheel.core.durations import spelled
from timewheel.core.envelope import Envelope, first_wanted_ms

WhenOverdue = Literal["deliver", "drop", "park"]


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """Decides whether timers may be handed out, where they may be cancelled.

    Args:
        is_dead: Returns whether a timer is cut off, as far as this process knows now.
        keep_ms: Time after its due time that a timer's cancellation is certainly remembered.
    """

    is_dead: Callable[[Envelope], bool]
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The outcome of timers that arrive too late to be useful, for instance after an outage.

    Args:
        after: Lateness from which a timer is overdue; for a timer that is tried again, by its attempt's due time.
        then: ``"drop"`` it (it is acknowledged and counted), ``"park"`` it, or ``"deliver"`` it all the same.

    Raises:
        ValueError: A value is out of range.
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
        """True if a timer with this lateness is overdue."""
        return dt.timedelta(milliseconds=late_ms) > self.after


@unique
class Verdict(Enum):
    """The verdict about a due timer that is not parked."""

    HAND = "hand"
    """A handler may have the timer."""
    ASK = "ask"
    """The timer may have been cancelled: the log of cancellations must be asked first."""
    DEAD = "dead"
    """The timer was cancelled or replaced."""
    OVERDUE = "overdue"
    """The timer is too late to be useful."""


def judged(
    envelope: Envelope | None, now_ms: int, judge: DeliveryPolicy | None, overdue: Overdue | None
) -> Verdict | Parked:
    """Decide about a timer that is due.

    Args:
        envelope: Its envelope; None for a message without a due time, which is always handed out.
        now_ms: UTC milliseconds.
        judge: Judges cancelled timers; None if timers cannot be cancelled.
        overdue: Decides about late timers; None delivers them.
    """
    if envelope is None or (judge is None and overdue is None):
        return Verdict.HAND
    if judge is not None and judge.is_dead(envelope):
        # No question needed: a cancellation is never taken back.
        return Verdict.DEAD
    late_ms = now_ms - envelope.due_ms
    if overdue is not None and overdue.then != "deliver" and overdue.is_met(late_ms):
        if overdue.then == "drop":
            return Verdict.OVERDUE
        use = spelled(overdue.after // dt.timedelta(milliseconds=1))
        return Parked(f"it came {spelled(late_ms)} after its due time, and is useful for {use} only")
    if judge is None:
        return Verdict.HAND
    if is_too_late(envelope, now_ms, judge.keep_ms):
        return too_late_to_know(now_ms - first_wanted_ms(envelope), judge.keep_ms)
    return Verdict.ASK
