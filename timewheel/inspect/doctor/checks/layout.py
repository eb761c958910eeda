"""Checks of the layout: namespaces, with their effects on all topics, topics, partitions and subscriptions."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.core.errors import TopologyError
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.inspect.doctor.finding import Check, Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import broker_command, is_on
from timewheel.inspect.missing_topics import NO_TOPIC
from timewheel.provision.foreign_settings import foreign_subscriptions
from timewheel.provision.former_findings import findings_of, left_behind
from timewheel.provision.provision_steps import (
    CreateMissedPartitions,
    CreateSubscription,
    CreateTopic,
    SetPolicy,
    Step,
    steps_for,
)
from timewheel.provision.provisioned import refuse_older, same_revision

MAX_NAMED = 3
MISSING_NAMESPACE = Kind(
    slug="missing-namespace",
    severity=Severity.ERROR,
    why="Topics of the plan belong into it, and a send to one of them is refused.",
    do="Make the namespace.",
)
MISSING_TOPIC = Kind(
    slug="missing-topic",
    severity=Severity.ERROR,
    why="A timer that should wait there is refused, or waits where no relay reads it.",
    do="Make the plan's topics.",
)
MISSING_PARTITION = Kind(
    slug="missing-partition",
    severity=Severity.ERROR,
    why="Making the topic was interrupted: timers of that partition are refused, and calls about the topic hang.",
    do="Make the missing partitions.",
)
MISSING_SUBSCRIPTION = Kind(
    slug="missing-subscription",
    severity=Severity.ERROR,
    why="Messages sent before the subscription exists are lost to it.",
    do="Make the subscription at the earliest position.",
)
TOPIC_IN_THE_WAY = Kind(
    slug="topic-in-the-way",
    severity=Severity.ERROR,
    why="The topic exists in a form that the plan cannot use, and no program should change it.",
    do="Change the plan, or the topic, by hand.",
)
UNGUARDED = Kind(
    slug="unguarded-topic",
    severity=Severity.INFO,
    why="A policy that the namespace gets later applies to this topic, too, and drops timers.",
    do="Set the topic's own policies.",
)
NO_TOPIC_POLICIES = Kind(
    slug="no-topic-policies",
    severity=Severity.ERROR,
    why="Without policies of topics a TTL or a quota of the namespace drops timers, and hops are not deduplicated.",
    do="Switch policies of topics on.",
)
FOREIGN_SUBSCRIPTION = Kind(
    slug="foreign-subscription",
    severity=Severity.WARNING,
    why="Messages that a foreign subscription does not acknowledge stay on disk for ever.",
    do="Remove the subscription if it is not needed.",
)
FORMER_TOPIC = Kind(
    slug="former-topic",
    severity=Severity.WARNING,
    why="Timers of an earlier plan wait here: relays or consumers of this plan move them on while they run, and parked "
    "timers wait for you.",
    do="Deal with parked timers; remove the topic when it is empty.",
)
LEFT_BEHIND = Kind(
    slug="left-behind",
    severity=Severity.ERROR,
    why="Timers of an earlier plan wait here, and this plan's relays and consumers do not read them by themselves.",
    do="Drain the topic before the first timer is due.",
)
_KINDS: dict[type[Step], Kind] = {
    CreateTopic: MISSING_TOPIC,
    CreateMissedPartitions: MISSING_PARTITION,
    CreateSubscription: MISSING_SUBSCRIPTION,
}


def _namespaces(seen: Seen) -> Iterator[Finding]:
    needed = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is None and name in needed:
            yield Finding(
                kind=MISSING_NAMESPACE,
                subject=name,
                read="there is no such namespace",
                cure=f"{seen.provisions} --create-namespaces",
            )
    if not seen.has_topic_policies and needed:
        yield Finding(
            kind=NO_TOPIC_POLICIES,
            subject="the broker",
            read="it has no policies of topics (405, Method Not Allowed)",
            cure="write topicLevelPoliciesEnabled=true and systemTopicEnabled=true into broker.conf, and restart "
            "the brokers one by one",
        )


def _topics(seen: Seen) -> Iterator[Finding]:
    older = [finding for topic in seen.topics if (finding := _older(seen, topic)) is not None]
    yield from older
    for topic in seen.topics:
        yield from _same_revision(seen, topic)
    # An older plan's topics may be missing for good reason, and nobody is to make them again.
    for topic in () if older else seen.topics:
        if topic.spec is None or seen.namespaces.get(topic.namespace) is None:
            continue
        try:
            steps = steps_for(topic.spec, topic.state)
        except TopologyError as error:
            yield Finding(kind=TOPIC_IN_THE_WAY, subject=topic.name, read=error.problem, cure=error.remedy)
            continue
        if isinstance(next(iter(steps), None), CreateTopic):
            steps = steps[:1]  # its creation includes all other steps
        for step in steps:
            kind = _KINDS.get(type(step))
            if kind is not None:
                yield Finding(kind=kind, subject=topic.name, read=_missing(step), cure=seen.provisions, fix=step)
        yield from _unguarded(seen, topic, [step for step in steps if isinstance(step, SetPolicy)])


def _older(seen: Seen, topic: SeenTopic) -> Finding | None:
    """Return the finding of a due topic that a later revision of the plan was provisioned for."""
    if seen.plan is None or topic.spec is None:
        return None
    try:
        refuse_older(seen.plan, topic.name, topic.state.provisioned, seen.target)
    except TopologyError as error:
        return Finding(kind=TOPIC_IN_THE_WAY, subject=topic.name, read=error.problem, cure=error.remedy)
    return None


def _same_revision(seen: Seen, topic: SeenTopic) -> Iterator[Finding]:
    """Yield the finding of a due topic that another plan of this revision was provisioned for."""
    if seen.plan is not None and topic.spec is not None:
        for found in same_revision(seen.plan, topic.name, topic.state.provisioned, seen.target):
            yield Finding(kind=TOPIC_IN_THE_WAY, subject=found.where, read=found.problem, cure=found.remedy)


def _missing(step: Step) -> str:
    match step:
        case CreateSubscription(subscription=name):
            return f"subscription {name} is missing, on some partition at least"
        case CreateMissedPartitions(missing=missing):
            return f"partitions {', '.join(map(str, missing))} are missing"
        case _:
            return NO_TOPIC


def _unguarded(seen: Seen, topic: SeenTopic, steps: list[SetPolicy]) -> Iterator[Finding]:
    """Find policies that are not set on the topic itself; the checks of each policy find those that do harm now."""
    lacking = [step for step in steps if topic.state.policies.get(step.policy) is None]
    if lacking and seen.has_topic_policies:
        yield Finding(
            kind=UNGUARDED,
            subject=topic.name,
            read=f"not set on the topic: {', '.join(str(step.policy) for step in lacking)}",
            cure=seen.provisions,
            fix=lacking[0],
        )


def _foreign(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None:
            continue
        for found in foreign_subscriptions(topic.spec, topic.state.subscriptions):
            read = found.problem + _connected(topic)
            yield Finding(kind=FOREIGN_SUBSCRIPTION, subject=found.where, read=read, cure=found.remedy)


def _connected(topic: SeenTopic) -> str:
    """Describe the consumers of foreign subscriptions on a topic of timewheel, as the end of a sentence."""
    known = () if topic.spec is None else topic.spec.subscriptions
    found = sorted(
        {
            f"{consumer.name} at {consumer.address}"
            for _, name, stats in topic.subscriptions()
            if name not in known
            for consumer in stats.consumers or ()
        }
    )
    return f"; connected: {', '.join(found[:MAX_NAMED])}" if found else ""


def _former(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None:
        return
    stranded = {topic.name for topic in left_behind(seen.plan, seen.former)}
    for found in findings_of(seen.plan, seen.former, seen.target):
        kind = LEFT_BEHIND if found.where in stranded else FORMER_TOPIC
        yield Finding(kind=kind, subject=found.where, read=found.problem, cure=found.remedy)


LAYOUT = (
    Check(
        kinds=(MISSING_NAMESPACE, NO_TOPIC_POLICIES),
        inspect=_namespaces,
        needs=frozenset({Source.NAMESPACES, Source.POLICIES}),
    ),
    Check(
        kinds=(MISSING_TOPIC, MISSING_PARTITION, MISSING_SUBSCRIPTION, TOPIC_IN_THE_WAY, UNGUARDED),
        inspect=_topics,
        needs=frozenset({Source.TOPICS, Source.NAMESPACES, Source.POLICIES}),
    ),
    Check(kinds=(FOREIGN_SUBSCRIPTION,), inspect=_foreign, needs=frozenset({Source.TOPICS})),
    Check(kinds=(FORMER_TOPIC, LEFT_BEHIND), inspect=_former, needs=frozenset({Source.TOPICS})),
)


REPLICATED = Kind(
    slug="replicated",
    severity=Severity.WARNING,
    why="A relay in each cluster would forward every timer, so that each is handled once for each cluster.",
    do="Give the plan a holding_namespace of its own that is not replicated.",
)
SCHEMAS_ENFORCED = Kind(
    slug="schemas-enforced",
    severity=Severity.INFO,
    why="Where a topic has a schema, producers without one are refused; timewheel's relays pass schemas on.",
    do="Send to the plan's topics with the schema.",
)
SCHEMAS_FROZEN = Kind(
    slug="schemas-frozen",
    severity=Severity.WARNING,
    why="A schema that the namespace does not know yet is refused there, and timers with it do not leave their topic.",
    do="Allow producers to register schemas, or upload them to all topics.",
)


def _places(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is None or name not in used:
            continue
        if len(policies.replication_clusters) > 1:
            clusters = ", ".join(policies.replication_clusters)
            yield Finding(
                kind=REPLICATED,
                subject=name,
                read=f"it is replicated: {clusters}",
                cure=f'write holding_namespace = "tenant/namespace", not replicated, into {seen.target}',
            )
        if policies.document.get("is_allow_auto_update_schema") is False:
            yield Finding(
                kind=SCHEMAS_FROZEN,
                subject=name,
                read=f"is_allow_auto_update_schema is false, set on the namespace {name}",
                cure=pulsar_admin("namespaces", "set-is-allow-auto-update-schema", name, "--enable"),
            )


def _enforced(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is not None and policies.schema_validation_enforced and name in used:
            yield Finding(
                kind=SCHEMAS_ENFORCED,
                subject=name,
                read=f"schema_validation_enforced, set on the namespace {name}",
                cure=pulsar_admin("namespaces", "set-schema-validation-enforce", name, "--disable"),
            )
    if is_on(seen.settings, "isSchemaValidationEnforced", default=False):
        yield Finding(
            kind=SCHEMAS_ENFORCED,
            subject="the broker",
            read="isSchemaValidationEnforced is true",
            cure=broker_command(seen, "isSchemaValidationEnforced", "false"),
        )


PLACES = (
    Check(kinds=(REPLICATED, SCHEMAS_FROZEN), inspect=_places, needs=frozenset({Source.NAMESPACES})),
    Check(kinds=(SCHEMAS_ENFORCED,), inspect=_enforced, needs=frozenset({Source.NAMESPACES, Source.SETTINGS})),
)


NOT_SEEN = Kind(
    slug="not-seen",
    severity=Severity.INFO,
    why="Checks that need unreadable data were left out, and may have found a problem.",
    do="Use a role that may see it; brokers and bookies take a superuser.",
)


def _sight(seen: Seen) -> Iterator[Finding]:
    for one in seen.unread:
        yield Finding(
            kind=NOT_SEEN,
            subject=one.subject,
            read=f"{one.source.value}: {one.reason}",
            cure=timewheel_command("doctor", seen.target, "--token-file", "TOKEN-OF-A-ROLE-THAT-MAY"),
        )


SIGHT = (Check(kinds=(NOT_SEEN,), inspect=_sight, needs=frozenset(), of_any_topic=True),)
