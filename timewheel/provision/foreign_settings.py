"""Settings of namespaces and brokers that break a plan's guarantees and that no topic policy overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from timewheel.broker.admin.client import NamespacePolicies
from timewheel.broker.admin.policies import SUBSCRIPTION_EXPIRY_MIN, DelayedDelivery
from timewheel.broker.admin.stats import TopicStats
from timewheel.core.durations import SECOND_MS, format_duration, spelled
from timewheel.core.early_delivery import DEFAULT_MAX_HELD, HELD_SHARE
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, LOOK_PREFIX
from timewheel.core.plurals import counted
from timewheel.core.topology import TopicSpec
from timewheel.provision.shadow_commands import shadow_commands

DEFAULT_PRODUCER_NAMES = 10_000  # the broker's default of ``brokerDeduplicationMaxNumberOfProducers``
DEFAULT_GAP_LIMIT = 10_000  # the broker's default of ``managedLedgerMaxUnackedRangesToPersist``
FULL_SHARE = 0.8
FEW_SHARE = 0.5
"""Fraction of the gap limit: this many timers, each with a gap of its own, leave room for as many gaps again."""
MANY_RELAYS = 50  # from this number on, relays within consumers cost more than relays of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that provisioning cannot repair.

    Args:
        level: ``error``: messages can be lost or come early; ``warning``: worth knowing; ``info``: no trouble.
        where: The topic or namespace.
        problem: The problem and its effect.
        remedy: The remedy and who can apply it; a command if one exists.
    """

    level: Literal["info", "warning", "error"]
    where: str
    problem: str
    remedy: str


def namespace_findings(policies: NamespacePolicies, broker: Mapping[str, str] | None) -> tuple[Finding, ...]:
    """Find effects of a namespace on its topics that no topic policy overrides (broker-facts: policies-of-topics)."""
    findings: list[Finding] = []
    expiry_min = policies.get(SUBSCRIPTION_EXPIRY_MIN)
    by = "its"
    if expiry_min is None:
        expiry_min = int((broker or {}).get("subscriptionExpirationTimeMinutes", "0"))
        by = "the broker's"
    if expiry_min > 0:
        problem = (
            f"{by} subscription expiry removes a subscription, with its backlog, once no consumer has been connected "
            f"for {expiry_min} min; no policy of the topic overrides it"
        )
        remedy = pulsar_admin("namespaces", "set-subscription-expiration-time", policies.namespace, "-t", 0)
        findings.append(Finding(level="error", where=policies.namespace, problem=problem, remedy=remedy))
    if policies.is_replicated:
        clusters = ", ".join(policies.replication_clusters)
        problem = f"it is replicated ({clusters}): a relay in each cluster would forward every timer"
        remedy = "give the plan a holding_namespace of its own that is not replicated"
        findings.append(Finding(level="warning", where=policies.namespace, problem=problem, remedy=remedy))
    return tuple(findings)


def native_timer_findings(
    spec: TopicSpec, parts: Iterable[TopicStats], broker: Mapping[str, str] | None
) -> tuple[Finding, ...]:
    """Find timers that wait in a due topic before its plan is applied for the first time: the plan moves none of them.

    Later on, some timers always wait in the due topic, for the last part of their delay.
    """
    each = [max((own.delayed - own.stale_entries for own in part.subscriptions.values()), default=0) for part in parts]
    delayed = sum(each)
    if not delayed:
        return ()
    limit = int((broker or {}).get("managedLedgerMaxUnackedRangesToPersist") or DEFAULT_GAP_LIMIT)
    if max(each) <= limit * FEW_SHARE:
        problem = (
            f"{counted(delayed, 'timer waits', 'timers wait')} here under the broker's own delay: this plan moves none "
            f"of them, and so few are no problem, since a partition may have {limit:,} gaps"
        )
        return (Finding(level="info", where=spec.name, problem=problem, remedy="nothing need be done"),)
    problem = (
        f"{counted(delayed, 'timer waits', 'timers wait')} here under the broker's own delay: this plan moves none of "
        "them, and until they are due the gaps between them stay"
    )
    remedy = f"first a shadow: {shadow_commands(spec.name)[0]}; or a plan with a new due_topic"
    return (Finding(level="warning", where=spec.name, problem=problem, remedy=remedy),)


def delayed_delivery_findings(spec: TopicSpec, found: DelayedDelivery, tick_ms: int) -> tuple[Finding, ...]:
    """Find the effects of a topic's delayed-delivery settings on timers that wait under the broker's delay."""
    remedy = set_delayed_delivery(spec.name, found)
    if not found.active:
        problem = "delayed delivery is off: every timer is delivered at once"
        return (Finding(level="error", where=spec.name, problem=problem, remedy=remedy),)
    findings: list[Finding] = []
    if found.refuses(spec.longest_stay_ms):
        longest, stay = format_duration(found.max_delay_ms), spelled(spec.longest_stay_ms)
        problem = (
            f"the broker takes delays up to {longest}, and timers wait here up to {stay}: their sends would be refused"
        )
        findings.append(Finding(level="error", where=spec.name, problem=problem, remedy=remedy))
    if found.tick_ms != tick_ms:
        problem = f"the broker's tick is {found.tick_ms} ms, the plan says {tick_ms} ms: "
        problem += "the lead is too short or needlessly long"
        remedy = f'write tick = "{format_duration(found.tick_ms)}" in the plan'
        findings.append(Finding(level="warning", where=spec.name, problem=problem, remedy=remedy))
    return tuple(findings)


def unacknowledged_findings(spec: TopicSpec, max_unacked: int) -> tuple[Finding, ...]:
    """Find a limit on a consumer's unacknowledged messages, if any, too low for timers that it holds until due."""
    if max_unacked == 0 or max_unacked >= DEFAULT_MAX_HELD * HELD_SHARE:
        return ()
    problem = (
        f"the broker lets a consumer have {max_unacked:,} messages unacknowledged, and a DelayedConsumer holds up to "
        f"{DEFAULT_MAX_HELD:,} until they are due: at the bound it gets no more, not even timers due now"
    )
    enough = DEFAULT_MAX_HELD * HELD_SHARE
    raised = pulsar_admin("topicPolicies", "set-max-unacked-messages-per-consumer", spec.name, "-m", enough)
    held = max_unacked // HELD_SHARE
    remedy = f"give each DelayedConsumer max_held={held}, or {raised}" if held else raised
    return (Finding(level="warning", where=spec.name, problem=problem, remedy=remedy),)


def producer_name_findings(spec: TopicSpec, names: int, broker: Mapping[str, str] | None) -> tuple[Finding, ...]:
    """Find topics whose broker is about to forget producer names and sequence ids (broker-facts: forgotten-names)."""
    limit = int((broker or {}).get("brokerDeduplicationMaxNumberOfProducers", DEFAULT_PRODUCER_NAMES))
    if names < limit * FULL_SHARE:
        return ()
    problem = (
        f"{names:,} producers' names are remembered of a partition, of {limit:,}: past that the broker forgets some, "
        "and may store a hop twice"
    )
    remedy = (
        "find the client that keeps opening producers; an unload of the topic lets it forget those that are gone (not "
        "on 4.0.7), or raise brokerDeduplicationMaxNumberOfProducers"
    )
    return (Finding(level="warning", where=spec.name, problem=problem, remedy=remedy),)


def relay_count_findings(spec: TopicSpec, relays: int, target: str = "PLAN") -> tuple[Finding, ...]:
    """Find tiers read by more relays than useful, if every consumer has a relay of its own."""
    if relays < MANY_RELAYS:
        return ()
    problem = (
        f"{relays} relays read each partition, and one of them works: the others keep threads and connections, and "
        "each one that comes or goes may move partitions to another"
    )
    remedy = (
        f'write relay = "service" in the plan and run two or three of {timewheel_command("relay", "run", target)}, '
        "before the consumers are deployed with it"
    )
    return (Finding(level="warning", where=spec.name, problem=problem, remedy=remedy),)


def foreign_subscriptions(spec: TopicSpec, subscriptions: Mapping[int, frozenset[str]]) -> tuple[Finding, ...]:
    """Find foreign subscriptions on a topic of timewheel; on a due topic any subscription is legitimate."""
    if spec.role == "due":
        return ()
    known = set(spec.subscriptions)
    everyone = {name for names in subscriptions.values() for name in names}
    # Names of readers: of commands at work, and of the log of cancellations, where the client makes them up.
    own = (LOOK_PREFIX, f"{CANCELLATIONS_SUBSCRIPTION}-") if spec.role == "cancellations" else LOOK_PREFIX
    readers = {name for name in everyone if name.startswith(own)}
    strangers = sorted(everyone - known - readers)
    return tuple(
        Finding(
            level="warning",
            where=spec.name,
            problem=f"subscription {name!r} is not timewheel's: its unacknowledged messages stay on disk for ever",
            remedy=pulsar_admin("topics", "unsubscribe", "-s", name, spec.name),
        )
        for name in strangers
    )


def set_delayed_delivery(topic: str, found: DelayedDelivery) -> str:
    """Return the command that enables delayed delivery without a bound on delays; a tick of whole seconds is kept."""
    seconds, rest_ms = divmod(found.tick_ms, SECOND_MS)
    # Without -t the command sets a tick of a second. Without -md it sets no bound; older versions do not know -md.
    tick = () if rest_ms else ("-t", f"{seconds}s")
    bound = ("-md", "0s") if found.max_delay_ms else ()
    return pulsar_admin("topicPolicies", "set-delayed-delivery", topic, "-e", *tick, *bound)
