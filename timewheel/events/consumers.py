"""Events about consumers, and about messages that they publish again."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event

__all__ = [
    "AcknowledgeFailed",
    "EnvelopeUnreadable",
    "HandlerFailed",
    "HandlersLeftBehind",
    "RepublishFailed",
    "TimerFarTooEarly",
    "TimerTooNew",
]


@event(
    "handler_failed",
    "warning",
    means="A handler raised; its message is delivered again after the negative-acknowledgement delay.",
    do="Repair the handler.",
)
class HandlerFailed(Event):
    timer_id: str | None
    error: str


@event(
    "handlers_left_behind",
    "warning",
    means="`run` ended while handlers were still busy; their messages are delivered again.",
    do="Give `run` a longer drain time-out, or make handlers shorter.",
)
class HandlersLeftBehind(Event):
    handlers: int


@event(
    "acknowledge_failed",
    "warning",
    means="The client could not take an acknowledgement; that message is delivered again.",
    do="Nothing, unless it keeps on: then see the broker's log.",
)
class AcknowledgeFailed(Event):
    error: str


@event(
    "republish_failed",
    "error",
    means="A timer that was to be parked, handled again later, or published again since it came far too early, is not "
    "stored there; it stays unacknowledged, and that is tried again, or the broker delivers it again. What came "
    "far too early ten times is parked.",
    do="See the error: a topic that is missing (`timewheel topics ensure PLAN`), over its quota or terminated, or a "
    "permission to produce.",
)
class RepublishFailed(Alarm):
    timer: str
    error: str


@event(
    "timer_far_too_early",
    "error",
    means="A timer was delivered earlier than a consumer may hold it; it is to be published again under its due time.",
    do="Switch delayed delivery on for the topic, and check this machine's clock.",
)
class TimerFarTooEarly(Alarm):
    topic: str
    early_ms: int
    remedy: str


@event(
    "envelope_unreadable",
    "error",
    means="A message's timewheel properties are garbled, or name another subscription; it was handed out at once.",
    do="Find out who wrote it.",
)
class EnvelopeUnreadable(Alarm):
    topic: str
    error: str | None


@event(
    "timer_too_new",
    "error",
    means="A later version of timewheel wrote a timer, or a stranger a line that begins like one; the consumer gave it "
    "back to the broker, and it comes again. After ten times, or if there are many, it is parked; where a plan has no "
    "topic for that, many are handed out as unreadable.",
    do="Upgrade relays, then consumers, then producers; then have what was parked handled: `timewheel parked "
    "replay PLAN --all`.",
)
class TimerTooNew(Alarm):
    topic: str
    error: str | None
