"""Obstacles to a shadow of a topic, and facts worth knowing before: the facts, and pure checks on them.

An error is a refusal. The doctor's own checks are used if they apply to any topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import (
    COMPACTION_BYTES,
    DEDUPLICATION,
    DELAYED_DELIVERY,
    MESSAGE_TTL_S,
    REPLICATION_CLUSTERS,
)
from timewheel.broker.admin.stats import IN_ORDER_TYPES, TERMINATED, InternalStats, is_users
from timewheel.core.durations import MAX_DURATION_MS, SECOND_MS, format_duration, span, spelled
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.names import parts_of
from timewheel.core.plan import OWN_INFIX, Plan
from timewheel.core.steps import longest_due_stay_ms
from timewheel.core.topology import topology
from timewheel.inspect.doctor import Finding, Kind, Seen, Severity, Unseen, inspect_topic, verdict_on
from timewheel.inspect.doctor.checks.cursors import STARVED, STARVES_OTHERS
from timewheel.inspect.doctor.checks.storage import QUOTA_BLOCKS, QUOTA_DROPS
from timewheel.inspect.doctor.seen import OPTIONAL, SeenTopic
from timewheel.inspect.doctor.settings import broker_command, in_force
from timewheel.inspect.reader import Reader, Source
from timewheel.provision.findings import error_kind, note_kind, warning_kind
from timewheel.provision.foreign_settings import DELAYS_OFF, SUBSCRIPTIONS_EXPIRE, number, set_delayed_delivery
from timewheel.provision.provision_steps import policy_steps
from timewheel.shadow.curing import Excess
from timewheel.shadow.machine.move_decider import MoveDecision

COMPACTION_CURSOR = "__compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts by which the checks decide."""

    plan: Plan  # the plan for the topic's shadow
    seen: Seen  # the doctor's view of the due topic as an ordinary topic
    parts: Mapping[str, InternalStats] = field(default_factory=dict)  # internal stats of each existing partition
    compaction_bytes: int | None = None  # the threshold in force; None: unknown, or not set anywhere
    # clusters by the topic's own policy; None: it has none, or it may not be read
    replicated_to: tuple[str, ...] | None = None
    unread: tuple[Unseen, ...] = ()  # facts that could not be read, by the doctor or here

    @property
    def topic(self) -> SeenTopic:
        return self.seen.topics[0]

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic; 0: it is not partitioned."""
        return self.topic.state.partitions or 0

    @property
    def types(self) -> Mapping[str, frozenset[str]]:
        """Types of each durable subscription, over all partitions: ``None`` (a text) without a known consumer."""
        found: dict[str, set[str]] = {}
        for _, name, subscription in self.topic.subscriptions():
            found.setdefault(name, set()).add(subscription.type)
        return {name: frozenset(types) for name, types in sorted(found.items()) if is_users(name)}


def facts_about(admin: AdminClient, plan: Plan, *, target: str) -> Facts:
    """Read all facts; refused calls are recorded. A role that administers the tenant sees more than the stats, a
    superuser all. ``target`` is the name of the plan as the user typed it.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminUnreachable: No broker answers.
    """
    seen = inspect_topic(admin, plan.due_topic)
    reads = Reader(admin)
    topic = seen.topics[0]
    parts = {
        name: found
        for name in parts_of(topic.name, topic.state.partitions or 0)
        if (found := reads.ask(name, partial(admin.topics.internal_stats, name))) is not None
    }
    compaction = replicated = None
    if seen.has_topic_policies:
        policies = admin.topic_policies
        compaction = reads.ask(
            topic.name, lambda: policies.get(topic.name, COMPACTION_BYTES, applied=True), Source.POLICIES
        )
        replicated = reads.ask(topic.name, lambda: policies.get(topic.name, REPLICATION_CLUSTERS), Source.POLICIES)
    unread = {(one.source, one.what): one for one in (*seen.unread, *reads.unseen)}
    return Facts(
        plan=plan,
        seen=replace(seen, target=target),
        parts=parts,
        compaction_bytes=compaction,
        replicated_to=replicated,
        unread=tuple(unread.values()),
    )


NO_INTAKE = error_kind(
    slug="plan-without-intake",
    why="Copies come in by a topic beside the plan's intake, and this plan has none.",
    do='Write intake = true and relay = "service" into the plan.',
)
NOT_SHARED = error_kind(
    slug="subscription-in-order",
    why="Brokers delay nothing for Exclusive and Failover subscriptions, and only their consumer can acknowledge.",
    do="Make it Shared, or remove it.",
)
TYPE_UNKNOWN = warning_kind(
    slug="subscription-unused",
    why="No consumer is connected, so its type is not known; an Exclusive or Failover one would stop the shadow.",
    do="See that its consumers are Shared or Key_Shared.",
)
KEY_SHARED = note_kind(
    slug="subscription-by-key",
    why="The shadow joins such a subscription for moments only: the keys assigned to it then wait up to 0.2 s.",
    do="Nothing, or make it Shared.",
)
OTHER_SUBSCRIPTIONS = error_kind(
    slug="subscriptions-differ",
    why="A moved timer must be pending on every subscription, and its copy reaches each: the plan must name them all.",
    do="Write the topic's subscriptions into the plan, or remove unused ones.",
)
OTHER_PARTITIONS = error_kind(
    slug="partitions-differ",
    why="Partition i of the topic is shadowed by partition i of the plan's own topics.",
    do="Write the topic's partitions into the plan; 0: it is not partitioned.",
)
OWN_TOPIC = error_kind(
    slug="topic-of-timewheel",
    why="A shadow of a topic that timewheel itself routes to would take its timers in a circle.",
    do="Shadow the topic that consumers read.",
)
ENDED = error_kind(
    slug="topic-ended",
    why="Nothing can be sent to a terminated topic, so moved timers could not come back.",
    do="Let it be drained as it is.",
)
REPLICATED = error_kind(
    slug="topic-replicated",
    why="A copy would be replicated as well as its original, and every cluster's shadow would make one.",
    do="Take the topic out of geo-replication.",
)
COMPACTED = error_kind(
    slug="topic-compacted",
    why="A compacted topic keeps the last message of each key, which a copy would become.",
    do="End compaction of the topic.",
)
TTL_BELOW_DELAYS = error_kind(
    slug="ttl-below-delays",
    why="The TTL drops messages before they are due; copies have a later publish time, and would be delivered.",
    do="Set the topic's own TTL to 0.",
)
TTL_BELOW_STAY = error_kind(
    slug="ttl-below-stay",
    why="Copies wait in the topic for longer than the TTL, which silently drops them.",
    do="Set the topic's own TTL to 0.",
)
DELAY_BOUND = error_kind(
    slug="delay-bound",
    why="The broker refuses a message that is delayed for longer than its bound, and copies come back with such a "
    "delay.",
    do="Raise or remove the bound for the topic.",
)
FEW_PRODUCERS = error_kind(
    slug="producers-bounded",
    why="Each holding topic's relay has a producer of its own in the due topic, and the bound has no room for them.",
    do="Raise or remove the bound.",
)
FEW_CONSUMERS = error_kind(
    slug="consumers-bounded",
    why="A shadow reads the topic, and joins each subscription to acknowledge there: the bound has no room for it.",
    do="Raise or remove the bound.",
)
STILL_OVER = error_kind(
    slug="still-over-limit",
    why="This shadow would leave more gaps than the broker keeps, so that a reload still delivers handled messages "
    "again.",
    do="Take the named window; if none suffices, more partitions or a higher limit.",
)
STAYS = warning_kind(
    slug="some-stay",
    why="Timers that cannot be moved wait in the topic until they are due, and keep their gaps.",
    do="Nothing if they are few; else change how they are sent.",
)
SETS_POLICIES = note_kind(
    slug="policies-set",
    why="A start sets policies on the topic itself, so that no waiting timer is dropped, and no hop counts twice.",
    do="Nothing. They stay after an abort; remove them then, if you like.",
)
DEDUPLICATES = warning_kind(
    slug="deduplication-begins",
    why="With deduplication a broker drops a repeated sequence id, and the C++ client (of Python, Node.js, ...) can "
    "repeat one. A producer that batches and also delays may lose messages without a delay at any time. Any other may "
    "only where its connection breaks before the first answer that it ever gets: what it sends next, some messages.",
    do="Nothing if none batches and delays (Python's do not batch unless told to), and that rare loss at a producer's "
    "start can be borne. Else change that producer alone: no batching; initial_sequence_id = 1 if it has no name.",
)
UNSEEN = error_kind(slug="not-seen", why="Unread settings may forbid a shadow.", do="Use a role that may read it.")
UNSEEN_OF_BROKER = note_kind(
    slug="not-seen-of-broker",
    why="Of the broker only the defaults of its version are known.",
    do="Use a superuser's role if the broker's settings were changed.",
)
KINDS: tuple[Kind, ...] = (
    NO_INTAKE, NOT_SHARED, TYPE_UNKNOWN, KEY_SHARED, OTHER_SUBSCRIPTIONS, OTHER_PARTITIONS, OWN_TOPIC, ENDED,
    REPLICATED, COMPACTED, TTL_BELOW_DELAYS, TTL_BELOW_STAY, DELAY_BOUND, FEW_PRODUCERS, FEW_CONSUMERS, STILL_OVER,
    STAYS, SETS_POLICIES, DEDUPLICATES, UNSEEN, UNSEEN_OF_BROKER,
)  # fmt: skip
"""All kinds of findings besides the doctor's."""
_OF_DOCTOR = frozenset({DELAYS_OFF, QUOTA_DROPS, QUOTA_BLOCKS, SUBSCRIPTIONS_EXPIRE, STARVED, STARVES_OTHERS})
_UNKNOWN = "None"
_NUMBERS_TWICE = "Pulsar-CPP"
"""Begin of the version text of such clients (broker-facts: numbers-used-twice, delayed-never-batched)."""
MAX_NAMED = 5
JOINS = 2  # consumers of each subscription: one acknowledges originals of new copies, the other acknowledges again


def is_refused(findings: tuple[Finding, ...]) -> bool:
    """Return whether any finding is an error, so that the shadow is refused."""
    return any(finding.severity is Severity.ERROR for finding in findings)


def right_to(source: Source) -> str:
    """Return the role that is needed to read a source."""
    match source:
        case Source.SETTINGS | Source.BOOKIES | Source.BROKERS | Source.TIME:
            return "a superuser's role"
        case Source.NAMESPACES | Source.POLICIES:
            return "a role that administers the tenant"
        case Source.TOPICS:
            return "a role that may consume or produce there, or that administers the tenant"
        case Source.ENTRIES:
            return "a role that may consume there"


def findings_on(
    facts: Facts, longest_ms: int | None, stays: Mapping[str, int], excess: Excess | None = None
) -> tuple[Finding, ...]:
    """Run all checks; the worst findings come first. ``longest_ms`` is the longest delay that was seen, ``stays`` the
    entries far from due that stay all the same, by decision.
    """
    found = [
        *_of_plan(facts), *_of_subscriptions(facts), *_of_topic(facts), *_of_times(facts, longest_ms),
        *_of_clients(facts), *_of_excess(facts, excess), *_of_stays(facts, stays), *_of_policies(facts),
        *(finding for finding in verdict_on(facts.seen).findings if finding.kind in _OF_DOCTOR),
        *map(_of_unread, facts.unread),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda finding: -finding.severity))


def _of_plan(facts: Facts) -> Iterator[Finding]:
    plan, target = facts.plan, facts.seen.target
    if not plan.intake:
        yield NO_INTAKE.at(target, read="intake is not set", cure=f"write intake = true into {target}")
    if OWN_INFIX in plan.due_topic.rsplit("/", 1)[-1]:
        yield OWN_TOPIC.at(
            plan.due_topic, read="its name has the form of timewheel's own topics", cure="name another topic"
        )
    if facts.partitions != plan.partitions:
        has = f"it has {facts.partitions} partitions" if facts.partitions else "it is not partitioned"
        cure = f"write partitions = {facts.partitions} into {target}"
        yield OTHER_PARTITIONS.at(plan.due_topic, read=f"{has}; the plan says {plan.partitions}", cure=cure)


def _of_subscriptions(facts: Facts) -> Iterator[Finding]:
    topic, types = facts.plan.due_topic, facts.types
    if set(types) != set(facts.plan.subscriptions):
        others = sorted(set(types) - set(facts.plan.subscriptions))
        lacking = sorted(set(facts.plan.subscriptions) - set(types))
        said = [f"the plan does not name {', '.join(others)}"] if others else []
        said += [f"the topic has no {', '.join(lacking)}"] if lacking else []
        names = json.dumps([*types], ensure_ascii=False)  # as a plan file writes it, too
        cure = f"write subscriptions = {names} into {facts.seen.target}"
        yield OTHER_SUBSCRIPTIONS.at(topic, read="; ".join(said), cure=cure)
    for name, kinds in types.items():
        if kinds & IN_ORDER_TYPES:
            read = f"subscription {name} is {', '.join(sorted(kinds & IN_ORDER_TYPES))}"
            cure = f"subscribe as Shared, or: {pulsar_admin('topics', 'unsubscribe', topic, '-s', name)}"
            yield NOT_SHARED.at(topic, read=read, cure=cure)
        elif kinds == {_UNKNOWN}:
            yield TYPE_UNKNOWN.at(
                topic, read=f"no consumer is connected to subscription {name}", cure="start its consumers"
            )
        elif "Key_Shared" in kinds:
            yield KEY_SHARED.at(topic, read=f"subscription {name} is Key_Shared", cure="nothing must be done")


def _of_topic(facts: Facts) -> Iterator[Finding]:
    topic = facts.topic
    if any(part.state == TERMINATED for part in facts.parts.values()):
        yield ENDED.at(topic.name, read="its state is Terminated", cure="shadow the topic that followed it")
    policies = facts.seen.namespaces.get(topic.namespace)
    clusters = facts.replicated_to
    place = "set on the topic"
    if clusters is None and policies is not None:
        clusters, place = policies.replication_clusters, f"set on the namespace {topic.namespace}"
    if clusters is not None and len(clusters) > 1:
        read = f"it is replicated to {', '.join(clusters)}, {place}"
        cure = pulsar_admin("topicPolicies", "set-replication-clusters", topic.name, "-c", clusters[0])
        yield REPLICATED.at(topic.name, read=read, cure=cure)
    if facts.compaction_bytes:
        read = f"compactionThreshold is {facts.compaction_bytes:,} bytes"
        cure = pulsar_admin("topicPolicies", "set-compaction-threshold", topic.name, "-t", 0)
        yield COMPACTED.at(topic.name, read=read, cure=cure)
    elif any(COMPACTION_CURSOR in part.cursors for part in facts.parts.values()):
        cure = pulsar_admin("topics", "unsubscribe", topic.name, "-s", COMPACTION_CURSOR)
        yield COMPACTED.at(topic.name, read=f"it was compacted: it has a cursor {COMPACTION_CURSOR}", cure=cure)


def _of_times(facts: Facts, longest_ms: int | None) -> Iterator[Finding]:
    topic, stay_ms = facts.topic, longest_due_stay_ms(facts.plan)
    ttl = in_force(facts.seen, topic, MESSAGE_TTL_S)
    if ttl is not None and ttl.value > 0:
        ttl_ms = ttl.value * SECOND_MS
        read = f"messageTTL is {format_duration(ttl_ms)}, {ttl.where}"
        cure = pulsar_admin("topicPolicies", "set-message-ttl", topic.name, "-t", 0)
        if longest_ms is not None and ttl_ms < longest_ms:
            said = f"{read}; the longest delay seen is {span(longest_ms)}"
            yield TTL_BELOW_DELAYS.at(topic.name, read=said, cure=cure)
        elif ttl_ms <= stay_ms:
            said = f"{read}; copies wait up to {spelled(stay_ms)}"
            yield TTL_BELOW_STAY.at(topic.name, read=said, cure=cure)
    delays = in_force(facts.seen, topic, DELAYED_DELIVERY)
    if delays is not None and delays.value.refuses(stay_ms):
        read = f"the longest delay is {format_duration(delays.value.max_delay_ms)}, {delays.where}"
        read += f"; copies come back with up to {spelled(stay_ms)}"
        cure = set_delayed_delivery(topic.name, delays.value)
        yield DELAY_BOUND.at(topic.name, read=read, cure=cure)


def _of_clients(facts: Facts) -> Iterator[Finding]:
    """Check limits on clients of a partition: relays, movers and strikers count like any other client."""
    if not facts.plan.intake:
        return
    every = [part.stats for part in facts.topic.parts]
    of_each = [len(one.consumers or ()) for stats in every for one in stats.subscriptions.values()]
    of_part = [sum(len(one.consumers or ()) for one in stats.subscriptions.values()) for stats in every]
    producers = max((stats.publishers or 0 for stats in every), default=0)
    # A producer for each topic that timers come from, and the producer of nudges.
    needed = 2 + len(topology(facts.plan, 0).holding)
    joins = JOINS * len(facts.types)
    yield from _bounded(facts, FEW_PRODUCERS, "maxProducersPerTopic", producers, needed)
    yield from _bounded(facts, FEW_CONSUMERS, "maxConsumersPerSubscription", max(of_each, default=0), JOINS)
    yield from _bounded(facts, FEW_CONSUMERS, "maxConsumersPerTopic", max(of_part, default=0), joins + 1)


def _bounded(facts: Facts, kind: Kind, setting: str, connected: int, needed: int) -> Iterator[Finding]:
    policies, namespace = facts.seen.namespaces.get(facts.topic.namespace), facts.topic.namespace
    words = re.sub("[A-Z]", lambda found: "_" + found[0].lower(), setting)
    of_namespace = None if policies is None else policies.document.get(words)
    bound = of_namespace or number(facts.seen.settings, setting, 0)
    if bound and connected + needed > bound:
        where = f"set on the namespace {namespace}" if of_namespace else "of the broker"
        read = f"{setting} is {bound}, {where}; {connected} are connected, the shadow needs {needed}"
        cure = broker_command(facts.seen, setting, 0)
        if of_namespace:
            cure = pulsar_admin("namespaces", f"remove-{words.replace('_', '-')}", namespace)
        yield kind.at(facts.topic.name, read=read, cure=cure)


def _of_excess(facts: Facts, excess: Excess | None) -> Iterator[Finding]:
    if excess is not None:
        cure = excess.cure_in(facts.seen.target)
        higher = broker_command(facts.seen, "managedLedgerMaxUnackedRangesToPersist", 2 * excess.gaps_after)
        yield STILL_OVER.at(excess.topic, read=excess.read, cure=cure or f"give the topic more partitions; or {higher}")


def _of_stays(facts: Facts, stays: Mapping[str, int]) -> Iterator[Finding]:
    for decision, entries in sorted(stays.items(), key=lambda one: -one[1]):
        read = f"about {entries:,} entries that are far from due stay: {decision}"
        cure = STAYS.do
        if decision == MoveDecision.BEYOND.value and facts.plan.max_delay_ms < MAX_DURATION_MS:
            cure = f"raise max_delay in {facts.seen.target}, to {format_duration(MAX_DURATION_MS)} at most"
        yield STAYS.at(facts.topic.name, read=read, cure=cure)


def _of_policies(facts: Facts) -> Iterator[Finding]:
    """Report the changes that a start makes to the topic itself."""
    if not facts.plan.intake:
        return
    topic = facts.topic
    spec = next(one for one in topology(facts.plan, 0).topics if one.role == "due")
    if steps := policy_steps(spec, topic.state.policies):
        lists = timewheel_command("topics", "ensure", facts.seen.target, "--dry-run")
        cure = f"nothing must be done; {lists} lists all that is made"
        yield SETS_POLICIES.at(topic.name, read=", ".join(map(str, steps)), cure=cure)
    deduplication = in_force(facts.seen, topic, DEDUPLICATION)
    if deduplication is None or not deduplication.value:
        where = "" if deduplication is None else f", {deduplication.where}"
        producers = [one for part in topic.parts for one in part.stats.producers]
        if such := sorted({(one.name, one.client) for one in producers if one.client.startswith(_NUMBERS_TWICE)}):
            names = ", ".join(f"{name} ({client})" for name, client in such[:MAX_NAMED])
            more = f", and {len(such) - MAX_NAMED} more" if such[MAX_NAMED:] else ""
            read = f"deduplication is off{where}; of the producers that are connected it concerns {names}{more}"
            yield DEDUPLICATES.at(topic.name, read=read, cure=DEDUPLICATES.do)


def _of_unread(one: Unseen) -> Finding:
    kind = UNSEEN_OF_BROKER if one.source in OPTIONAL else UNSEEN
    return kind.at(one.what, read=f"{one.source}: {one.reason}", cure=f"it takes {right_to(one.source)}")
