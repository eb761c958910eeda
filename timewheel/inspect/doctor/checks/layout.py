"""Checks of the layout: namespaces, with their effects on all topics, topics, partitions and subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from timewheel.core.errors import TopologyError
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.inspect.doctor.seen import Seen, SeenTopic, check
from timewheel.inspect.doctor.settings import broker_command, is_on
from timewheel.inspect.missing_topics import NO_TOPIC
from timewheel.inspect.reader import Source
from timewheel.provision.findings import Finding, Kind, error_kind, note_kind, warning_kind
from timewheel.provision.foreign_settings import (
    FOREIGN_SUBSCRIPTION,
    REPLICATED,
    foreign_subscriptions,
    replication_findings,
)
from timewheel.provision.former_topics import FORMER_TOPIC, findings_of, left_behind
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
# fmt: off
MISSING_NAMESPACE = error_kind(slug="missing-namespace", do="Make the namespace.",
    why="Topics of the plan belong into it, and a send to one of them is refused.")
MISSING_TOPIC = error_kind(slug="missing-topic", do="Make the plan's topics.",
    why="A timer that should wait there is refused, or waits where no relay reads it.")
MISSING_PARTITION = error_kind(slug="missing-partition", do="Make the missing partitions.",
    why="Making the topic was interrupted: timers of that partition are refused, and calls about the topic hang.")
MISSING_SUBSCRIPTION = error_kind(slug="missing-subscription", do="Make the subscription at the earliest position.",
    why="Messages sent before the subscription exists are lost to it.")
TOPIC_IN_THE_WAY = error_kind(slug="topic-in-the-way", do="Change the plan, or the topic, by hand.",
    why="The topic exists in a form that the plan cannot use, and no program should change it.")
UNGUARDED = note_kind(slug="unguarded-topic", do="Set the topic's own policies.",
    why="A policy that the namespace gets later applies to this topic, too, and drops timers.")
NO_TOPIC_POLICIES = error_kind(slug="no-topic-policies", do="Switch policies of topics on.",
    why="Without policies of topics a TTL or a quota of the namespace drops timers, and hops are not deduplicated.")
LEFT_BEHIND = error_kind(slug="left-behind", do="Drain the topic before the first timer is due.",
    why="Timers of an earlier plan wait here, and this plan's relays and consumers do not read them by themselves.")
# fmt: on
_KINDS: dict[type[Step], Kind] = {
    CreateTopic: MISSING_TOPIC,
    CreateMissedPartitions: MISSING_PARTITION,
    CreateSubscription: MISSING_SUBSCRIPTION,
}


@check(MISSING_NAMESPACE, NO_TOPIC_POLICIES, needs={Source.NAMESPACES, Source.POLICIES})
def _namespaces(seen: Seen) -> Iterator[Finding]:
    needed = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is None and name in needed:
            yield MISSING_NAMESPACE.at(
                name, read="there is no such namespace", cure=f"{seen.provisions} --create-namespaces"
            )
    if not seen.has_topic_policies and needed:
        yield NO_TOPIC_POLICIES.at(
            "the broker",
            read="it has no policies of topics (405, Method Not Allowed)",
            cure="write topicLevelPoliciesEnabled=true and systemTopicEnabled=true into broker.conf, and restart "
            "the brokers one by one",
        )


@check(
    MISSING_TOPIC,
    MISSING_PARTITION,
    MISSING_SUBSCRIPTION,
    TOPIC_IN_THE_WAY,
    UNGUARDED,
    needs={Source.TOPICS, Source.NAMESPACES, Source.POLICIES},
)
def _topics(seen: Seen) -> Iterator[Finding]:
    older, same = _revisions(seen)
    yield from older
    yield from same
    # An older plan's topics may be missing for good reason, and nobody is to make them again.
    for topic in () if older else seen.topics:
        if topic.spec is None or seen.namespaces.get(topic.namespace) is None:
            continue
        try:
            steps = steps_for(topic.spec, topic.state)
        except TopologyError as error:
            yield TOPIC_IN_THE_WAY.at(topic.name, read=error.problem, cure=error.remedy)
            continue
        if isinstance(next(iter(steps), None), CreateTopic):
            steps = steps[:1]  # its creation includes all other steps
        for step in steps:
            kind = _KINDS.get(type(step))
            if kind is not None:
                yield kind.at(topic.name, read=_missing(step), cure=seen.provisions, fix=step)
        yield from _unguarded(seen, topic, [step for step in steps if isinstance(step, SetPolicy)])


def _revisions(seen: Seen) -> tuple[list[Finding], list[Finding]]:
    """Return the findings of due topics of a later revision of the plan, and of another plan of this revision."""
    older: list[Finding] = []
    same: list[Finding] = []
    for topic in seen.topics:
        if seen.plan is None or topic.spec is None:
            continue
        try:
            refuse_older(seen.plan, topic.name, topic.state.provisioned, seen.target)
        except TopologyError as error:
            older.append(TOPIC_IN_THE_WAY.at(topic.name, read=error.problem, cure=error.remedy))
        of_other = same_revision(seen.plan, topic.name, topic.state.provisioned, seen.target)
        same += [replace(one, kind=TOPIC_IN_THE_WAY) for one in of_other]
    return older, same


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
        yield UNGUARDED.at(
            topic.name,
            read=f"not set on the topic: {', '.join(str(step.policy) for step in lacking)}",
            cure=seen.provisions,
            fix=lacking[0],
        )


@check(FOREIGN_SUBSCRIPTION, needs={Source.TOPICS})
def _foreign(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None:
            continue
        for found in foreign_subscriptions(topic.spec, topic.state.subscriptions):
            yield replace(found, read=found.read + _connected(topic))


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


@check(FORMER_TOPIC, LEFT_BEHIND, needs={Source.TOPICS})
def _former(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None:
        return
    stranded = {topic.name for topic in left_behind(seen.plan, seen.former)}
    for found in findings_of(seen.plan, seen.former, seen.target):
        yield replace(found, kind=LEFT_BEHIND) if found.subject in stranded else found


LAYOUT = (_namespaces, _topics, _foreign, _former)


# fmt: off
SCHEMAS_ENFORCED = note_kind(slug="schemas-enforced", do="Send to the plan's topics with the schema.",
    why="Where a topic has a schema, producers without one are refused; timewheel's relays pass schemas on.")
SCHEMAS_FROZEN = warning_kind(slug="schemas-frozen",
    do="Allow producers to register schemas, or upload them to all topics.",
    why="A schema that the namespace does not know yet is refused there, and timers with it do not leave their topic.")
# fmt: on


@check(REPLICATED, SCHEMAS_FROZEN, needs={Source.NAMESPACES})
def _places(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is None or name not in used:
            continue
        yield from replication_findings(policies, seen.target)
        if policies.document.get("is_allow_auto_update_schema") is False:
            read = f"is_allow_auto_update_schema is false, set on the namespace {name}"
            cure = pulsar_admin("namespaces", "set-is-allow-auto-update-schema", name, "--enable")
            yield SCHEMAS_FROZEN.at(name, read=read, cure=cure)


@check(SCHEMAS_ENFORCED, needs={Source.NAMESPACES, Source.SETTINGS})
def _enforced(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is not None and policies.schema_validation_enforced and name in used:
            read = f"schema_validation_enforced, set on the namespace {name}"
            cure = pulsar_admin("namespaces", "set-schema-validation-enforce", name, "--disable")
            yield SCHEMAS_ENFORCED.at(name, read=read, cure=cure)
    if is_on(seen.settings, "isSchemaValidationEnforced", default=False):
        read = "isSchemaValidationEnforced is true"
        cure = broker_command(seen, "isSchemaValidationEnforced", "false")
        yield SCHEMAS_ENFORCED.at("the broker", read=read, cure=cure)


PLACES = (_places, _enforced)


# fmt: off
NOT_SEEN = note_kind(slug="not-seen", do="Use a role that may see it; brokers and bookies take a superuser.",
    why="Checks that need unreadable data were left out, and may have found a problem.")
# fmt: on


@check(NOT_SEEN, of_any_topic=True)
def _sight(seen: Seen) -> Iterator[Finding]:
    for one in seen.unread:
        read = f"{one.source}: {one.reason}"
        cure = timewheel_command("doctor", seen.target, "--token-file", "TOKEN-OF-A-ROLE-THAT-MAY")
        yield NOT_SEEN.at(one.what, read=read, cure=cure)


SIGHT = (_sight,)
