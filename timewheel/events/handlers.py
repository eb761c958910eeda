"""Events about handlers, except their failures: code around a handler, the inbox, and parked timers."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event


@event(
    "middleware_failed",
    "warning",
    means="A middleware raised in `after` or `failed`, after the timer's outcome was decided.",
    do="Repair the object and method in the event.",
)
class MiddlewareFailed(Event):
    middleware: str
    method: str
    timer_id: str | None
    error: str


@event(
    "inbox_did_not_answer",
    "error",
    means="The inbox's store does not answer; timers wait in the consumer, which asks again each second.",
    do="See the error and the store.",
)
class InboxDidNotAnswer(Alarm):
    error: str


@event(
    "inbox_not_notified",
    "error",
    means="A timer was handled, and the inbox's store did not record it: a copy would be handled again.",
    do="See the store. A copy comes only if the acknowledgement was lost, too.",
)
class InboxNotNotified(Event):
    timer_id: str | None
    error: str


@event(
    "inbox_lease_lost",
    "error",
    means="A timer was handled after its lease had ended and another had claimed it: it may be handled twice.",
    do="See why this process stood still, or the store's clock jumped, for longer than the lease of 30 seconds.",
)
class InboxLeaseLost(Event):
    timer_id: str | None


@event(
    "timer_parked",
    "error",
    means="A timer is parked: its handler gave it up, or it came too late to know whether it was cancelled.",
    do="See the reason; `timewheel parked list PLAN` lists parked timers, `parked replay` has them handled.",
)
class TimerParked(Alarm):
    topic: str
    reason: str
