"""Events about relays, and about connections of any kind."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event


@event(
    "relay_session_crashed",
    "error",
    means="A partition began anew after an unexpected exception; nothing is lost.",
    do="Report it with its reason: it is a fault of timewheel or of the client.",
)
class RelaySessionCrashed(Event):
    topic: str
    reason: str


@event(
    "relay_session_failed",
    "warning",
    means="A partition began anew after a failed send or a lost connection; nothing is lost.",
    do="Nothing, unless it keeps on: then see the reason, and the broker's log.",
)
class RelaySessionFailed(Event):
    topic: str
    reason: str


@event(
    "connection_lost",
    "warning",
    means="A consumer or relay has had no connection for 5 s, and is not ready. The client goes on trying.",
    do="See the broker, the network, and the token (`token_expired`). Nothing is lost.",
)
class ConnectionLost(Event):
    topic: str


@event(
    "connection_back",
    "info",
    means="A lost connection is back.",
    do="Nothing.",
)
class ConnectionBack(Event):
    topic: str
    away_ms: int


@event(
    "relay_waits_for_lease",
    "info",
    means="Another relay still holds the named producer.",
    do="Nothing: this relay takes over within seconds of the other's end.",
)
class RelayWaitsForLease(Event):
    topic: str
    producer_name: str


@event(
    "relay_position_jumped",
    "info",
    means="A relay met a gap in a holding topic's positions: another relay did what lies between, or the subscription "
    "was skipped, cleared or moved.",
    do="Nothing while relays come and go. Otherwise those timers are gone: find out who skipped them.",
)
class RelayPositionJumped(Event):
    topic: str
    reason: str


@event(
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


@event(
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


@event(
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


@event(
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


@event(
    "relay_former_topics_unknown",
    "warning",
    means="The relay could not list topics of earlier plans; it goes on, and asks again.",
    do="Give it an admin URL that answers, or run `timewheel topics ensure PLAN`, which looks too.",
)
class RelayFormerTopicsUnknown(Event):
    due_topic: str
    reason: str


@event(
    "relay_drains_former_topic",
    "info",
    means="The relay reads a holding topic of an earlier plan, and moves its timers on by the present plan.",
    do="Once it is empty, `timewheel topics ensure PLAN --remove-drained` removes it.",
)
class RelayDrainsFormerTopic(Event):
    topic: str
    backlog: int


@event(
    "relay_former_topic_unreadable",
    "error",
    means="Timers wait in a topic of an earlier plan that this relay cannot drain; it is not ready.",
    do="See the reason: run the version of timewheel that made the topic, or make the topic in the reason.",
)
class RelayFormerTopicUnreadable(Event):
    topic: str
    backlog: int
    reason: str


@event(
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


@event(
    "relay_plans_refused",
    "error",
    means="The changed plan files cannot be served; the former plans go on. Once per reason.",
    do="See the reason: correct the file, or make the topics (`timewheel topics ensure PLAN`). They are read every "
    "second; a restart would fail with the same error.",
)
class RelayPlansRefused(Event):
    reason: str


@event(
    "relay_plan_not_started",
    "error",
    means="A relay of a new or changed plan, or of a shadow with a new state, could not begin. It is tried again; not "
    "ready meanwhile.",
    do="See the reason and the broker.",
)
class RelayPlanNotStarted(Event):
    due_topic: str
    reason: str


@event(
    "relay_plan_outdated",
    "warning",
    means="The due topic was provisioned by a later revision of the plan, or by another plan of the same revision. "
    "The relay goes on by the file that it has. Once per reason.",
    do="Give all processes the file that the reason names.",
)
class RelayPlanOutdated(Event):
    due_topic: str
    reason: str


@event(
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


@event(
    "relay_plan_dropped",
    "warning",
    means="A plan has left the plan files, and this process no longer serves it. `waiting` entries are in its holding "
    "topics, if known.",
    do="If some wait, let another relay serve that plan: else they are late, never lost.",
)
class RelayPlanDropped(Event):
    due_topic: str
    waiting: int | None
