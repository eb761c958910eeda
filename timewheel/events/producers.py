"""Events about producers."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event


@event(
    "producer_closed_with_unknown_outcomes",
    "error",
    means="`close` did not wait longer for outcomes; those sends ended with `SendOutcomeUnknown`.",
    do="Send those timers again under the same ids.",
)
class ProducerClosedWithUnknownOutcomes(Event):
    unknown_count: int


@event(
    "send_callback_failed",
    "error",
    means="A callback of `send_async` raised; its timer's outcome stands.",
    do="Repair the callback.",
)
class SendCallbackFailed(Event):
    timer_id: str
    error: str


@event(
    "producer_close_failed",
    "warning",
    means="A producer of the client could not be closed in order; nothing depends on it.",
    do="Nothing.",
)
class ProducerCloseFailed(Event):
    topic: str
    error: str


@event(
    "producer_dispatcher_failed",
    "error",
    means="The thread that ends sends met an unexpected exception, and goes on.",
    do="Report it with its error: it is a fault of timewheel or of the client.",
)
class ProducerDispatcherFailed(Event):
    error: str
