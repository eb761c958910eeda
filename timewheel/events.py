"""Catalogue of events: everything that timewheel reports about itself, each event with its meaning and its remedy.

A new event is a new class here; `make docs-tables` writes it into docs/events.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from timewheel.hooks import Alarm, Event, Level

__all__ = [
    "CATALOGUE",
    "AcknowledgeFailed",
    "BrokerConfigurationDenied",
    "CalendarRollFailed",
    "CalendarTopicClosed",
    "CalendarTopicDeleted",
    "CalendarTopicMissing",
    "CalendarTopicNotOpened",
    "CalendarTopicOpened",
    "CalendarTopicStuck",
    "CancellationsCompacted",
    "CancellationsNotCompacted",
    "CancellationsNotRead",
    "CancellationsReadAgain",
    "CancellationsRefused",
    "CancellationsUnknown",
    "ConnectionBack",
    "ConnectionLost",
    "ConsumerReplaced",
    "EnvelopeUnreadable",
    "HandlerFailed",
    "HandlersLeftBehind",
    "HookFailed",
    "InboxDidNotAnswer",
    "InboxLeaseLost",
    "InboxNotNotified",
    "ManyCancellations",
    "MiddlewareFailed",
    "ProducerCloseFailed",
    "ProducerClosedWithUnknownOutcomes",
    "ProducerDispatcherFailed",
    "ProducerReplaced",
    "RelayBatchSplit",
    "RelayDeadLetter",
    "RelayDrainsFormerTopic",
    "RelayFormerTopicUnreadable",
    "RelayFormerTopicsUnknown",
    "RelayHopsBeyondPlan",
    "RelayNamespaceDropped",
    "RelayNumbersUsedUp",
    "RelayPlanDropped",
    "RelayPlanNotStarted",
    "RelayPlanOutdated",
    "RelayPlansChanged",
    "RelayPlansRefused",
    "RelayPositionJumped",
    "RelayProcessEnded",
    "RelaySessionCrashed",
    "RelaySessionFailed",
    "RelayWaitsForLease",
    "RepublishFailed",
    "SecretFileOpen",
    "SendCallbackFailed",
    "ShadowCaughtUp",
    "ShadowInspectionFails",
    "ShadowMissesPartitions",
    "ShadowMoveFailed",
    "ShadowMovesAgain",
    "ShadowRefuses",
    "ShadowState",
    "ShadowStaysNative",
    "ShadowWaitsForLease",
    "SnapshotFailed",
    "TimerFarTooEarly",
    "TimerParked",
    "TimerTooNew",
    "TimersWaitForCancellations",
    "TokenExpired",
    "TokenUnreadable",
]  # fmt: skip

_E = TypeVar("_E", bound=Event)
_kinds: list[type[Event]] = []


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _event(level: Level, do: str = "Nothing.") -> Callable[[type[_E]], type[_E]]:
    """Make a class an entry of the catalogue: its doc string is the meaning, its snake-case name that in logs."""

    def entered(kind: type[_E]) -> type[_E]:
        means = " ".join((kind.__doc__ or "").split())  # before `dataclass`, which fills an empty doc string
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        made.level, made.means, made.do = level, means, do
        _kinds.append(made)
        return made

    return entered


# Calendars
@_event("info")
class CalendarTopicOpened(Event):
    """A consumer follows a calendar to its next topic."""

    topic: str


@_event("info")
class CalendarTopicClosed(Event):
    """A consumer left a calendar's topic, whose interval has passed."""

    topic: str


@_event("error", "Run `timewheel topics roll PLAN` more often than once an interval.")
class CalendarTopicMissing(Event):
    """A calendar's next topic does not exist."""

    topic: str
    remedy: str


@_event("warning", "Nothing, unless it keeps on: then see the broker.")
class CalendarTopicNotOpened(Event):
    """A calendar's next topic could not be opened; the consumer asks again every second."""

    error: str


@_event("info")
class CalendarTopicDeleted(Event):
    """A passed topic was drained and deleted."""

    topic: str


@_event("warning", "See its note: mostly a consumer must run. Never delete the topic by force.")
class CalendarTopicStuck(Event):
    """A passed topic is kept: it is not as planned, or was not drained or left by its clients for an hour."""

    topic: str
    note: str


@_event("error", "See the error: timers of an interval without a topic cannot be sent.")
class CalendarRollFailed(Event):
    """Topics could not be made ahead or removed; it is tried again."""

    due_topic: str
    error: str


# The log of cancellations, by which timers are cancelled and replaced
@_event("error", "See the error and the broker; run `timewheel topics ensure PLAN`.")
class CancellationsNotRead(Event):
    """The log of cancellations has not been read for two seconds; consumers hold due timers, relays drop none."""

    topic: str
    error: str


@_event("info")
class CancellationsReadAgain(Event):
    """The log of cancellations is read again, up to its end."""

    topic: str


@_event("error", "See the broker that serves the log; the plan's `on_log_unavailable` holds or delivers them.")
class TimersWaitForCancellations(Alarm):
    """The log of cancellations has not answered for two seconds whether due timers were cancelled."""

    topic: str
    waited_ms: int


@_event("warning", "Cancel groups, hand the timer and not only its id to `cancel`, or shorten `keep`.")
class ManyCancellations(Event):
    """Cancellations exceed four fifths of a process's limit."""

    topic: str
    live: int
    limit: int


@_event("error", "Find their writer; else as for `many_cancellations`.")
class CancellationsRefused(Alarm):
    """A process remembers no more cancellations: timers of new ones are handed out."""

    topic: str
    refused: int
    limit: int


@_event("info")
class CancellationsCompacted(Event):
    """The log of cancellations was compacted: processes start sooner."""

    topic: str
    live: int


@_event("warning", "See the error and the broker's log; `timewheel cancellations compact PLAN` compacts it.")
class CancellationsNotCompacted(Event):
    """The log of cancellations could not be compacted; it grows, and processes start later."""

    topic: str
    error: str


@_event("warning", "Find its writer; upgrade this process.")
class CancellationsUnknown(Alarm):
    """An entry in the log of cancellations is foreign, or of a later version; it is passed over."""

    topic: str
    error: str


# Consumers, and messages that they publish again
@_event("warning", "Repair the handler.")
class HandlerFailed(Event):
    """A handler raised; its message comes again after the negative-acknowledgement delay."""

    timer_id: str | None
    error: str


@_event("warning", "Give `run` a longer drain time-out, or make handlers shorter.")
class HandlersLeftBehind(Event):
    """`run` ended while handlers were busy; their messages come again."""

    handlers: int


@_event("warning", "Nothing, unless it keeps on: then see the broker's log.")
class AcknowledgeFailed(Event):
    """The client could not take an acknowledgement; that message comes again."""

    error: str


@_event(
    "error",
    "See the error: a missing topic (`timewheel topics ensure PLAN`), a quota, a termination, a permission.",
)
class RepublishFailed(Alarm):
    """A timer to be parked, retried, or published again since it came far too early, is not stored; it is tried
    again. Ten times too early, it is parked.
    """

    timer: str
    error: str


@_event("error", "Switch delayed delivery on for the topic, and check this machine's clock.")
class TimerFarTooEarly(Alarm):
    """A timer came earlier than a consumer may hold it; it is published again under its due time."""

    topic: str
    early_ms: int
    remedy: str


@_event("error", "Find its producer.")
class EnvelopeUnreadable(Alarm):
    """A message's timewheel properties are garbled, or name another subscription; it was handed out at once."""

    topic: str
    error: str | None


@_event("error", "Upgrade relays, then consumers, then producers; then `timewheel parked replay PLAN --all`.")
class TimerTooNew(Alarm):
    """A later version of timewheel, or a stranger, wrote a timer; the consumer gave it back. After ten times, or
    if there are many, it is parked, or handed out as unreadable if the plan has no topic for that.
    """

    topic: str
    error: str | None


# Handlers, except their failures: code around a handler, the inbox, and parked timers
@_event("warning", "Repair the object and method in the event.")
class MiddlewareFailed(Event):
    """A middleware raised in `after` or `failed`, after the timer's outcome was decided."""

    middleware: str
    method: str
    timer_id: str | None
    error: str


@_event("error", "See the error and the store.")
class InboxDidNotAnswer(Alarm):
    """The inbox's store does not answer; timers wait in the consumer, which asks again each second."""

    error: str


@_event("error", "See the store. A copy comes only if the acknowledgement was lost, too.")
class InboxNotNotified(Event):
    """A timer was handled, and the inbox's store did not record it: a copy would be handled again."""

    timer_id: str | None
    error: str


@_event("error", "See why this process stood still, or the store's clock jumped, for 30 seconds.")
class InboxLeaseLost(Event):
    """A timer was handled after its lease had ended and another had claimed it: it may be handled twice."""

    timer_id: str | None


@_event("error", "See the reason: `timewheel parked list PLAN`; `parked replay` has timers handled.")
class TimerParked(Alarm):
    """A timer is parked: its handler gave it up, or it came too late to know whether it was cancelled."""

    topic: str
    reason: str


# Commands, tokens, and hooks themselves
@_event("warning", "Use a superuser's token, or check the limits by hand.")
class BrokerConfigurationDenied(Event):
    """The role may not read the broker's settings; the defaults of its version are assumed."""

    endpoint: str
    reason: str
    consequence: str


@_event("warning", "`chmod 600` it, and renew the secret if others may have read it.")
class SecretFileOpen(Event):
    """Others can read a file with a token, a key, or a connection that holds a secret."""

    path: str


@_event("error", "Repair the hook.")
class HookFailed(Event):
    """A hook raised; the other hooks got its event."""

    hook: str
    error: str


@_event("warning", "See the error.")
class SnapshotFailed(Event):
    """The exporter could not look at all; it exports the last snapshot, with its time."""

    error: str


@_event("error", "See why in the log before it.")
class RelayProcessEnded(Event):
    """A relay process of `--processes` ended by itself; it is started again, and others take over its partitions."""

    relay_id: str
    exit_code: int
    again_in_ms: int


@_event("error", "Renew the token in its file: the client reads it again. A token given as text needs a restart.")
class TokenExpired(Event):
    """The client's token has expired by this machine's clock. Brokers drop it silently; the client
    tries for ever. Once per token.
    """

    source: str
    expired_at_ms: int


@_event("warning", "See that the file is there. Renew it by a rename, so that it is never half written.")
class TokenUnreadable(Event):
    """The token could not be read when the client asked for it; the client shows the last one."""

    source: str
    reason: str


# Producers
@_event("error", "Send those timers again under the same ids.")
class ProducerClosedWithUnknownOutcomes(Event):
    """`close` did not wait longer for outcomes; those sends ended with `SendOutcomeUnknown`."""

    unknown_count: int


@_event("error", "Repair the callback.")
class SendCallbackFailed(Event):
    """A callback of `send_async` raised; its timer's outcome stands."""

    timer_id: str
    error: str


@_event("warning")
class ProducerCloseFailed(Event):
    """A producer of the client could not be closed in order; nothing depends on it."""

    topic: str
    error: str


@_event("warning", "Nothing, unless it keeps on: then see the broker.")
class ProducerReplaced(Alarm):
    """A producer of the client was dead, as after an outage of its broker, and was replaced."""

    topic: str
    reason: str


@_event("error", "Report it with its error.")
class ProducerDispatcherFailed(Event):
    """The thread that ends sends met an unexpected exception, and goes on."""

    error: str


# Relays, and connections of any kind
@_event("error", "Report it with its reason.")
class RelaySessionCrashed(Event):
    """A partition began anew after an unexpected exception; nothing is lost."""

    topic: str
    reason: str


@_event("warning", "Nothing, unless it keeps on: then see the reason.")
class RelaySessionFailed(Event):
    """A partition began anew after a failed send or a lost connection; nothing is lost."""

    topic: str
    reason: str


@_event("warning", "See the broker, the network, and the token (`token_expired`). Nothing is lost.")
class ConnectionLost(Event):
    """A consumer or relay has had no connection for 5 s, and is not ready. Once a broker
    serves the topic, another connection is opened.
    """

    topic: str


@_event("info")
class ConnectionBack(Event):
    """A lost connection is back."""

    topic: str
    away_ms: int


@_event("info")
class ConsumerReplaced(Event):
    """A broker served a topic again before the client's consumer was back, which was replaced."""

    topic: str


@_event("info", "Nothing: this relay takes over within seconds of the other's end.")
class RelayWaitsForLease(Event):
    """Another relay still holds the named producer."""

    topic: str
    producer_name: str


@_event("info", "Nothing while relays come and go. Else those timers are gone: find who skipped them.")
class RelayPositionJumped(Event):
    """A relay met a gap in a holding topic's positions: another relay did what lies between, or the subscription
    was skipped, cleared or moved.
    """

    topic: str
    reason: str


@_event("warning", "`timewheel dead-letters list PLAN` shows it: the subscription `timewheel-dead-letter` keeps it.")
class RelayDeadLetter(Alarm):
    """A message that is no timer, or that no topic takes, was moved to `<due topic>.tw.dead-letter`; of messages that
    the client hides only their place: two positions, with `..` between.
    """

    topic: str
    reason: str
    position: str
    timer_id: str | None


@_event(
    "warning",
    "Nothing after a change of the plan (raise `revision`), or an outage with rings. Else look for a wrong clock or a "
    "foreign writer.",
)
class RelayHopsBeyondPlan(Event):
    """A timer has made more hops than this plan sends, and goes on. Once per partition."""

    topic: str
    timer_id: str
    hops: int
    bound: int


@_event("error", "Report it: only a client with limits of its own does that.")
class RelayBatchSplit(Event):
    """The client split a group of hops, and all were sent again: copies, or a loss if the relay died then."""

    topic: str
    destination: str
    messages: int


@_event("error", "Withdraw `produce` on the destination from roles that you do not trust.")
class RelayNumbersUsedUp(Alarm):
    """A foreign producer has used the relay's name with an impossible number, or has held it for three minutes. The
    relay sends under a random name, and nothing is lost; after a crash some timers are stored twice.
    """

    topic: str
    destination: str


@_event("warning", "Give it an admin URL that answers, or run `timewheel topics ensure PLAN`, which looks too.")
class RelayFormerTopicsUnknown(Event):
    """The relay could not list topics of earlier plans; it goes on, and asks again."""

    due_topic: str
    reason: str


@_event("info", "Once it is empty, `timewheel topics ensure PLAN --remove-drained` removes it.")
class RelayDrainsFormerTopic(Event):
    """The relay reads a holding topic of an earlier plan, and moves its timers on by the present plan."""

    topic: str
    backlog: int


@_event("error", "See the reason: run the version that made the topic, or make the missing topic.")
class RelayFormerTopicUnreadable(Event):
    """Timers wait in a topic of an earlier plan that this relay cannot drain; it is not ready."""

    topic: str
    backlog: int
    reason: str


@_event("info", "Nothing. `/readyz` is 503 until all work.")
class RelayPlansChanged(Event):
    """Plan files have changed: relays of added plans begin, of removed plans drain and end, of changed plans
    both.
    """

    added: str
    removed: str
    changed: str


@_event(
    "error",
    "See the reason: correct the file, or make the topics (`timewheel topics ensure PLAN`). A restart would fail, too.",
)
class RelayPlansRefused(Event):
    """The changed plan files cannot be served; the former plans go on. Once per reason."""

    reason: str


@_event("error", "See the reason and the broker.")
class RelayPlanNotStarted(Event):
    """A relay of a changed plan, or of a shadow with a new state, could not begin; not ready until it does."""

    due_topic: str
    reason: str


@_event("warning", "Give all processes the file that the reason names.")
class RelayPlanOutdated(Event):
    """The due topic was provisioned by a later or another plan. The relay goes on by its file. Once per reason."""

    due_topic: str
    reason: str


@_event(
    "error", "Write `former_namespaces` with that namespace into the plan; this process takes it up within seconds."
)
class RelayNamespaceDropped(Event):
    """A changed plan lacks the former `holding_namespace`: no relay reads it. `waiting` entries are there, if known."""

    due_topic: str
    namespace: str
    waiting: int | None


@_event("warning", "If some wait, let another relay serve that plan.")
class RelayPlanDropped(Event):
    """A plan has left the plan files, and is served no more. `waiting` entries are in its holding topics, if known."""

    due_topic: str
    waiting: int | None


# Shadows
@_event("info")
class ShadowState(Event):
    """A command changed the requested state of a shadow: shadowing, paused, draining, native."""

    due_topic: str
    state: str


@_event("error", "Change the reason. Until then the topic gathers gaps as without a shadow.")
class ShadowRefuses(Event):
    """The topic forbids moving, as by a subscription on which brokers do not delay; moved timers come in time."""

    due_topic: str
    reason: str


@_event("warning", "See the brokers' web service, and the shadow's rights to stats and properties.")
class ShadowInspectionFails(Event):
    """The admin API does not answer a shadow; after a minute nothing more is moved."""

    due_topic: str
    reason: str


@_event("warning", "Write the number into the plan, and run `timewheel topics ensure PLAN --grow`.")
class ShadowMissesPartitions(Event):
    """The due topic has more partitions than its plan: from those nothing is moved, and they gather gaps."""

    due_topic: str
    has: int
    plan: int


@_event("info", "Nothing: it takes over when the other is gone.")
class ShadowWaitsForLease(Event):
    """Another shadow moves from this partition, or did until just now."""

    topic: str


@_event("warning", "Nothing, unless it keeps on: then see the reason.")
class ShadowMoveFailed(Event):
    """Moving from a partition began anew after an error, as a reload of the topic. Nothing is lost."""

    topic: str
    reason: str


@_event("info", "Nothing. If many are forgotten at each reload, the broker keeps too few ranges.")
class ShadowMovesAgain(Event):
    """A mover began: it acknowledged again what a reload had made the broker forget."""

    topic: str
    journal: int
    forgotten: int


@_event("info", "When all partitions are caught up, an unload removes stale index entries.")
class ShadowCaughtUp(Event):
    """A mover has gone through the backlog of its partition."""

    topic: str
    moved: int


@_event("warning", "If they are many, change how they are sent.")
class ShadowStaysNative(Event):
    """Timers far from due cannot be moved as they are. Once for each reason, with the place of the first."""

    topic: str
    why: str
    position: str
    reason: str


CATALOGUE: tuple[type[Event], ...] = tuple(_kinds)
"""Every kind of event that timewheel emits."""
