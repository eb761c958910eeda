"""Events about the log of cancellations, by which timers are cancelled and replaced."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event


@event(
    "cancellations_not_read",
    "error",
    means="The log of cancellations cannot be read; consumers hold due timers, relays go on without dropping any.",
    do="See the error and the broker; run `timewheel topics ensure PLAN`.",
)
class CancellationsNotRead(Event):
    topic: str
    error: str


@event(
    "cancellations_read_again",
    "info",
    means="The log of cancellations is read again, up to its end.",
    do="Nothing.",
)
class CancellationsReadAgain(Event):
    topic: str


@event(
    "timers_wait_for_cancellations",
    "error",
    means="The log of cancellations has not answered for two seconds whether due timers were cancelled.",
    do="See the broker that serves the log; the plan's `on_log_unavailable` holds or delivers them.",
)
class TimersWaitForCancellations(Alarm):
    topic: str
    waited_ms: int


@event(
    "many_cancellations",
    "warning",
    means="Cancellations exceed four fifths of a process's limit.",
    do="Cancel groups, hand the timer and not only its id to `cancel`, or keep cancellations shorter.",
)
class ManyCancellations(Event):
    topic: str
    live: int
    limit: int


@event(
    "cancellations_refused",
    "error",
    means="A process remembers as many cancellations as it can, and passes new ones over: their timers are handed out.",
    do="Find their writer; cancel groups, or hand the timer and not only its id to `cancel`.",
)
class CancellationsRefused(Alarm):
    topic: str
    refused: int
    limit: int


@event(
    "cancellations_compacted",
    "info",
    means="The log of cancellations was compacted: processes start sooner.",
    do="Nothing.",
)
class CancellationsCompacted(Event):
    topic: str
    live: int


@event(
    "cancellations_not_compacted",
    "warning",
    means="The log of cancellations could not be compacted; it grows, and processes start later.",
    do="See the error and the broker's log; `timewheel cancellations compact PLAN` compacts it.",
)
class CancellationsNotCompacted(Event):
    topic: str
    error: str


@event(
    "cancellations_unknown",
    "warning",
    means="An entry in the log of cancellations is foreign, or of a later version; it is passed over.",
    do="Find its writer; upgrade this process.",
)
class CancellationsUnknown(Alarm):
    topic: str
    error: str
