"""Events about relays, and about connections of any kind."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event

__all__ = [
    "ConnectionBack",
    "ConnectionLost",
    "RelayDeadLetter",
    "RelayDrainsFormerTopic",
    "RelayFormerTopicUnreadable",
    "RelayFormerTopicsUnknown",
    "RelayGroupCut",
    "RelayHopsBeyondPlan",
    "RelayNamespaceDropped",
    "RelayNumbersUsedUp",
    "RelayPlanDropped",
    "RelayPlanNotStarted",
    "RelayPlansChanged",
    "RelayPlansRefused",
    "RelayPositionJumped",
    "RelaySessionCrashed",
    "RelaySessionFailed",
    "RelayWaitsForLease",
]


@event(
    "relay_session_crashed",
    "error",
    means="A partition began anew after an exception that should not arise; nothing is lost.",
    do="Report it with its reason: it is a fault of timewheel or of the client.",
)
class RelaySessionCrashed(Event):
    topic: str
    reason: str


@event(
    "relay_session_failed",
    "warning",
    means="A partition began anew after a failed send or a lost connection; nothing is lost.",
    do="Nothing, unless it keeps on: then see what the reason names, and the broker's log.",
)
class RelaySessionFailed(Event):
    topic: str
    reason: str


@event(
    "connection_lost",
    "warning",
    means="A consumer or a relay has had no connection for 5 s; it is not ready. The client goes on trying.",
    do="Look after the broker, the network, and a token that has expired (`token_expired`). Nothing is lost.",
)
class ConnectionLost(Event):
    topic: str


@event(
    "connection_back",
    "info",
    means="A connection that was told to be lost is there again.",
    do="Nothing.",
)
class ConnectionBack(Event):
    topic: str
    away_ms: int


@event(
    "relay_waits_for_lease",
    "info",
    means="Another relay still holds the named producer.",
    do="Nothing: this one takes over within seconds of the other's end.",
)
class RelayWaitsForLease(Event):
    topic: str
    producer_name: str


@event(
    "relay_position_jumped",
    "info",
    means="A relay met a gap in the positions of a holding topic behind which all can be read: another relay did what "
    "lies between, or somebody skipped, cleared or moved the subscription.",
    do="Nothing while relays come and go. Otherwise find out who skipped messages: those timers are gone.",
)
class RelayPositionJumped(Event):
    topic: str
    reason: str


@event(
    "relay_dead_letter",
    "warning",
    means="A message that is no timer, or that no topic takes, was moved to `<due topic>.tw.dead-letter`, with the "
    "properties `tw-dead-reason`, `tw-dead-from` and `tw-dead-at`. Of what the client hides the letter has its place "
    "only: `position` is then two, with `..` between.",
    do="`timewheel dead list PLAN` shows it: the subscription `timewheel-dead-letter` keeps it.",
)
class RelayDeadLetter(Alarm):
    topic: str
    reason: str
    position: str
    timer_id: str | None


@event(
    "relay_hops_beyond_plan",
    "warning",
    means="A timer has made more hops than any that this plan sends. It goes on; told once per partition.",
    do="Nothing after a change of the plan: raise `revision` with each, and older timers are told apart. Nothing "
    "after an outage in a plan with rings. Else look for a clock that is far off, or for who writes to its topics.",
)
class RelayHopsBeyondPlan(Event):
    topic: str
    timer_id: str
    hops: int
    bound: int


@event(
    "relay_group_cut",
    "error",
    means="The client sent a group of hops in several parts, so what became of each message is not known. All of them "
    "were sent once more, one by one: copies may arrive. If the relay died in that moment, some may be lost.",
    do="Report it: nothing that timewheel asks of the client does that. It needs a client with limits of its own.",
)
class RelayGroupCut(Event):
    topic: str
    destination: str
    messages: int


@event(
    "relay_numbers_used_up",
    "error",
    means="Somebody has sent to this destination under the name of the relay's producer, with a number that the relay "
    "cannot have used: brokers would drop all hops as seen before. Or another client has held that name for three "
    "minutes. The relay sends under a random name, and nothing is lost; after a crash some timers are stored twice.",
    do="Find out who may produce to the destination, and withdraw `produce` from all whom you do not trust with it.",
)
class RelayNumbersUsedUp(Alarm):
    topic: str
    destination: str


@event(
    "relay_former_topics_unknown",
    "warning",
    means="The relay could not ask which topics of earlier plans there are, and works all the same. It asks again.",
    do="Give it an admin URL that answers, or run `timewheel topics ensure PLAN`, which looks too.",
)
class RelayFormerTopicsUnknown(Event):
    due_topic: str
    reason: str


@event(
    "relay_drains_former_topic",
    "info",
    means="The relay reads a holding topic of an earlier plan, and moves its timers on by the present one.",
    do="Once it is empty, `timewheel topics ensure PLAN --remove-drained` removes it.",
)
class RelayDrainsFormerTopic(Event):
    topic: str
    backlog: int


@event(
    "relay_former_topic_unreadable",
    "error",
    means="Timers wait in a topic of an earlier plan that this relay cannot drain. It is not ready while they do.",
    do="See the reason: run the version of timewheel that made it, or make the topic that the reason names.",
)
class RelayFormerTopicUnreadable(Event):
    topic: str
    backlog: int
    reason: str


@event(
    "relay_plans_changed",
    "info",
    means="The plan files have changed: relays of added plans begin, those of removed ones drain and end, those of "
    "changed ones do both.",
    do="Nothing. See `/readyz`: it is 503 until all of them work.",
)
class RelayPlansChanged(Event):
    added: str
    removed: str
    changed: str


@event(
    "relay_plans_refused",
    "error",
    means="The plan files have changed to what cannot be served. The plans before go on; told once per reason.",
    do="See the reason: correct the file, or make the topics (`timewheel topics ensure PLAN`). It is looked at again "
    "every second; a restart would end with the same error.",
)
class RelayPlansRefused(Event):
    reason: str


@event(
    "relay_plan_not_started",
    "error",
    means="A relay of a new or changed plan, or of a shadow that changed its state, could not begin. It is tried again "
    "until it can; not ready meanwhile.",
    do="See the reason; look after the broker.",
)
class RelayPlanNotStarted(Event):
    due_topic: str
    reason: str


@event(
    "relay_namespace_dropped",
    "error",
    means="A changed plan has another `holding_namespace` and does not name the one before: no relay reads it any "
    "more. So many entries wait there, if that could be asked.",
    do="Write `former_namespaces` with that namespace into the plan; this process takes it up within seconds.",
)
class RelayNamespaceDropped(Event):
    due_topic: str
    namespace: str
    waiting: int | None


@event(
    "relay_plan_dropped",
    "warning",
    means="A plan is no longer in the plan files, and this process does not serve it any more. So many entries wait in "
    "its holding topics, if that could be asked.",
    do="If some wait, see that another relay serves that plan: else they are late, and never lost.",
)
class RelayPlanDropped(Event):
    due_topic: str
    waiting: int | None
