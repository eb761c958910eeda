"""The catalogue of events: everything that timewheel tells of itself, each with what it means and what to do.

A new event is a new class here; `make docs-tables` writes it into docs/events.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from timewheel.hooks import Alarm, Event, Level

__all__ = [
    "CATALOGUE", "AcknowledgeFailed", "BrokerConfigurationDenied", "CalendarRollFailed", "CalendarTopicClosed",
    "CalendarTopicDeleted", "CalendarTopicMissing", "CalendarTopicNotOpened", "CalendarTopicOpened",
    "CalendarTopicStuck", "ConnectionBack", "ConnectionLost", "EnvelopeUnreadable", "HandlerFailed",
    "HandlersLeftBehind", "HookFailed", "ProducerCloseFailed", "ProducerClosedWithUnknownOutcomes",
    "ProducerDispatcherFailed", "RelayDeadLetter", "RelayDrainsFormerTopic", "RelayFormerTopicUnreadable",
    "RelayFormerTopicsUnknown", "RelayHopsBeyondPlan", "RelayPartitionStopped", "RelayPositionJumped",
    "RelaySessionCrashed", "RelaySessionFailed", "RelayWaitsForLease", "RepublishFailed", "SendCallbackFailed",
    "TimerFarTooEarly", "TimerTooNew",
]  # fmt: skip

E = TypeVar("E", bound=Event)
_kinds: list[type[Event]] = []


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _event(name: str, level: Level, *, means: str, do: str) -> Callable[[type[E]], type[E]]:
    """Make a class of fields an entry of the catalogue."""

    def entered(kind: type[E]) -> type[E]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name, made.level, made.means, made.do = name, level, means, do
        _kinds.append(made)
        return made

    return entered


@_event(
    "relay_partition_stopped",
    "error",
    means="A hole in the positions, content that cannot be decrypted, or a timer that a later version of timewheel "
    "wrote; acknowledging across it would lose messages.",
    do="By the reason: look at the named position with the admin API, repair it or skip it by hand, then restart the "
    "relay; or upgrade the relay.",
)
class RelayPartitionStopped(Event):
    topic: str
    reason: str


@_event(
    "relay_session_crashed",
    "error",
    means="A partition began anew after an exception that should not arise; nothing is lost.",
    do="Report it with its reason: it is a fault of timewheel or of the client.",
)
class RelaySessionCrashed(Event):
    topic: str
    reason: str


@_event(
    "relay_session_failed",
    "warning",
    means="A partition began anew after a failed send or a lost connection; nothing is lost.",
    do="Nothing, unless it keeps on: then see what the reason names, and the broker's log.",
)
class RelaySessionFailed(Event):
    topic: str
    reason: str


@_event(
    "connection_lost",
    "warning",
    means="A consumer or a relay has had no connection for 5 s; it is not ready. The client goes on trying.",
    do="Look after the broker and the network. Nothing is lost.",
)
class ConnectionLost(Event):
    topic: str


@_event(
    "connection_back",
    "info",
    means="A connection that was told to be lost is there again.",
    do="Nothing.",
)
class ConnectionBack(Event):
    topic: str
    away_ms: int


@_event(
    "relay_waits_for_lease",
    "info",
    means="Another relay still holds the named producer.",
    do="Nothing: this one takes over within seconds of the other's end.",
)
class RelayWaitsForLease(Event):
    topic: str
    producer_name: str


@_event(
    "relay_position_jumped",
    "warning",
    means="Somebody skipped, cleared or moved the holding topic's subscription; timers that were skipped are gone.",
    do="Find out who did it.",
)
class RelayPositionJumped(Event):
    topic: str
    reason: str


@_event(
    "relay_dead_letter",
    "warning",
    means="A garbled, foreign or endless envelope was moved to `<due topic>.tw.dead-letter`, with the properties "
    "`tw-dead-reason` and `tw-dead-from`.",
    do="Read it there: the subscription `timewheel-dead-letter` keeps it.",
)
class RelayDeadLetter(Event):
    topic: str
    reason: str


@_event(
    "relay_hops_beyond_plan",
    "warning",
    means="A timer has made more hops than any that this plan sends. It goes on; told once per partition.",
    do="Nothing after a change of the plan: raise `revision` with each, and older timers are told apart. Else look "
    "for a clock that is far off.",
)
class RelayHopsBeyondPlan(Event):
    topic: str
    timer_id: str
    hops: int
    bound: int


@_event(
    "relay_former_topics_unknown",
    "warning",
    means="The relay could not ask which topics of earlier plans there are, and works all the same. It asks again.",
    do="Give it an admin URL that answers, or run `timewheel topics ensure`, which looks too.",
)
class RelayFormerTopicsUnknown(Event):
    due_topic: str
    reason: str


@_event(
    "relay_drains_former_topic",
    "info",
    means="The relay reads a holding topic of an earlier plan, and moves its timers on by the present one.",
    do="Once it is empty, `timewheel topics ensure PLAN --remove-drained` removes it.",
)
class RelayDrainsFormerTopic(Event):
    topic: str
    backlog: int


@_event(
    "relay_former_topic_unreadable",
    "error",
    means="Timers wait in a topic of an earlier plan that this relay cannot drain. It is not ready while they do.",
    do="See the reason: run the version of timewheel that made it, or mend the topic that is missing.",
)
class RelayFormerTopicUnreadable(Event):
    topic: str
    backlog: int
    reason: str


@_event(
    "handler_failed",
    "warning",
    means="A handler raised; its message is delivered again after the negative-acknowledgement delay.",
    do="Repair the handler.",
)
class HandlerFailed(Event):
    timer_id: str | None
    error: str


@_event(
    "handlers_left_behind",
    "warning",
    means="`run` ended while handlers were still busy; their messages are delivered again.",
    do="Give `run` a longer drain time-out, or make handlers shorter.",
)
class HandlersLeftBehind(Event):
    handlers: int


@_event(
    "acknowledge_failed",
    "warning",
    means="The client could not take an acknowledgement; that message is delivered again.",
    do="Nothing, unless it keeps on: then see the broker's log.",
)
class AcknowledgeFailed(Event):
    error: str


@_event(
    "republish_failed",
    "error",
    means="A timer that came far too early could not be published again; it stays unacknowledged and is tried again.",
    do="See the error and the broker's log.",
)
class RepublishFailed(Event):
    timer: str
    error: str


@_event(
    "timer_far_too_early",
    "error",
    means="A timer was delivered earlier than a consumer may hold it, and is published again under its due time.",
    do="Switch delayed delivery on for the topic, and check this machine's clock.",
)
class TimerFarTooEarly(Alarm):
    topic: str
    early_ms: int
    remedy: str


@_event(
    "envelope_unreadable",
    "error",
    means="A message's timewheel properties are garbled; it was handed out at once.",
    do="Find out who wrote it.",
)
class EnvelopeUnreadable(Alarm):
    topic: str
    error: str | None


@_event(
    "timer_too_new",
    "error",
    means="A later version of timewheel wrote a timer; the consumer gave it back to the broker, and it comes again.",
    do="Upgrade the consumers: relays first, then consumers, then producers.",
)
class TimerTooNew(Alarm):
    topic: str
    error: str | None


@_event(
    "calendar_topic_opened",
    "info",
    means="A consumer follows a calendar to its next topic.",
    do="Nothing.",
)
class CalendarTopicOpened(Event):
    topic: str


@_event(
    "calendar_topic_closed",
    "info",
    means="A consumer has left a calendar's topic: its interval has passed and all is quiet there.",
    do="Nothing.",
)
class CalendarTopicClosed(Event):
    topic: str


@_event(
    "calendar_topic_missing",
    "error",
    means="A calendar's next topic does not exist.",
    do="Make sure that `timewheel topics roll` runs, and more often than once an interval.",
)
class CalendarTopicMissing(Event):
    topic: str
    remedy: str


@_event(
    "calendar_topic_not_opened",
    "warning",
    means="The broker did not answer when a calendar's next topic was to be opened; it is asked again every second.",
    do="Nothing, unless it keeps on: then look after the broker.",
)
class CalendarTopicNotOpened(Event):
    error: str


@_event(
    "calendar_topic_deleted",
    "info",
    means="A passed topic was drained and has been deleted.",
    do="Nothing.",
)
class CalendarTopicDeleted(Event):
    topic: str


@_event(
    "calendar_topic_stuck",
    "warning",
    means="A passed topic does not drain, so it is kept.",
    do="See its note: a consumer of that subscription must run. Never delete the topic by force.",
)
class CalendarTopicStuck(Event):
    topic: str
    note: str


@_event(
    "calendar_roll_failed",
    "error",
    means="Topics could not be made ahead or removed; it is tried again.",
    do="See the error: timers of an interval without a topic cannot be sent.",
)
class CalendarRollFailed(Event):
    due_topic: str
    error: str


@_event(
    "producer_closed_with_unknown_outcomes",
    "error",
    means="`close` gave up waiting for outcomes; those sends ended with `SendOutcomeUnknown`.",
    do="Send those timers again under the same ids.",
)
class ProducerClosedWithUnknownOutcomes(Event):
    unknown_count: int


@_event(
    "send_callback_failed",
    "error",
    means="A callback of `send_async` raised; its timer's outcome is as it was told to it.",
    do="Repair the callback.",
)
class SendCallbackFailed(Event):
    timer_id: str
    error: str


@_event(
    "producer_close_failed",
    "warning",
    means="A producer of the client could not be closed in order; nothing depends on it.",
    do="Nothing.",
)
class ProducerCloseFailed(Event):
    topic: str
    error: str


@_event(
    "producer_dispatcher_failed",
    "error",
    means="The thread that ends sends met an exception that should not arise, and goes on.",
    do="Report it with its error: it is a fault of timewheel or of the client.",
)
class ProducerDispatcherFailed(Event):
    error: str


@_event(
    "broker_configuration_denied",
    "warning",
    means="The role may not read the broker's settings, so those of its version are assumed.",
    do="Give the command a superuser's token, or check the limits by hand.",
)
class BrokerConfigurationDenied(Event):
    endpoint: str
    reason: str
    consequence: str


@_event(
    "hook_failed",
    "error",
    means="A hook raised; the event that it was told of went to the other hooks.",
    do="Repair the hook.",
)
class HookFailed(Event):
    hook: str
    error: str


CATALOGUE: tuple[type[Event], ...] = tuple(_kinds)
"""Every kind of event that timewheel emits."""
