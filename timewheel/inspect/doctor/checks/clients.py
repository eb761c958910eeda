"""Checks of connected clients: subscription type, version, and blocked subscriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from timewheel.broker.admin.policies import MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION
from timewheel.broker.admin.stats import DELAYING_TYPES
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.limits import DEFAULT_MAX_HELD, HELD_SHARE
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import in_force
from timewheel.provision.foreign_settings import unacknowledged_findings

FEW_UNACKNOWLEDGED = Kind(
    slug="few-unacknowledged",
    severity=Severity.WARNING,
    why="A consumer that holds its limit of early timers gets no more messages, not even messages due now.",
    do="Raise the bound for the topic, or let consumers hold fewer.",
)
BLOCKED = Kind(
    slug="blocked-subscription",
    severity=Severity.ERROR,
    why="Its consumers have too many unacknowledged messages: the broker delivers no more, not even messages due now.",
    do="See whether a handler hangs; acknowledge or negatively acknowledge its messages.",
)
WRONG_TYPE = Kind(
    slug="wrong-subscription-type",
    severity=Severity.ERROR,
    why="The broker delays on Shared and Key_Shared only, and relays keep order on Failover only.",
    do="Restart these consumers with the right type.",
)
OLD_CLIENT = Kind(
    slug="old-client",
    severity=Severity.WARNING,
    why="timewheel was tested with pulsar-client 3.13; older versions may lose or repeat messages.",
    do="Upgrade the client library.",
)
TRIED_CLIENT = (4, 2)
"""The C++ client in pulsar-client 3.13 for Python reports ``Pulsar-CPP-v4.2.0``."""
_VERSION = re.compile(r"Pulsar-CPP-v(\d+)\.(\d+)")
ORDERED_TYPES = frozenset({"Failover"})


def _bounds(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not topic.spec.is_consumed or not topic.exists:
            continue
        one = in_force(seen, topic, MAX_UNACKED_PER_CONSUMER)
        if one is not None:
            for found in unacknowledged_findings(topic.spec, one.value):
                read = f"maxUnackedMessagesPerConsumer is {one.value:,}, {one.where}; {DEFAULT_MAX_HELD:,} may be held"
                yield Finding(kind=FEW_UNACKNOWLEDGED, subject=topic.name, read=read, cure=found.remedy)
        together = in_force(seen, topic, MAX_UNACKED_PER_SUBSCRIPTION)
        enough = DEFAULT_MAX_HELD * HELD_SHARE
        if together is not None and 0 < together.value < enough:
            yield Finding(
                kind=FEW_UNACKNOWLEDGED,
                subject=topic.name,
                read=f"maxUnackedMessagesPerSubscription is {together.value:,}, {together.where}; each consumer may "
                f"hold {DEFAULT_MAX_HELD:,}",
                cure=pulsar_admin(
                    "topicPolicies", "set-max-unacked-messages-per-subscription", topic.name, "-m", enough
                ),
            )


def _subscriptions(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        told: set[tuple[str, Kind]] = set()
        for part, name, stats in topic.subscriptions():
            if stats.blocked and (name, BLOCKED) not in told:
                told.add((name, BLOCKED))
                read = f"{name} is blocked on {part.name}: {counted(stats.unacked, 'message')} unacknowledged"
                cure = timewheel_command("gaps", "explain", topic.name, "--subscription", name)
                yield Finding(kind=BLOCKED, subject=topic.name, read=read, cure=cure)
            right = _right_types(topic, name, is_shadowed=seen.plan is not None and seen.plan.intake)
            if stats.consumers and right and stats.type not in right and (name, WRONG_TYPE) not in told:
                told.add((name, WRONG_TYPE))
                who = ", ".join(sorted({consumer.name for consumer in stats.consumers})[:3])
                yield Finding(
                    kind=WRONG_TYPE,
                    subject=topic.name,
                    read=f"{name} is {stats.type} on {part.name} ({who}), not {' or '.join(sorted(right))}",
                    cure=f"subscribe {name} as {' or '.join(sorted(right))}",
                )


def _right_types(topic: SeenTopic, subscription: str, *, is_shadowed: bool) -> frozenset[str]:
    """Return the subscription types that work on a topic; empty if any type does."""
    if topic.spec is None:
        return DELAYING_TYPES if topic.delayed else frozenset()
    if is_shadowed and topic.spec.role == "due":
        return DELAYING_TYPES  # a shadow acknowledges on every subscription, including those missing from the plan
    if subscription not in topic.spec.subscriptions or not topic.spec.takes_hops:
        return frozenset()
    return DELAYING_TYPES if topic.by_broker else ORDERED_TYPES


def _versions(seen: Seen) -> Iterator[Finding]:
    """Find old C++ clients, Python's included: timewheel relies on them only, not on clients in other languages."""
    for topic in seen.topics:
        old: dict[str, set[str]] = {}
        for part in topic.parts:
            clients = [(producer.client, producer.name) for producer in part.stats.producers]
            for subscription in part.stats.subscriptions.values():
                clients += [(consumer.client, consumer.name) for consumer in subscription.consumers or ()]
            for client, name in clients:
                if _is_old(client):
                    old.setdefault(client, set()).add(name)
        for client, names in sorted(old.items()):
            some = sorted(names)[:3]
            read = f"{client}: {', '.join(some)}" + (f" and {len(names) - len(some)} more" if names - {*some} else "")
            yield Finding(
                kind=OLD_CLIENT, subject=topic.name, read=read, cure="pip install --upgrade 'pulsar-client>=3.13'"
            )


def _is_old(client: str) -> bool:
    found = _VERSION.match(client)
    return found is not None and (int(found[1]), int(found[2])) < TRIED_CLIENT


CLIENTS = (
    Check(kinds=(FEW_UNACKNOWLEDGED,), inspect=_bounds, needs=frozenset({Source.POLICIES, Source.NAMESPACES})),
    Check(kinds=(BLOCKED, WRONG_TYPE), inspect=_subscriptions, needs=frozenset({Source.TOPICS}), of_any_topic=True),
    Check(kinds=(OLD_CLIENT,), inspect=_versions, needs=frozenset({Source.TOPICS})),
)
