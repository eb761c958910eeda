"""Events about consumers, and about messages that they publish again."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event


@event(
    "handler_failed",
    "warning",
    means="A handler raised; its message comes again after the negative-acknowledgement delay.",
    do="Repair the handler.",
)
class HandlerFailed(Event):
    timer_id: str | None
    error: str


@event(
    "handlers_left_behind",
    "warning",
    means="`run` ended while handlers were busy; their messages come again.",
    do="Give `run` a longer drain time-out, or make handlers shorter.",
)
class HandlersLeftBehind(Event):
    handlers: int


@event(
    "acknowledge_failed",
    "warning",
    means="The client could not take an acknowledgement; that message comes again.",
    do="Nothing, unless it keeps on: then see the broker's log.",
)
class AcknowledgeFailed(Event):
    error: str


@event(
    "republish_failed",
    "error",
    means="A timer that was to be parked, retried, or published again since it came far too early, is not stored; it "
    "stays unacknowledged, and comes or is tried again. Ten times too early, it is parked.",
    do="See the error: a missing topic (`timewheel topics ensure PLAN`), its quota or termination, or a permission to "
    "produce.",
)
class RepublishFailed(Alarm):
    timer: str
    error: str


@event(
    "timer_far_too_early",
    "error",
    means="A timer came earlier than a consumer may hold it; it is published again under its due time.",
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
    do="Find its producer.",
)
class EnvelopeUnreadable(Alarm):
    topic: str
    error: str | None


@event(
    "timer_too_new",
    "error",
    means="A later version of timewheel wrote a timer, or a stranger a line that begins like that; the consumer gave "
    "it back. After ten times, or if there are many, it is parked, or handed out as unreadable if the plan has no "
    "topic for that.",
    do="Upgrade relays, then consumers, then producers; then `timewheel parked replay PLAN --all`.",
)
class TimerTooNew(Alarm):
    topic: str
    error: str | None
