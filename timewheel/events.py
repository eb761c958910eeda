"""Catalogue of events: everything that timewheel reports about itself, each event with its meaning and its remedy.

A new event is a new class here; `make docs-tables` writes it into docs/events.md.
"""

from __future__ import annotations

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
]

_E = TypeVar("_E", bound=Event)
_kinds: list[type[Event]] = []


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _event(name: str, level: Level, *, means: str, do: str) -> Callable[[type[_E]], type[_E]]:
    """Make a class of fields an entry of the catalogue: its name in logs, its level, its meaning, and the remedy."""

    def entered(kind: type[_E]) -> type[_E]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name, made.level, made.means, made.do = name, level, means, do
        _kinds.append(made)
        return made

    return entered


# Calendars
@_event("calendar_topic_opened", "info", means="A consumer follows a calendar to its next topic.", do="Nothing.")
class CalendarTopicOpened(Event):
    topic: str


@_event(
    "calendar_topic_closed",
    "info",
    means="A consumer left a calendar's topic, whose interval has passed.",
    do="Nothing.",
)
class CalendarTopicClosed(Event):
    topic: str


@_event(
    "calendar_topic_missing",
    "error",
    means="A calendar's next topic does not exist.",
    do="Run `timewheel topics roll PLAN` more often than once an interval.",
)
class CalendarTopicMissing(Event):
    topic: str
    remedy: str


@_event(
    "calendar_topic_not_opened",
    "warning",
    means="The broker did not answer when a calendar's next topic was to be opened; the consumer asks again every "
    "second.",
    do="Nothing, unless it keeps on: then see the broker.",
)
class CalendarTopicNotOpened(Event):
    error: str


@_event("calendar_topic_deleted", "info", means="A passed topic was drained and deleted.", do="Nothing.")
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


# The log of cancellations, by which timers are cancelled and replaced
@_event(
    "cancellations_not_read",
    "error",
    means="The log of cancellations cannot be read; consumers hold due timers, relays go on without dropping any.",
    do="See the error and the broker; run `timewheel topics ensure PLAN`.",
)
class CancellationsNotRead(Event):
    topic: str
    error: str


@_event(
    "cancellations_read_again", "info", means="The log of cancellations is read again, up to its end.", do="Nothing."
)
class CancellationsReadAgain(Event):
    topic: str


@_event(
    "timers_wait_for_cancellations",
    "error",
    means="The log of cancellations has not answered for two seconds whether due timers were cancelled.",
    do="See the broker that serves the log; the plan's `on_log_unavailable` holds or delivers them.",
)
class TimersWaitForCancellations(Alarm):
    topic: str
    waited_ms: int


@_event(
    "many_cancellations",
    "warning",
    means="Cancellations exceed four fifths of a process's limit.",
    do="Cancel groups, hand the timer and not only its id to `cancel`, or keep cancellations shorter.",
)
class ManyCancellations(Event):
    topic: str
    live: int
    limit: int


@_event(
    "cancellations_refused",
    "error",
    means="A process remembers as many cancellations as it can, and passes new ones over: their timers are handed out.",
    do="Find their writer; cancel groups, or hand the timer and not only its id to `cancel`.",
)
class CancellationsRefused(Alarm):
    topic: str
    refused: int
    limit: int


@_event(
    "cancellations_compacted",
    "info",
    means="The log of cancellations was compacted: processes start sooner.",
    do="Nothing.",
)
class CancellationsCompacted(Event):
    topic: str
    live: int


@_event(
    "cancellations_not_compacted",
    "warning",
    means="The log of cancellations could not be compacted; it grows, and processes start later.",
    do="See the error and the broker's log; `timewheel cancellations compact PLAN` compacts it.",
)
class CancellationsNotCompacted(Event):
    topic: str
    error: str


@_event(
    "cancellations_unknown",
    "warning",
    means="An entry in the log of cancellations is foreign, or of a later version; it is passed over.",
    do="Find its writer; upgrade this process.",
)
class CancellationsUnknown(Alarm):
    topic: str
    error: str


# Consumers, and messages that they publish again
@_event(
    "handler_failed",
    "warning",
    means="A handler raised; its message comes again after the negative-acknowledgement delay.",
    do="Repair the handler.",
)
class HandlerFailed(Event):
    timer_id: str | None
    error: str


@_event(
    "handlers_left_behind",
    "warning",
    means="`run` ended while handlers were busy; their messages come again.",
    do="Give `run` a longer drain time-out, or make handlers shorter.",
)
class HandlersLeftBehind(Event):
    handlers: int


@_event(
    "acknowledge_failed",
    "warning",
    means="The client could not take an acknowledgement; that message comes again.",
    do="Nothing, unless it keeps on: then see the broker's log.",
)
class AcknowledgeFailed(Event):
    error: str


@_event(
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


@_event(
    "timer_far_too_early",
    "error",
    means="A timer came earlier than a consumer may hold it; it is published again under its due time.",
    do="Switch delayed delivery on for the topic, and check this machine's clock.",
)
class TimerFarTooEarly(Alarm):
    topic: str
    early_ms: int
    remedy: str


@_event(
    "envelope_unreadable",
    "error",
    means="A message's timewheel properties are garbled, or name another subscription; it was handed out at once.",
    do="Find its producer.",
)
class EnvelopeUnreadable(Alarm):
    topic: str
    error: str | None


@_event(
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


# Handlers, except their failures: code around a handler, the inbox, and parked timers
@_event(
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


@_event(
    "inbox_did_not_answer",
    "error",
    means="The inbox's store does not answer; timers wait in the consumer, which asks again each second.",
    do="See the error and the store.",
)
class InboxDidNotAnswer(Alarm):
    error: str


@_event(
    "inbox_not_notified",
    "error",
    means="A timer was handled, and the inbox's store did not record it: a copy would be handled again.",
    do="See the store. A copy comes only if the acknowledgement was lost, too.",
)
class InboxNotNotified(Event):
    timer_id: str | None
    error: str


@_event(
    "inbox_lease_lost",
    "error",
    means="A timer was handled after its lease had ended and another had claimed it: it may be handled twice.",
    do="See why this process stood still, or the store's clock jumped, for longer than the lease of 30 seconds.",
)
class InboxLeaseLost(Event):
    timer_id: str | None


@_event(
    "timer_parked",
    "error",
    means="A timer is parked: its handler gave it up, or it came too late to know whether it was cancelled.",
    do="See the reason; `timewheel parked list PLAN` lists parked timers, `parked replay` has them handled.",
)
class TimerParked(Alarm):
    topic: str
    reason: str


# Commands, tokens, and hooks themselves
@_event(
    "broker_configuration_denied",
    "warning",
    means="The role may not read the broker's settings; the defaults of its version are assumed.",
    do="Use a superuser's token, or check the limits by hand.",
)
class BrokerConfigurationDenied(Event):
    endpoint: str
    reason: str
    consequence: str


@_event(
    "secret_file_open",
    "warning",
    means="Others can read a file with a token, a key, or a connection that holds a secret.",
    do="`chmod 600` it, and renew the secret if others may have read it.",
)
class SecretFileOpen(Event):
    path: str


@_event("hook_failed", "error", means="A hook raised; the other hooks got its event.", do="Repair the hook.")
class HookFailed(Event):
    hook: str
    error: str


@_event(
    "snapshot_failed",
    "warning",
    means="The exporter could not look at all; it exports the last snapshot, with its time.",
    do="See the error.",
)
class SnapshotFailed(Event):
    error: str


@_event(
    "relay_process_ended",
    "error",
    means="A relay process of `--processes` ended by itself; it is started again after a pause, and others take over "
    "its partitions.",
    do="See why in the log before it.",
)
class RelayProcessEnded(Event):
    relay_id: str
    exit_code: int
    again_in_ms: int


@_event(
    "token_expired",
    "error",
    means="The client shows a token that has expired by this machine's clock. The broker drops it silently, and the "
    "client tries for ever. Once per token.",
    do="Renew the token in its file: the client reads it again, and nothing is lost. A token given as text needs a "
    "restart.",
)
class TokenExpired(Event):
    source: str
    expired_at_ms: int


@_event(
    "token_unreadable",
    "warning",
    means="The token could not be read when the client asked for it; the client shows the last one.",
    do="See that the file is there. Renew it by a rename, so that it is never half written.",
)
class TokenUnreadable(Event):
    source: str
    reason: str


# Producers
@_event(
    "producer_closed_with_unknown_outcomes",
    "error",
    means="`close` did not wait longer for outcomes; those sends ended with `SendOutcomeUnknown`.",
    do="Send those timers again under the same ids.",
)
class ProducerClosedWithUnknownOutcomes(Event):
    unknown_count: int


@_event(
    "send_callback_failed",
    "error",
    means="A callback of `send_async` raised; its timer's outcome stands.",
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
    means="The thread that ends sends met an unexpected exception, and goes on.",
    do="Report it with its error: it is a fault of timewheel or of the client.",
)
class ProducerDispatcherFailed(Event):
    error: str


# Relays, and connections of any kind
@_event(
    "relay_session_crashed",
    "error",
    means="A partition began anew after an unexpected exception; nothing is lost.",
    do="Report it with its reason: it is a fault of timewheel or of the client.",
)
class RelaySessionCrashed(Event):
    topic: str
    reason: str


@_event(
    "relay_session_failed",
    "warning",
    means="A partition began anew after a failed send or a lost connection; nothing is lost.",
    do="Nothing, unless it keeps on: then see the reason, and the broker's log.",
)
class RelaySessionFailed(Event):
    topic: str
    reason: str


@_event(
    "connection_lost",
    "warning",
    means="A consumer or relay has had no connection for 5 s, and is not ready. The client goes on trying.",
    do="See the broker, the network, and the token (`token_expired`). Nothing is lost.",
)
class ConnectionLost(Event):
    topic: str


@_event("connection_back", "info", means="A lost connection is back.", do="Nothing.")
class ConnectionBack(Event):
    topic: str
    away_ms: int


@_event(
    "relay_waits_for_lease",
    "info",
    means="Another relay still holds the named producer.",
    do="Nothing: this relay takes over within seconds of the other's end.",
)
class RelayWaitsForLease(Event):
    topic: str
    producer_name: str


@_event(
    "relay_position_jumped",
    "info",
    means="A relay met a gap in a holding topic's positions: another relay did what lies between, or the subscription "
    "was skipped, cleared or moved.",
    do="Nothing while relays come and go. Otherwise those timers are gone: find out who skipped them.",
)
class RelayPositionJumped(Event):
    topic: str
    reason: str


@_event(
    "relay_dead_letter",
    "warning",
    means="A message that is no timer, or that no topic takes, was moved to `<due topic>.tw.dead-letter`, with the "
    "properties `tw-dead-reason`, `tw-dead-from` and `tw-dead-at`. Of messages that the client hides it has the place "
    "only: `position` is two, with `..` between.",
    do="`timewheel dead-letters list PLAN` shows it: the subscription `timewheel-dead-letter` keeps it.",
)
class RelayDeadLetter(Alarm):
    topic: str
    reason: str
    position: str
    timer_id: str | None


@_event(
    "relay_hops_beyond_plan",
    "warning",
    means="A timer has made more hops than this plan sends, and goes on. Once per partition.",
    do="Nothing after a change of the plan (raise `revision` with each), or after an outage with rings. Else look for "
    "a wrong clock, or a foreign writer to its topics.",
)
class RelayHopsBeyondPlan(Event):
    topic: str
    timer_id: str
    hops: int
    bound: int


@_event(
    "relay_batch_split",
    "error",
    means="The client split a group of hops, and the outcome of each message is unknown. All were sent once more, one "
    "by one: copies may arrive. If the relay died in that moment, some may be lost.",
    do="Report it: only a client with limits of its own does that.",
)
class RelayBatchSplit(Event):
    topic: str
    destination: str
    messages: int


@_event(
    "relay_numbers_used_up",
    "error",
    means="A foreign producer has used the name of the relay's producer with a number that the relay cannot have "
    "used: brokers would drop all hops as repeated. Or another client has held that name for three minutes. The relay "
    "sends under a random name, and nothing is lost; after a crash some timers are stored twice.",
    do="Find that producer, and withdraw `produce` on the destination from roles that you do not trust with it.",
)
class RelayNumbersUsedUp(Alarm):
    topic: str
    destination: str


@_event(
    "relay_former_topics_unknown",
    "warning",
    means="The relay could not list topics of earlier plans; it goes on, and asks again.",
    do="Give it an admin URL that answers, or run `timewheel topics ensure PLAN`, which looks too.",
)
class RelayFormerTopicsUnknown(Event):
    due_topic: str
    reason: str


@_event(
    "relay_drains_former_topic",
    "info",
    means="The relay reads a holding topic of an earlier plan, and moves its timers on by the present plan.",
    do="Once it is empty, `timewheel topics ensure PLAN --remove-drained` removes it.",
)
class RelayDrainsFormerTopic(Event):
    topic: str
    backlog: int


@_event(
    "relay_former_topic_unreadable",
    "error",
    means="Timers wait in a topic of an earlier plan that this relay cannot drain; it is not ready.",
    do="See the reason: run the version of timewheel that made the topic, or make the topic in the reason.",
)
class RelayFormerTopicUnreadable(Event):
    topic: str
    backlog: int
    reason: str


@_event(
    "relay_plans_changed",
    "info",
    means="The plan files have changed: relays of added plans begin, of removed plans drain and end, of changed plans "
    "both.",
    do="Nothing. `/readyz` is 503 until all work.",
)
class RelayPlansChanged(Event):
    added: str
    removed: str
    changed: str


@_event(
    "relay_plans_refused",
    "error",
    means="The changed plan files cannot be served; the former plans go on. Once per reason.",
    do="See the reason: correct the file, or make the topics (`timewheel topics ensure PLAN`). They are read every "
    "second; a restart would fail with the same error.",
)
class RelayPlansRefused(Event):
    reason: str


@_event(
    "relay_plan_not_started",
    "error",
    means="A relay of a new or changed plan, or of a shadow with a new state, could not begin. It is tried again; not "
    "ready meanwhile.",
    do="See the reason and the broker.",
)
class RelayPlanNotStarted(Event):
    due_topic: str
    reason: str


@_event(
    "relay_plan_outdated",
    "warning",
    means="The due topic was provisioned by a later revision of the plan, or by another plan of the same revision. "
    "The relay goes on by the file that it has. Once per reason.",
    do="Give all processes the file that the reason names.",
)
class RelayPlanOutdated(Event):
    due_topic: str
    reason: str


@_event(
    "relay_namespace_dropped",
    "error",
    means="A changed plan has another `holding_namespace` without the former: no relay reads it. `waiting` entries "
    "are there, if known.",
    do="Write `former_namespaces` with that namespace into the plan; this process takes it up within seconds.",
)
class RelayNamespaceDropped(Event):
    due_topic: str
    namespace: str
    waiting: int | None


@_event(
    "relay_plan_dropped",
    "warning",
    means="A plan has left the plan files, and this process no longer serves it. `waiting` entries are in its holding "
    "topics, if known.",
    do="If some wait, let another relay serve that plan: else they are late, never lost.",
)
class RelayPlanDropped(Event):
    due_topic: str
    waiting: int | None


# Shadows
@_event(
    "shadow_state",
    "info",
    means="A command changed the requested state of a shadow: shadowing, paused, draining, native.",
    do="Nothing.",
)
class ShadowState(Event):
    due_topic: str
    state: str


@_event(
    "shadow_refuses",
    "error",
    means="The topic forbids moving, such as by a subscription on which brokers delay nothing; moved timers still "
    "come in time.",
    do="Change the reason. Until then the topic gathers gaps as without a shadow.",
)
class ShadowRefuses(Event):
    due_topic: str
    reason: str


@_event(
    "shadow_inspection_fails",
    "warning",
    means="The admin API did not answer a shadow's request for state and subscriptions; after a minute nothing more "
    "is moved.",
    do="See the brokers' web service, and the shadow's rights to stats and properties.",
)
class ShadowInspectionFails(Event):
    due_topic: str
    reason: str


@_event(
    "shadow_misses_partitions",
    "warning",
    means="The due topic has more partitions than its plan: from those nothing is moved, and they gather gaps.",
    do="Write the number into the plan, run `timewheel topics ensure PLAN --grow`, and let shadows and relays read "
    "the plan again (SIGHUP, or wait a second).",
)
class ShadowMissesPartitions(Event):
    due_topic: str
    has: int
    plan: int


@_event(
    "shadow_waits_for_lease",
    "info",
    means="Another shadow moves from this partition, or did until just now.",
    do="Nothing: it takes over when the other is gone.",
)
class ShadowWaitsForLease(Event):
    topic: str


@_event(
    "shadow_move_failed",
    "warning",
    means="Moving from a partition began anew after an error, such as a reload of the topic. Nothing is lost: moved "
    "timers are acknowledged again, others stay.",
    do="Nothing, unless it keeps on: then see the reason, and the broker's log.",
)
class ShadowMoveFailed(Event):
    topic: str
    reason: str


@_event(
    "shadow_moves_again",
    "info",
    means="A mover began: it acknowledged again what a reload had made the broker forget.",
    do="Nothing. Many forgotten acknowledgements after each reload: the broker keeps too few ranges.",
)
class ShadowMovesAgain(Event):
    topic: str
    journal: int
    forgotten: int


@_event(
    "shadow_caught_up",
    "info",
    means="A mover has gone through the backlog of its partition.",
    do="When all partitions are caught up, an unload removes stale index entries from the broker's index.",
)
class ShadowCaughtUp(Event):
    topic: str
    moved: int


@_event(
    "shadow_stays_native",
    "warning",
    means="Timers far from due stay in the due topic, since they cannot be moved as they are. Once for each reason, "
    "with the place of the first.",
    do="Nothing, if they are few: the broker delivers them. If they are many, change how they are sent.",
)
class ShadowStaysNative(Event):
    topic: str
    why: str
    position: str
    reason: str


CATALOGUE: tuple[type[Event], ...] = tuple(_kinds)
"""Every kind of event that timewheel emits."""
