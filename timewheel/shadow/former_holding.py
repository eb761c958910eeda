"""Holding topics of earlier plans: timers moved before a plan changed wait there until a relay has drained them."""

from __future__ import annotations

from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.core.names import Names, partition_of
from timewheel.core.plan import Plan
from timewheel.core.topology import FormerTopic, HoldingTopic, former_topics
from timewheel.inspect.doctor.seen import Asking, Source
from timewheel.provision.former_topics import look_into


def former_backlogs(admin: AdminClient, plan: Plan, asking: Asking) -> dict[HoldingTopic, int]:
    """Count the waiting entries by topic, without empty topics.

    Args:
        admin: Admin client of any broker.
        plan: The current plan.
        asking: Records calls that are refused.

    Raises:
        AdminUnreachable: No broker answers.
    """
    found: dict[HoldingTopic, int] = {}
    for namespace in Names(plan).namespaces:
        subject = _subject(namespace)
        names = _listed(admin, namespace, asking)
        topics: tuple[FormerTopic, ...] | None = asking.ask(
            Source.TOPICS, subject, partial(look_into, admin, plan, names)
        )
        found |= {topic.holding: topic.backlog for topic in topics or () if topic.holding is not None and topic.backlog}
    return found


def former_partitions(admin: AdminClient, plan: Plan, asking: Asking) -> dict[int, list[str]]:
    """List the existing partitions, by number, in the order of the timers' route: the longest hold comes first.

    Args:
        admin: Admin client of any broker.
        plan: The current plan.
        asking: Records calls that are refused.

    Raises:
        AdminUnreachable: No broker answers.
    """
    names = [name for namespace in Names(plan).namespaces for name in _listed(admin, namespace, asking)]
    span_ms = {topic.name: _span_ms(topic.holding) for topic in former_topics(plan, names) if topic.holding is not None}
    found: dict[int, list[str]] = {}
    for name in sorted(names, key=lambda name: -span_ms.get(partition_of(name)[0], 0)):
        topic, number = partition_of(name)
        if topic in span_ms and number >= 0:
            found.setdefault(number, []).append(name)
    return found


def _listed(admin: AdminClient, namespace: str, asking: Asking) -> tuple[str, ...]:
    return asking.ask(Source.TOPICS, _subject(namespace), partial(admin.topics.list, namespace)) or ()


def _subject(namespace: str) -> str:
    return f"topics of earlier plans in {namespace}"


def _span_ms(holding: HoldingTopic) -> int:
    """Return the longest time that a timer is held there."""
    return max(holding.step.stay_ms, holding.step.slot_ms * holding.step.slots)
