"""Events about handlers, except their failures: code around a handler, the inbox, and parked timers."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event

__all__ = ["AroundFailed", "InboxDidNotAnswer", "InboxLeaseLost", "InboxNotTold", "TimerParked"]


@event(
    "around_failed",
    "warning",
    means="What stands around a handler has raised in `after` or `failed`; the timer's fate was decided before.",
    do="Repair it; the event says which, and in which method.",
)
class AroundFailed(Event):
    around: str
    method: str
    timer_id: str | None
    error: str


@event(
    "inbox_did_not_answer",
    "error",
    means="The inbox's store cannot be asked; timers wait in the consumer's hands, and it is asked again each second.",
    do="See the error and the store.",
)
class InboxDidNotAnswer(Alarm):
    error: str


@event(
    "inbox_not_told",
    "error",
    means="A timer was handled, and the inbox's store could not be told; a copy would be handled once more.",
    do="See the store; the timer is acknowledged, so a copy comes only if that was lost.",
)
class InboxNotTold(Event):
    timer_id: str | None
    error: str


@event(
    "inbox_lease_lost",
    "error",
    means="A timer was handled, but its lease had ended, and another has claimed it since: it may be handled twice.",
    do="See why this process stood still, or the store's clock jumped, for longer than the lease of 30 seconds.",
)
class InboxLeaseLost(Event):
    timer_id: str | None


@event(
    "timer_parked",
    "error",
    means="A timer is parked: its handler gave it up, or it came so late that nobody can say whether it was cancelled.",
    do="See the reason; `timewheel parked list PLAN` has them all, and `parked replay` has them handled again.",
)
class TimerParked(Alarm):
    topic: str
    reason: str
