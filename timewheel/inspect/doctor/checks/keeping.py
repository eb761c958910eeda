"""Checks of data that is kept for ever or removed as unused: retention, inactive topics, auto-creation."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import INACTIVE_TOPIC, KEEP_INACTIVE, RETENTION, Retention
from timewheel.core.escapes import pulsar_admin
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import in_force, is_on
from timewheel.provision.provision_steps import SetPolicy

KEPT_FOR_EVER = Kind(
    slug="kept-for-ever",
    severity=Severity.WARNING,
    why="Every timer stays on disk in each topic that it passed, also after it was handled.",
    do="Give the topic a retention that ends.",
)
NOBODY_SUBSCRIBED = Kind(
    slug="nobody-subscribed",
    severity=Severity.WARNING,
    why="Without a subscription messages are removed once their retention ends, though no consumer has read them.",
    do="Make the subscription before the first message.",
)
REMOVED_WHEN_CAUGHT_UP = Kind(
    slug="removed-when-caught-up",
    severity=Severity.ERROR,
    why="An idle topic is removed with its subscriptions, and the next message creates it without them.",
    do="Keep the topic though it is idle.",
)
AUTO_CREATION = Kind(
    slug="auto-creation",
    severity=Severity.WARNING,
    why="A send to a missing topic creates it, without partitions and subscriptions, and no consumer reads it.",
    do="Make the plan's topics first, or switch auto-creation off.",
)
UNLIMITED = -1
KEEP_OPTIONS = (
    *("--disable-delete-while-inactive", "--max-inactive-duration", "60s"),
    *("--delete-mode", "delete_when_no_subscriptions"),
)


def _retention(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        found = in_force(seen, topic, RETENTION) if topic.exists else None
        if found is None:
            continue
        is_endless = found.value == Retention(time_min=UNLIMITED, size_mb=UNLIMITED)
        read = f"retention is {_text(found.value)}, {found.where}"
        if topic.spec is not None and is_endless:
            cure = pulsar_admin("topicPolicies", "set-retention", topic.name, "-t", 0, "-s", 0)
            yield Finding(kind=KEPT_FOR_EVER, subject=topic.name, read=read, cure=cure)
        if topic.spec is None and not is_endless and topic.parts and next(topic.subscriptions(), None) is None:
            start = ("-s", "YOUR-SUBSCRIPTION", "-m", "earliest")
            cure = pulsar_admin("topics", "create-subscription", topic.name, *start)
            yield Finding(kind=NOBODY_SUBSCRIBED, subject=topic.name, read=f"no subscription; {read}", cure=cure)


def _text(retention: Retention) -> str:
    time = "endless" if retention.time_min == UNLIMITED else f"{retention.time_min} min"
    size = "any size" if retention.size_mb == UNLIMITED else f"{retention.size_mb} MB"
    return f"{time}, {size}"


def _inactive(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        found = in_force(seen, topic, INACTIVE_TOPIC) if topic.exists else None
        if found is None or not found.value.delete or found.value.mode != "delete_when_subscriptions_caught_up":
            continue
        keep = SetPolicy(topic=topic.name, policy=INACTIVE_TOPIC, value=KEEP_INACTIVE)
        yield Finding(
            kind=REMOVED_WHEN_CAUGHT_UP,
            subject=topic.name,
            read=f"an inactive topic is removed after {found.value.after_s} s ({found.value.mode}), {found.where}",
            cure=pulsar_admin("topicPolicies", "set-inactive-topic-policies", topic.name, *KEEP_OPTIONS),
            fix=None if topic.spec is None else keep,
        )


def _auto_creation(seen: Seen) -> Iterator[Finding]:
    for name, policies in sorted(seen.namespaces.items()):
        missing = [topic for topic in seen.topics if _is_missing(topic, name)]
        if policies is None or not missing:
            continue
        override = policies.document.get("autoTopicCreationOverride") or {}
        is_own = "allowAutoTopicCreation" in override
        on = override["allowAutoTopicCreation"] if is_own else _of_broker(seen)
        if on:
            where = f"set on the namespace {name}" if is_own else "of the broker"
            yield Finding(
                kind=AUTO_CREATION,
                subject=name,
                read=f"topics are made by the clients that use them, {where}; {len(missing)} of the plan are missing",
                cure=pulsar_admin("namespaces", "set-auto-topic-creation", name, "--disable"),
            )


def _of_broker(seen: Seen) -> bool:
    return seen.settings is not None and is_on(seen.settings, "allowAutoTopicCreation", default=True)


def _is_missing(topic: SeenTopic, namespace: str) -> bool:
    return topic.namespace == namespace and topic.spec is not None and not topic.exists


KEEPING = (
    Check(
        kinds=(KEPT_FOR_EVER, NOBODY_SUBSCRIBED),
        inspect=_retention,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES, Source.TOPICS}),
        of_any_topic=True,
    ),
    Check(
        kinds=(REMOVED_WHEN_CAUGHT_UP,),
        inspect=_inactive,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES}),
        of_any_topic=True,
    ),
    Check(
        kinds=(AUTO_CREATION,),
        inspect=_auto_creation,
        needs=frozenset({Source.NAMESPACES, Source.SETTINGS, Source.TOPICS}),
    ),
)
