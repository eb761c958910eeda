"""Checks of backlog quotas, by size and by time, and the effect of each policy."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import AGE_QUOTA, NO_QUOTA, SIZE_QUOTA, BacklogQuota, Policy
from timewheel.core.durations import SECOND_MS, format_duration, spelled
from timewheel.core.escapes import pulsar_admin
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import InForce, broker_command, in_force, is_on
from timewheel.provision.provision_steps import SetPolicy

QUOTA_DROPS = Kind(
    slug="quota-drops",
    severity=Severity.ERROR,
    why="At this quota the broker silently drops the oldest messages of the backlog, also delayed messages.",
    do="Take the quota away from the topic.",
)
QUOTA_TOO_SHORT = Kind(
    slug="quota-too-short",
    severity=Severity.ERROR,
    why="Timers wait here for longer than this quota allows, so producers and relays will be refused.",
    do="Take the quota away from the topic.",
)
QUOTA_BLOCKS = Kind(
    slug="quota-blocks",
    severity=Severity.WARNING,
    why="At this backlog producers and relays are refused, and timers stay in the topics before this one.",
    do="Take the quota away from the topic, or watch its backlog.",
)
_TYPES = {SIZE_QUOTA: "destination_storage", AGE_QUOTA: "message_age"}


def _quotas(seen: Seen) -> Iterator[Finding]:
    if not is_on(seen.settings, "backlogQuotaCheckEnabled", default=True):
        return
    for topic in seen.topics:
        for policy in _TYPES:
            found = in_force(seen, topic, policy) if topic.exists else None
            limit = None if found is None else _limit(policy, found.value)
            if found is not None and limit is not None and (topic.spec is not None or topic.delayed):
                yield _finding(seen, topic, policy, found, limit)


def _limit(policy: Policy[BacklogQuota], quota: BacklogQuota) -> str | None:
    """Return the limit in words; None without a limit."""
    if policy is SIZE_QUOTA:
        return f"{quota.limit_bytes:,} bytes" if quota.limit_bytes >= 0 else None
    return format_duration(quota.limit_s * SECOND_MS) if quota.limit_s > 0 else None


def _finding(
    seen: Seen, topic: SeenTopic, policy: Policy[BacklogQuota], found: InForce[BacklogQuota], limit: str
) -> Finding:
    read = f"backlog quota {_TYPES[policy]} is {limit} with {found.value.action}, {found.where}"
    stay_ms = None if topic.spec is None else topic.spec.longest_stay_ms
    is_short = policy is AGE_QUOTA and stay_ms is not None and found.value.limit_s * SECOND_MS <= stay_ms
    if is_short and stay_ms is not None:
        read += f"; timers wait here up to {spelled(stay_ms)}"
    kind = QUOTA_TOO_SHORT if is_short else QUOTA_BLOCKS
    ours = topic.spec is not None
    return Finding(
        kind=QUOTA_DROPS if found.value.action == "consumer_backlog_eviction" else kind,
        subject=topic.name,
        read=read,
        cure=seen.provisions if ours else _removal(seen, topic, policy, found),
        fix=SetPolicy(topic=topic.name, policy=policy, value=NO_QUOTA) if ours else None,
    )


def _removal(seen: Seen, topic: SeenTopic, policy: Policy[BacklogQuota], found: InForce[BacklogQuota]) -> str:
    if found.place == "topic":
        return pulsar_admin("topicPolicies", "remove-backlog-quota", topic.name, "-t", _TYPES[policy])
    if found.place == "namespace":
        return pulsar_admin("namespaces", "remove-backlog-quota", topic.namespace, "-t", _TYPES[policy])
    if policy is SIZE_QUOTA:
        return broker_command(seen, "backlogQuotaDefaultLimitBytes", -1)
    return broker_command(seen, "backlogQuotaDefaultLimitSecond", -1)


QUOTAS = (
    Check(
        kinds=(QUOTA_DROPS, QUOTA_TOO_SHORT, QUOTA_BLOCKS),
        inspect=_quotas,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES}),
        of_any_topic=True,
    ),
)
