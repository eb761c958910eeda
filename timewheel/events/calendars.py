"""Events about the topics of a calendar."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event


@event(
    "calendar_topic_opened",
    "info",
    means="A consumer follows a calendar to its next topic.",
    do="Nothing.",
)
class CalendarTopicOpened(Event):
    topic: str


@event(
    "calendar_topic_closed",
    "info",
    means="A consumer left a calendar's topic, whose interval has passed.",
    do="Nothing.",
)
class CalendarTopicClosed(Event):
    topic: str


@event(
    "calendar_topic_missing",
    "error",
    means="A calendar's next topic does not exist.",
    do="Run `timewheel topics roll PLAN` more often than once an interval.",
)
class CalendarTopicMissing(Event):
    topic: str
    remedy: str


@event(
    "calendar_topic_not_opened",
    "warning",
    means="The broker did not answer when a calendar's next topic was to be opened; the consumer asks again every "
    "second.",
    do="Nothing, unless it keeps on: then see the broker.",
)
class CalendarTopicNotOpened(Event):
    error: str


@event(
    "calendar_topic_deleted",
    "info",
    means="A passed topic was drained and deleted.",
    do="Nothing.",
)
class CalendarTopicDeleted(Event):
    topic: str


@event(
    "calendar_topic_stuck",
    "warning",
    means="A passed topic does not drain, so it is kept.",
    do="See its note: a consumer of that subscription must run. Never delete the topic by force.",
)
class CalendarTopicStuck(Event):
    topic: str
    note: str


@event(
    "calendar_roll_failed",
    "error",
    means="Topics could not be made ahead or removed; it is tried again.",
    do="See the error: timers of an interval without a topic cannot be sent.",
)
class CalendarRollFailed(Event):
    due_topic: str
    error: str
