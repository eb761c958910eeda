"""Checks of expiry: TTL of messages, and expiry of unused subscriptions."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import MESSAGE_TTL_S, SUBSCRIPTION_EXPIRY_MIN
from timewheel.core.durations import SECOND_MS, format_duration, spelled
from timewheel.core.escapes import pulsar_admin
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import in_force, of_namespace
from timewheel.provision.provision_steps import SetPolicy

TTL_TOO_SHORT = Kind(
    slug="ttl-too-short",
    severity=Severity.ERROR,
    why="A TTL counts from the publish time and silently drops timers that were never delivered.",
    do="Set the topic's own TTL to 0.",
)
TTL_BEYOND_STAY = Kind(
    slug="ttl-beyond-stay",
    severity=Severity.WARNING,
    why="Timers wait longer than planned while consumers or relays are down, and then the TTL drops them.",
    do="Set the topic's own TTL to 0.",
)
TTL_OVER_DELAYS = Kind(
    slug="ttl-over-delays",
    severity=Severity.WARNING,
    why="A message that is delayed for longer than the TTL is dropped, and is never delivered.",
    do="Set the topic's own TTL to 0.",
)
SUBSCRIPTIONS_EXPIRE = Kind(
    slug="subscription-expiry",
    severity=Severity.ERROR,
    why="A subscription without a consumer for this long is removed, with its backlog.",
    do="Switch it off for the namespace.",
)


def _ttl(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        found = in_force(seen, topic, MESSAGE_TTL_S) if topic.exists else None
        if found is None or found.value <= 0:
            continue
        read = f"messageTTL is {format_duration(found.value * SECOND_MS)}, {found.where}"
        cure = pulsar_admin("topicPolicies", "set-message-ttl", topic.name, "-t", 0)
        if topic.spec is None:
            if topic.delayed:
                read += f"; {counted(topic.delayed, 'message is', 'messages are')} delayed"
                yield Finding(kind=TTL_OVER_DELAYS, subject=topic.name, read=read, cure=cure)
            continue
        stay_ms = topic.spec.longest_stay_ms
        yield Finding(
            kind=TTL_TOO_SHORT if found.value * SECOND_MS <= stay_ms else TTL_BEYOND_STAY,
            subject=topic.name,
            read=f"{read}; timers wait here up to {spelled(stay_ms)}",
            cure=cure,
            fix=SetPolicy(topic=topic.name, policy=MESSAGE_TTL_S, value=0),
        )


def _subscriptions(seen: Seen) -> Iterator[Finding]:
    for namespace in sorted(seen.namespaces):
        found = of_namespace(seen, namespace, SUBSCRIPTION_EXPIRY_MIN)
        if found is not None and found.value > 0 and any(_is_at_stake(topic, namespace) for topic in seen.topics):
            yield Finding(
                kind=SUBSCRIPTIONS_EXPIRE,
                subject=namespace,
                read=f"subscriptions expire after {found.value} min, {found.where}",
                cure=pulsar_admin("namespaces", "set-subscription-expiration-time", namespace, "-t", 0),
            )


def _is_at_stake(topic: SeenTopic, namespace: str) -> bool:
    return topic.namespace == namespace and (topic.spec is not None or next(topic.subscriptions(), None) is not None)


EXPIRY = (
    Check(
        kinds=(TTL_TOO_SHORT, TTL_BEYOND_STAY, TTL_OVER_DELAYS),
        inspect=_ttl,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES}),
        of_any_topic=True,
    ),
    Check(
        kinds=(SUBSCRIPTIONS_EXPIRE,),
        inspect=_subscriptions,
        needs=frozenset({Source.NAMESPACES, Source.SETTINGS}),
        of_any_topic=True,
    ),
)
