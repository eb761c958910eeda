"""Every kind of finding, by what was seen or read; what a healthy setup is; and how the verdict is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inspect.test_gap_looks import Cluster, gap_status
from timewheel.broker.admin import policies
from timewheel.broker.admin.client import AdminClient, BrokerTime, NamespacePolicies
from timewheel.broker.admin.stats import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.errors import AdminUnreachable
from timewheel.core.names import RELAY_SUBSCRIPTION, STATE_PROPERTY, namespace_of, partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.core.routing import ROUTING_CODE, Router
from timewheel.core.steps import longest_due_stay_ms
from timewheel.core.topology import FormerTopic, topology
from timewheel.errors import NoSuchTarget
from timewheel.inspect.doctor import (
    KINDS,
    Finding,
    Seen,
    Severity,
    Unseen,
    Verdict,
    inspect_plan,
    inspect_topic,
    verdict_on,
)
from timewheel.inspect.doctor.checks.relays import PINNED_MS, offset_ms, producer_off_ms
from timewheel.inspect.doctor.seen import Head, Newest, Part, SeenTopic
from timewheel.inspect.doctor.settings import BROKER_DEFAULTS, in_force, profile_by
from timewheel.inspect.doctor.verdict import facts_of, junit_of
from timewheel.inspect.entries import Run
from timewheel.inspect.gaps import SubscriptionGaps
from timewheel.inspect.missing_topics import ENDS, MOVING, UNDER_WAY
from timewheel.inspect.reader import Source
from timewheel.provision.provision_steps import TopicState, wanted_policies
from timewheel.provision.provisioned import Provisioned
from timewheel.shadow import desired_state

NOW_MS = 1_767_225_600_000
DUE = "persistent://acme/crm/reminders"
TIER = f"{DUE}.tw.tier-12h"
OTHERS = "persistent://acme/crm/others"
SPACE = "acme/crm"
PLAN = Plan(due_topic=DUE, subscriptions=("billing",), scheme=Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)))
COPIES = policies.Persistence(ensemble=3, write_quorum=3, ack_quorum=2)


def stats_of(**more: Any) -> TopicStats:
    whole: dict[str, Any] = {
        "published": 0, "published_bytes": 0, "storage_bytes": 0, "delayed_index_bytes": 0, "deduplication": "Enabled",
        "owner": "", "publishers": 0, "subscriptions": {}, **more,
    }  # fmt: skip
    return TopicStats(**whole)


def subscription(kind: str = "Failover", **more: Any) -> SubscriptionStats:
    whole: dict[str, Any] = {
        "type": kind, "gap_count": 0, "gap_bytes": 0, "backlog": 0, "delayed": 0, "delayed_index_bytes": 0,
        "unacked": 0, "expired": 0, "expired_per_s": 0.0, "redelivered_per_s": 0.0, "delivered": 0, "blocked": False,
        "active_consumer": None, "consumers": (), **more,
    }  # fmt: skip
    return SubscriptionStats(**whole)


def consumer(name: str = "c", client: str = "Pulsar-CPP-v4.2.0") -> ConsumerStats:
    return ConsumerStats(name=name, address="", unacked=0, permits=0, blocked=False, client=client)


def namespace(**document: Any) -> NamespacePolicies:
    return NamespacePolicies(
        namespace=SPACE,
        replication_clusters=tuple(document.pop("clusters", ("one",))),
        schema_validation_enforced=document.pop("enforced", False),
        document=document,
    )


def gaps(count: int, *again: Run) -> SubscriptionGaps:
    part = gap_status(count, topic=partition_topic(DUE, 0), subscription="billing", again=again)
    return SubscriptionGaps(topic=DUE, subscription="billing", parts=(part,))


def healthy(plan: Plan = PLAN) -> Seen:
    """All of the plan is there, two relays run, and nothing waits."""
    whole = topology(plan, NOW_MS)
    topics = []
    for spec in whole.topics:
        holding = next((topic for topic in whole.holding if topic.name == spec.name), None)
        is_read_by_relays = holding is not None or spec.is_entrance
        relays = (consumer("0a1b2c3d-relay-1"), consumer("1b2c3d4e-relay-2")) if is_read_by_relays else ()
        kind = "Failover" if is_read_by_relays else "Shared"
        subscriptions = {name: subscription(kind, consumers=relays) for name in spec.subscriptions}
        topics.append(
            SeenTopic(
                name=spec.name,
                namespace=namespace_of(spec.name),
                spec=spec,
                state=TopicState(
                    partitions=1,
                    existing=frozenset({0}),
                    subscriptions={0: frozenset(spec.subscriptions)},
                    policies={**dict(wanted_policies(spec)), policies.PERSISTENCE: COPIES},
                ),
                by_broker=spec.role == "due",
                step=None if holding is None else holding.step,
                parts=(Part(name=partition_topic(spec.name, 0), stats=stats_of(subscriptions=subscriptions)),),
            )
        )
    return Seen(
        target="plan.toml",
        plan=plan,
        at_ms=NOW_MS,
        profile=BrokerProfile.named("4.0"),
        settings={},
        bookies=4,
        namespaces={SPACE: namespace()},
        topics=tuple(topics),
    )


def of_others() -> Seen:
    """Anyone's topic, without a plan."""
    state = TopicState(partitions=0, subscriptions={}, policies={policies.PERSISTENCE: COPIES})
    parts = (Part(name=OTHERS, stats=stats_of(subscriptions={"s": subscription("Shared", delayed=7)})),)
    topic = SeenTopic(name=OTHERS, namespace=SPACE, spec=None, state=state, by_broker=True, parts=parts)
    return replace(healthy(), plan=None, target=OTHERS, topics=(topic,))


Change = Callable[[Seen], Seen]


def with_topic(change: Callable[[SeenTopic], SeenTopic], name: str = DUE) -> Change:
    def changed(seen: Seen) -> Seen:
        return replace(seen, topics=tuple(change(topic) if topic.name == name else topic for topic in seen.topics))

    return changed


def own(policy: policies.Policy[Any], value: Any, name: str = DUE) -> Change:
    """A policy of the topic itself; None: it is not set."""

    def changed(topic: SeenTopic) -> SeenTopic:
        policies = {**topic.state.policies, policy: value}
        if value is None:
            del policies[policy]
        return replace(topic, state=replace(topic.state, policies=policies))

    return with_topic(changed, name)


def state(name: str = DUE, **changes: Any) -> Change:
    return with_topic(lambda topic: replace(topic, state=replace(topic.state, **changes)), name)


def stats(name: str = DUE, **changes: Any) -> Change:
    return part(name, stats=stats_of(**changes))


def part(name: str = DUE, **changes: Any) -> Change:
    return with_topic(lambda topic: replace(topic, parts=(replace(topic.parts[0], **changes),)), name)


def settings(**values: str) -> Change:
    return lambda seen: replace(seen, settings=values, profile=profile_by(values, "4.0.7"))


def place(**document: Any) -> Change:
    return lambda seen: replace(seen, namespaces={SPACE: namespace(**document)})


def planned(**changes: Any) -> Change:
    return lambda seen: replace(seen, plan=replace(PLAN, **changes))


def all_of(*changes: Change) -> Change:
    def changed(seen: Seen) -> Seen:
        for change in changes:
            seen = change(seen)
        return seen

    return changed


def former(**facts: Any) -> Change:
    whole = {"name": f"{DUE}.tw.tier-9h", "holding": topology(PLAN, NOW_MS).holding[0], "backlog": 3, **facts}
    return lambda seen: replace(seen, former=(FormerTopic(**whole),))


def quota(**limits: Any) -> policies.BacklogQuota:
    return policies.BacklogQuota(action="producer_exception", **limits)


EVICTING = policies.BacklogQuota(limit_bytes=1, action="consumer_backlog_eviction")
CAUGHT_UP = policies.InactiveTopic(delete=True, mode="delete_when_subscriptions_caught_up")
BUCKET = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
ENDLESS = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
MISSING = all_of(state(TIER, partitions=None, existing=frozenset(), policies={}), part(TIER))


def waiting(asked_at_ms: int = 0) -> dict[str, SubscriptionStats]:
    return {RELAY_SUBSCRIPTION: subscription(backlog=3, asked_at_ms=asked_at_ms)}


WAITING = waiting()
LOOKAHEAD = settings(delayedDeliveryFixedDelayDetectionLookahead="10")


def delayed(count: int, **more: int) -> Change:
    one = subscription("Shared", delayed=count, consumers=(consumer(),), **more)
    return stats(subscriptions={"billing": one})


MERGING = settings(delayedDeliveryTrackerFactoryClassName=BUCKET, delayedDeliveryMaxNumBuckets="50")


def head(after_release_ms: int) -> Change:
    return part(TIER, head=Head(timer_id="bill-7", due_ms=NOW_MS + 3_600_000, release_ms=NOW_MS - after_release_ms))


def relays(count: int) -> Change:
    return stats(TIER, subscriptions={RELAY_SUBSCRIPTION: subscription(consumers=(consumer("0a1b2c3d-r"),) * count)})


def without_relays(seen: Seen) -> Seen:
    """None is connected to any topic."""

    def alone(part: Part) -> Part:
        found = {name: replace(one, consumers=()) for name, one in part.stats.subscriptions.items()}
        return replace(part, stats=replace(part.stats, subscriptions=found))

    return replace(seen, topics=tuple(replace(topic, parts=tuple(map(alone, topic.parts))) for topic in seen.topics))


def half_read(topic: SeenTopic) -> SeenTopic:
    """A second partition, where something waits and no relay is connected."""
    alone = replace(topic.parts[0], name=partition_topic(TIER, 1), stats=stats_of(subscriptions=WAITING))
    return replace(topic, parts=(*topic.parts, alone))


CASES: list[tuple[str, Change]] = [
    ("missing-namespace", all_of(MISSING, lambda seen: replace(seen, namespaces={SPACE: None}))),
    ("no-topic-policies", lambda seen: replace(seen, has_topic_policies=False)),
    ("missing-topic", MISSING),
    ("missing-partition", state(existing=frozenset(), subscriptions={})),
    ("missing-subscription", state(subscriptions={0: frozenset()})),
    ("topic-in-the-way", state(partitions=0)),
    ("topic-in-the-way", state(partitions=2, existing=frozenset({0, 1}))),
    ("topic-in-the-way", state(provisioned=Provisioned(revision=2))),
    ("topic-in-the-way", state(provisioned=Provisioned(revision=1, routing=f"{ROUTING_CODE}.0123456789"))),
    ("unguarded-topic", own(policies.MESSAGE_TTL_S, None)),
    ("foreign-subscription", state(TIER, subscriptions={0: frozenset({RELAY_SUBSCRIPTION, "curious"})})),
    ("former-topic", all_of(planned(relay="service"), former())),
    ("left-behind", former()),
    ("ttl-too-short", own(policies.MESSAGE_TTL_S, 43_200)),
    ("ttl-too-short", all_of(own(policies.MESSAGE_TTL_S, None), place(message_ttl_in_seconds=60))),
    ("ttl-too-short", all_of(own(policies.MESSAGE_TTL_S, None), settings(ttlDurationDefaultInSeconds="60"))),
    ("ttl-beyond-stay", own(policies.MESSAGE_TTL_S, 10**7)),
    ("subscription-expiry", place(subscription_expiration_time_minutes=5)),
    ("subscription-expiry", settings(subscriptionExpirationTimeMinutes="5")),
    ("quota-drops", own(policies.SIZE_QUOTA, EVICTING)),
    ("quota-drops", own(policies.AGE_QUOTA, policies.BacklogQuota(limit_s=60, action="consumer_backlog_eviction"))),
    ("quota-too-short", own(policies.AGE_QUOTA, quota(limit_s=60))),
    ("quota-blocks", own(policies.AGE_QUOTA, quota(limit_s=10**7))),
    ("quota-blocks", own(policies.SIZE_QUOTA, quota(limit_bytes=10**9))),
    ("quota-blocks", all_of(own(policies.SIZE_QUOTA, None), settings(backlogQuotaDefaultLimitGB="1.5"))),
    ("kept-for-ever", place(retention_policies=ENDLESS)),
    ("removed-when-caught-up", own(policies.INACTIVE_TOPIC, CAUGHT_UP)),
    ("auto-creation", MISSING),
    ("delays-off", own(policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=False))),
    ("delay-too-long", own(policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=True, max_delay_ms=60_000))),
    ("tick-differs", settings(delayedDeliveryTickTimeMillis="250")),
    (
        "reads-stopped",
        all_of(
            stats(subscriptions={"billing": subscription("Shared", backlog=9)}),
            part(unread={"billing": EntryPosition(371, 0)}),
        ),
    ),
    ("tracker-merges", MERGING),
    ("tracker-stands-still", delayed(-3)),
    ("tracker-stands-still", all_of(MERGING, delayed(0, backlog=10))),
    ("early-for-others", planned(readers="any")),
    ("detection-of-fixed-delays", all_of(planned(readers="any"), LOOKAHEAD)),
    (
        "due-topic-starves",
        all_of(planned(readers="any"), LOOKAHEAD, stats(subscriptions={"billing": subscription("Shared", delayed=5)})),
    ),
    ("due-topic-starves", all_of(LOOKAHEAD, delayed(10, backlog=11))),
    ("forgets-acknowledgements", lambda seen: replace(seen, gaps=(gaps(11, Run(1, 0, 0)),))),
    ("many-gaps", lambda seen: replace(seen, gaps=(gaps(9),))),
    (
        "paused-at-the-limit",
        all_of(with_topic(lambda topic: replace(topic, pauses=True)), lambda seen: replace(seen, gaps=(gaps(10),))),
    ),
    ("pauses-at-the-limit", with_topic(lambda topic: replace(topic, pauses=True))),
    ("pauses-at-the-limit", place(dispatcherPauseOnAckStatePersistentEnabled=True)),
    ("pauses-at-the-limit", settings(dispatcherPauseOnAckStatePersistentEnabled="true")),
    ("low-gap-limit", settings(managedLedgerMaxUnackedRangesToPersist="777")),
    ("cursor-too-large", settings(managedLedgerMaxUnackedRangesToPersist="400000")),
    ("cursor-fills-metadata-store", settings(managedLedgerMaxUnackedRangesToPersistInMetadataStore="50000")),
    (
        "small-ledgers",
        settings(managedLedgerPersistIndividualAckAsLongArray="true", managedLedgerMaxEntriesPerLedger="5000"),
    ),
    ("one-copy", own(policies.PERSISTENCE, policies.Persistence(ensemble=1, write_quorum=1, ack_quorum=1))),
    (
        "one-copy-perhaps",
        all_of(
            own(policies.PERSISTENCE, policies.Persistence(ensemble=1, write_quorum=1, ack_quorum=1)),
            lambda seen: replace(seen, bookies=None),
        ),
    ),
    (
        "one-bookie",
        all_of(
            own(policies.PERSISTENCE, policies.Persistence(ensemble=1, write_quorum=1, ack_quorum=1)),
            lambda seen: replace(seen, bookies=1),
        ),
    ),
    ("one-confirmation", own(policies.PERSISTENCE, policies.Persistence(ensemble=2, write_quorum=2, ack_quorum=1))),
    ("too-few-bookies", lambda seen: replace(seen, bookies=2)),
    ("no-spare-bookie", lambda seen: replace(seen, bookies=3)),
    ("sick-broker", lambda seen: replace(seen, ailment="Not enough non-faulty bookies available")),
    ("no-speculative-reads", settings(bookkeeperClientSpeculativeReadTimeoutInMillis="0")),
    ("stopped-reads-stay", settings(unblockStuckSubscriptionEnabled="false")),
    ("short-guard", all_of(planned(guard_ms=90_000), lambda seen: replace(seen, brokers=2))),
    (
        "short-guard",
        all_of(settings(metadataStoreSessionTimeoutMillis="200000"), lambda seen: replace(seen, brokers=2)),
    ),
    ("short-guard", all_of(settings(zooKeeperSessionTimeoutMillis="200000"), lambda seen: replace(seen, brokers=2))),
    ("endless-ledgers", settings(managedLedgerMaxLedgerRolloverTimeMinutes="0")),
    ("endless-ledgers", settings(managedLedgerMaxLedgerRolloverTimeMinutes="1441")),
    ("message-size-differs", own(policies.MAX_MESSAGE_BYTES, 1_000_000)),
    ("no-deduplication", own(policies.DEDUPLICATION, value=False)),
    ("no-deduplication", stats(deduplication="Disabled")),
    ("producer-names-full", part(producer_names=8_000)),
    ("few-producer-names", settings(brokerDeduplicationMaxNumberOfProducers="100")),
    ("producer-names-forgotten-soon", settings(brokerDeduplicationProducerInactivityTimeoutMinutes="5")),
    ("few-unacknowledged", own(policies.MAX_UNACKED_PER_CONSUMER, 49_999)),
    ("few-unacknowledged", own(policies.MAX_UNACKED_PER_SUBSCRIPTION, 49_999)),
    ("blocked-subscription", stats(subscriptions={"billing": subscription("Shared", blocked=True)})),
    ("wrong-subscription-type", stats(subscriptions={"billing": subscription(consumers=(consumer(),))})),
    (
        "wrong-subscription-type",
        stats(TIER, subscriptions={RELAY_SUBSCRIPTION: subscription("Shared", consumers=(consumer(), consumer()))}),
    ),
    ("old-client", stats(producers=(ProducerStats(name="p", address="", client="Pulsar-CPP-v3.7.1"),))),
    ("no-relay", all_of(without_relays, stats(TIER, subscriptions=WAITING))),
    ("relay-elsewhere", with_topic(half_read, TIER)),
    ("relay-elsewhere", all_of(without_relays, former(relays=("old",)), stats(TIER, subscriptions=WAITING))),
    ("relay-elsewhere", all_of(without_relays, stats(TIER, subscriptions=waiting(NOW_MS - 9_000)))),
    ("no-relay", all_of(without_relays, stats(TIER, subscriptions=waiting(NOW_MS - 60_000)))),
    ("no-relay-yet", stats(TIER, subscriptions={RELAY_SUBSCRIPTION: subscription()})),
    ("no-standby", relays(1)),
    ("many-relays", relays(50)),
    ("relay-late", head(300_001)),
    ("relay-behind", head(150_001)),
    ("replicated", place(clusters=["one", "two"])),
    ("schemas-enforced", place(enforced=True)),
    ("schemas-enforced", settings(isSchemaValidationEnforced="true")),
    ("schemas-frozen", place(is_allow_auto_update_schema=False)),
    (
        "clock-differs",
        lambda seen: replace(
            seen, time=BrokerTime(asked_ms=NOW_MS, reported_ms=NOW_MS + 60_011, answered_ms=NOW_MS + 10)
        ),
    ),
    ("foreign-consumer", stats(TIER, subscriptions={RELAY_SUBSCRIPTION: subscription(consumers=(consumer("spy"),))})),
    ("producer-ahead", part(newest=Newest(producer="p", published_ms=NOW_MS + 60_001, seen_ms=NOW_MS))),
    ("producer-ahead", part(later=Newest(producer="p", published_ms=NOW_MS + 60_001, seen_ms=NOW_MS))),
    (
        "producer-behind",
        part(newest=Newest(producer="p", published_ms=NOW_MS - 90_001, seen_ms=NOW_MS, ledger_since_ms=NOW_MS)),
    ),
    (
        "producer-behind",
        part(later=Newest(producer="p", published_ms=NOW_MS - 90_001, seen_ms=NOW_MS, absent_ms=NOW_MS)),
    ),
    (
        "not-seen",
        lambda seen: replace(seen, unread=(Unseen(source=Source.TIME, what="the broker", reason="a proxy"),)),
    ),
]
SHADOWED = replace(PLAN, relay="service", intake=True)
INTAKE = f"{DUE}.tw.intake"
JOURNAL = f"{DUE}.tw.journal"
ROUTING = Router(SHADOWED).fingerprint
OLDEST_MS = longest_due_stay_ms(SHADOWED) + SHADOWED.guard_ms + PINNED_MS
OF_PLANS = {"no-relay", "relay-elsewhere", "foreign-consumer", "wrong-subscription-type"}
"""What is found of plans without a shadow as well."""


def shadowed(state: str = "shadowing", *, moves: bool = True) -> Seen:
    """As `healthy`, of a plan with an intake, whose shadow moves."""

    def changed(topic: SeenTopic) -> SeenTopic:
        mover = (producer("tw|move|acme/crm/reminders-partition-0|acme/crm/x|-1|"),) if moves else ()
        part = topic.parts[0]
        return replace(
            topic,
            properties={STATE_PROPERTY: f"{state} {NOW_MS}"} if state else {},
            parts=(replace(part, stats=replace(part.stats, producers=mover)),),
        )

    return with_topic(changed, JOURNAL)(healthy(SHADOWED))


def producer(name: str) -> ProducerStats:
    return ProducerStats(name=name, address="", client="Pulsar-CPP-v4.2.0")


def hops_by(*fingerprints: str) -> Change:
    """Relays' producers that are connected to the due topic."""
    names = [f"tw|acme/crm/reminders.tw.tier-12h-partition-0|acme/crm/reminders|-1|{one}" for one in fingerprints]
    return stats(subscriptions={"billing": subscription("Shared")}, producers=tuple(map(producer, names)))


def also_on_due(name: str, kind: str = "Shared", **more: Any) -> Change:
    return stats(subscriptions={"billing": subscription("Shared"), name: subscription(kind, **more)})


NO_JOURNAL = all_of(
    state(JOURNAL, partitions=None, existing=frozenset(), policies={}),
    with_topic(lambda topic: replace(topic, properties={}, parts=()), JOURNAL),
)
OF_SHADOWS: list[tuple[str, Change]] = [
    ("nobody-moves", lambda _: shadowed(moves=False)),
    ("no-relay", all_of(without_relays, stats(INTAKE, subscriptions=WAITING))),
    ("relay-elsewhere", stats(INTAKE, subscriptions=WAITING)),
    ("relay-elsewhere", stats(JOURNAL, subscriptions=WAITING)),
    ("foreign-consumer", stats(INTAKE, subscriptions={RELAY_SUBSCRIPTION: subscription(consumers=(consumer("spy"),))})),
    ("journal-is-old", part(JOURNAL, journal_since_ms=NOW_MS - OLDEST_MS - 1)),
    ("unnamed-subscription", also_on_due("audit", backlog=7)),
    ("wrong-subscription-type", also_on_due("audit", "Failover", consumers=(consumer(),))),
    ("wrong-subscription-type", also_on_due("audit", "Exclusive", consumers=(consumer(),))),
    ("movers-differ", hops_by("0123456789ab")),
    ("movers-differ", hops_by(ROUTING, "0123456789ab-drain")),
    ("journal-removed", state(JOURNAL, existing=frozenset())),
    ("journal-removed", all_of(NO_JOURNAL, stats(TIER, subscriptions=WAITING))),
    ("compacted-due-topic", place(compaction_threshold=1_000_000)),
    ("compacted-due-topic", also_on_due("__compaction")),
]
HARMLESS_TO_SHADOWS: list[tuple[str, Change]] = [
    *(("nobody-moves", lambda _, word=word: shadowed(word, moves=False)) for word in ("", "provisioned", "paused",
                                                                                       "draining", "native", "later")),
    ("journal-is-old", part(JOURNAL, journal_since_ms=NOW_MS - OLDEST_MS)),
    ("unnamed-subscription", also_on_due("__compaction")),
    ("unnamed-subscription", also_on_due("reader-1a2b3c", is_durable=False)),
    ("movers-differ", hops_by(ROUTING, f"{ROUTING}-drain")),
    ("movers-differ", stats(producers=(producer("tw|another/crm/topic.tw.tier-1h|acme/crm/reminders|-1|0123"),))),
    ("journal-removed", NO_JOURNAL),  # it was never there: that is missing-topic
    ("journal-removed", lambda _: state(JOURNAL, existing=frozenset())(shadowed("native"))),
    ("compacted-due-topic", place(compaction_threshold=0)),
]  # fmt: skip
OF_OTHERS: list[tuple[str, Change]] = [
    ("ttl-over-delays", own(policies.MESSAGE_TTL_S, 60, OTHERS)),
    ("quota-drops", own(policies.SIZE_QUOTA, EVICTING, OTHERS)),
    ("quota-blocks", place(backlog_quota_map={"message_age": {"limitTime": 60, "policy": "producer_exception"}})),
    ("quota-blocks", settings(backlogQuotaDefaultLimitSecond="60")),
    ("nobody-subscribed", stats(OTHERS)),
    ("subscription-expiry", place(subscription_expiration_time_minutes=5)),
    ("delays-off", own(policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=False), OTHERS)),
    ("due-topic-starves", LOOKAHEAD),
    (
        "wrong-subscription-type",
        stats(
            OTHERS,
            subscriptions={
                "s": subscription("Shared", delayed=1),
                "t": subscription("Exclusive", consumers=(consumer(),)),
            },
        ),
    ),
]


def ids(cases: list[tuple[str, Change]]) -> list[str]:
    return [f"{number}-{slug}" for number, (slug, _) in enumerate(cases)]


def test_a_healthy_setup_is_none_to_speak_of() -> None:
    assert verdict_on(healthy()).findings == ()
    assert verdict_on(of_others()).findings == verdict_on(shadowed()).findings == ()
    assert verdict_on(healthy()).left_out == ()
    assert set(verdict_on(healthy()).clear) == set(KINDS)


@pytest.mark.parametrize(("slug", "change"), CASES, ids=ids(CASES))
def test_a_fault_is_found_and_a_pipeline_reads_the_verdict(slug: str, change: Change) -> None:
    verdict = verdict_on(change(healthy()))
    _has(verdict, slug)
    suite = ET.fromstring(junit_of(verdict))
    assert suite.get("tests") == str(len(KINDS)) == str(len(suite))
    bad = {finding.slug for finding in verdict.findings if finding.severity > Severity.INFO}
    assert {case.get("name") for case in suite if case.find("failure") is not None} == bad
    assert (slug in bad) == (next(kind for kind in KINDS if kind.slug == slug).severity > Severity.INFO)


@pytest.mark.parametrize(("slug", "change"), OF_OTHERS, ids=ids(OF_OTHERS))
def test_a_fault_of_anyones_topic_is_found(slug: str, change: Change) -> None:
    _has(verdict_on(change(of_others())), slug)


@pytest.mark.parametrize(("slug", "change"), OF_SHADOWS, ids=ids(OF_SHADOWS))
def test_a_fault_of_a_shadow_is_found_and_only_where_there_is_one(slug: str, change: Change) -> None:
    _has(verdict_on(change(shadowed())), slug)
    if slug not in OF_PLANS:
        assert slug not in {finding.slug for finding in verdict_on(replace(change(shadowed()), plan=PLAN)).findings}


@pytest.mark.parametrize("state", [one.value for one in desired_state.State])
@pytest.mark.parametrize(
    ("change", "slug"),
    [
        (relays(1), "no-standby"),
        (all_of(without_relays, stats(TIER, subscriptions={RELAY_SUBSCRIPTION: subscription()})), "no-relay-yet"),
    ],
    ids=["one", "none"],
)
def test_of_a_shadow_that_ends_neither_a_standby_nor_a_relay_for_later_is_asked(
    state: str, change: Change, slug: str
) -> None:
    found = {one.slug for one in verdict_on(change(shadowed(state))).findings}
    assert (slug in found) is (state not in {"draining", "native"})


@pytest.mark.parametrize("state", ["draining", "native"])
def test_what_waits_of_a_shadow_that_ends_needs_a_relay(state: str) -> None:
    _has(verdict_on(all_of(without_relays, stats(INTAKE, subscriptions=WAITING))(shadowed(state))), "no-relay")


def test_what_the_doctor_knows_of_a_shadow_is_what_the_shadow_says() -> None:
    assert {state.value for state in desired_state.State if desired_state.moves(state)} == {MOVING}
    assert {state.value for state in desired_state.State} - UNDER_WAY == {"provisioned", "native"}
    assert {state.value for state in desired_state.State if desired_state.drains(state)} == ENDS


@pytest.mark.parametrize("again", [(), (Run(1, 0, 0),)], ids=["near", "beyond"])
def test_where_delays_may_cause_the_gaps_the_cure_names_another_plan_or_the_shadow(again: tuple[Run, ...]) -> None:
    def cure(seen: Seen, *, delayed: int, kind: str = "Shared") -> str:
        near = gaps(9, *again)
        near = replace(near, parts=tuple(replace(part, delayed=delayed, type=kind) for part in near.parts))
        found = verdict_on(replace(seen, gaps=(near,))).findings
        return next(one.cure for one in found if one.slug in {"many-gaps", "forgets-acknowledgements"})

    explain = f"timewheel gaps explain {DUE} --subscription billing"
    aid = f"{explain}; if delays are the cause: timewheel shadow start {DUE} -o shadow.toml --dry-run"
    assert cure(of_others(), delayed=5, kind="Key_Shared") == aid
    other = "the plan leaves too many: a shorter window, or more partitions: timewheel plan check plan.toml"
    assert cure(healthy(), delayed=5) == f"{explain}; if delays are the cause: {other}", "the SDK's"
    assert cure(healthy(), delayed=0) == cure(healthy(), delayed=5, kind="Failover") == explain
    assert cure(shadowed(), delayed=5) == explain, "it has one"
    assert cure(replace(of_others(), shadowed={DUE: "paused"}), delayed=5) == explain, "by a plan of its own"


def _has(verdict: Verdict, slug: str) -> None:
    found = [finding for finding in verdict.findings if finding.slug == slug]
    assert found, [finding.slug for finding in verdict.findings]
    for finding in verdict.findings:
        assert finding.subject
        assert finding.read
        assert finding.cure
        assert finding.kind not in verdict.clear
    assert [finding.severity for finding in verdict.findings] == sorted(
        (finding.severity for finding in verdict.findings), reverse=True
    )


def test_topics_of_an_older_plan_are_not_asked_for() -> None:
    seen = all_of(MISSING, state(provisioned=Provisioned(revision=2)))(healthy())
    found = [one for one in verdict_on(seen).findings if one.slug in {"missing-topic", "topic-in-the-way"}]
    assert [(one.slug, one.subject) for one in found] == [("topic-in-the-way", DUE)]
    assert "use the file with revision = 2 for all processes" in found[0].cure
    assert "write revision = 3 in it and run timewheel topics ensure plan.toml" in found[0].cure


def test_every_kind_has_a_case() -> None:
    assert {slug for slug, _ in (*CASES, *OF_OTHERS, *OF_SHADOWS)} == {kind.slug for kind in KINDS}
    assert len({kind.slug for kind in KINDS}) == len(KINDS)


def test_only_a_plans_own_topics_are_fixed() -> None:
    for slug, change in OF_OTHERS:
        assert all(finding.fix is None for finding in verdict_on(change(of_others())).findings), slug
    fixed = {finding.slug for _, change in CASES for finding in verdict_on(change(healthy())).findings if finding.fix}
    assert fixed == {
        "missing-topic", "missing-partition", "missing-subscription", "unguarded-topic", "ttl-too-short",
        "ttl-beyond-stay", "quota-drops", "quota-too-short", "quota-blocks", "removed-when-caught-up", "delays-off",
        "delay-too-long", "no-deduplication",
    }  # fmt: skip


HARMLESS: list[tuple[str, Change]] = [
    ("quota-drops", all_of(own(policies.SIZE_QUOTA, EVICTING), settings(backlogQuotaCheckEnabled="false"))),
    (
        "subscription-expiry",
        all_of(place(subscription_expiration_time_minutes=0), settings(subscriptionExpirationTimeMinutes="5")),
    ),
    ("auto-creation", all_of(MISSING, place(autoTopicCreationOverride={"allowAutoTopicCreation": False}))),
    ("auto-creation", all_of(MISSING, settings(allowAutoTopicCreation="false"))),
    ("removed-when-caught-up", own(policies.INACTIVE_TOPIC, policies.InactiveTopic(delete=True))),
    ("kept-for-ever", own(policies.RETENTION, policies.Retention(time_min=-1, size_mb=100))),
    ("due-topic-starves", all_of(LOOKAHEAD, delayed(50, backlog=51, unacked=1))),  # timewheel mixes the order
    ("due-topic-starves", all_of(LOOKAHEAD, delayed(9, backlog=51))),
    ("few-unacknowledged", own(policies.MAX_UNACKED_PER_CONSUMER, 0)),
    ("relay-behind", head(150_000)),
    ("early-for-others", all_of(planned(readers="any"), settings(isDelayedDeliveryDeliverAtTimeStrict="true"))),
    (
        "cursor-too-large",
        settings(managedLedgerMaxUnackedRangesToPersist="400000", managedLedgerPersistIndividualAckAsLongArray="true"),
    ),
    (
        "cursor-fills-metadata-store",
        settings(managedLedgerMaxUnackedRangesToPersistInMetadataStore="50000", managedCursorInfoCompressionType="LZ4"),
    ),
    ("small-ledgers", settings(managedLedgerMaxEntriesPerLedger="5000")),
    ("old-client", stats(producers=(ProducerStats(name="p", address="", client="Pulsar-Java-v2.8.0"),))),
    (
        "pauses-at-the-limit",
        all_of(
            settings(dispatcherPauseOnAckStatePersistentEnabled="true"),
            place(dispatcherPauseOnAckStatePersistentEnabled=False),
        ),
    ),
    ("producer-behind", part(newest=Newest(producer="p", published_ms=NOW_MS - 10**9, seen_ms=NOW_MS))),
    (
        "producer-behind",
        part(newest=Newest(producer="p", published_ms=NOW_MS - 90_000, seen_ms=NOW_MS, ledger_since_ms=NOW_MS)),
    ),
    ("missing-topic", lambda seen: replace(seen, namespaces={}, topics=MISSING(seen).topics)),  # could not be seen
]


@pytest.mark.parametrize(
    ("seen", "harmless"),
    [
        *((change(healthy()), slug) for slug, change in HARMLESS),
        *((change(shadowed()), slug) for slug, change in HARMLESS_TO_SHADOWS),
    ],
    ids=ids([*HARMLESS, *HARMLESS_TO_SHADOWS]),
)
def test_what_does_no_harm_is_not_found(seen: Seen, harmless: str) -> None:
    assert harmless not in {finding.slug for finding in verdict_on(seen).findings}


@given(
    policy=st.sampled_from([policies.MESSAGE_TTL_S, policies.MAX_UNACKED_PER_CONSUMER]),
    topic=st.none() | st.integers(0, 99),
    of_namespace=st.none() | st.integers(0, 99),
    broker=st.none() | st.integers(0, 99),
    applied=st.none() | st.integers(0, 99),
)
def test_the_topic_beats_its_namespace_which_beats_the_broker(
    policy: policies.Policy[int], topic: int | None, of_namespace: int | None, broker: int | None, applied: int | None
) -> None:
    seen = own(policy, topic)(own(policy, 0)(healthy()))
    names = {
        policies.MESSAGE_TTL_S: "ttlDurationDefaultInSeconds",
        policies.MAX_UNACKED_PER_CONSUMER: "maxUnackedMessagesPerConsumer",
    }
    seen = replace(
        seen,
        settings=None if broker is None else {names[policy]: str(broker)},
        namespaces={SPACE: namespace(**({} if of_namespace is None else {policy.document_key: of_namespace}))},
    )
    due = replace(next(one for one in seen.topics if one.name == DUE), applied={policy: applied})

    found = in_force(seen, due, policy)

    levels = [("topic", topic), ("namespace", of_namespace), ("broker", broker), ("broker", applied)]
    wanted = next(((level, value) for level, value in levels if value is not None), None)
    assert (None if found is None else (found.place, found.value)) == wanted


@given(st.dictionaries(st.sampled_from([
    "ttlDurationDefaultInSeconds", "backlogQuotaDefaultLimitBytes", "brokerDeduplicationEnabled",
    "allowAutoTopicCreation",
    "delayedDeliveryTickTimeMillis", "delayedDeliveryFixedDelayDetectionLookahead", "maxMessageSize",
    "managedLedgerMaxLedgerRolloverTimeMinutes", "managedLedgerDefaultWriteQuorum",
]), st.text(max_size=5) | st.integers(-2, 10**6).map(str)))  # fmt: skip
def test_no_setting_makes_a_check_fail(values: dict[str, str]) -> None:
    seen = replace(healthy(), settings=values)
    for policy in BROKER_DEFAULTS:
        seen = own(policy, None)(own(policy, 0)(seen))
    verdict_on(seen)
    verdict_on(replace(of_others(), settings=values))


@given(ahead_ms=st.integers(-(10**7), 10**7), way_ms=st.integers(0, 5_000), back_ms=st.integers(0, 5_000))
def test_a_clock_is_off_only_where_that_is_certain(ahead_ms: int, way_ms: int, back_ms: int) -> None:
    reported_ms = (NOW_MS + way_ms + ahead_ms) // 1_000 * 1_000
    time = BrokerTime(asked_ms=NOW_MS, reported_ms=reported_ms, answered_ms=NOW_MS + way_ms + back_ms)
    found = offset_ms(time)
    assert abs(found) <= abs(ahead_ms)
    assert found * ahead_ms >= 0
    assert abs(ahead_ms) - abs(found) <= 1_000 + way_ms + back_ms


@given(
    off_ms=st.integers(-(10**7), 10**7),
    wait_ms=st.integers(0, 30_000),
    broker_ms=st.integers(-(10**7), 10**7),
    since_ms=st.none() | st.integers(0, 10**6),
    absent_ms=st.none() | st.integers(0, 10**6),
    way_ms=st.integers(0, 5_000),
)
def test_a_producer_is_off_only_where_that_is_certain(
    off_ms: int, wait_ms: int, broker_ms: int, since_ms: int | None, absent_ms: int | None, way_ms: int
) -> None:
    """By true time it was stored now. Clocks of this machine, the broker and the producer are off as they please."""
    stored_ms = NOW_MS
    time = BrokerTime(asked_ms=0, reported_ms=(broker_ms + way_ms) // 1_000 * 1_000, answered_ms=way_ms)
    newest = Newest(
        producer="p",
        published_ms=stored_ms - wait_ms + off_ms,
        seen_ms=stored_ms + way_ms,
        absent_ms=None if absent_ms is None else stored_ms - absent_ms,
        ledger_since_ms=None if since_ms is None else stored_ms - since_ms + broker_ms,
    )

    found = producer_off_ms(newest, time)

    truly_ms = off_ms - broker_ms
    assert abs(found) <= abs(truly_ms)
    assert not found or (found > 0) == (truly_ms > 0)


def test_what_could_not_be_read_leaves_checks_out() -> None:
    unread = Unseen(source=Source.SETTINGS, what="the broker", reason="it takes a superuser")
    verdict = verdict_on(replace(healthy(), settings=None, unread=(unread,)))
    assert [finding.slug for finding in verdict.findings] == ["not-seen"]
    assert (verdict.worst, verdict.is_blind) == (Severity.INFO, False)
    assert {"low-gap-limit", "subscription-expiry"} <= {kind.slug for kind in verdict.left_out}
    assert not {*verdict.left_out} & {*verdict.clear}
    blind = replace(unread, source=Source.TOPICS)
    assert verdict_on(replace(healthy(), unread=(blind,))).is_blind


def test_a_cure_is_the_command() -> None:
    def cure(slug: str, seen: Seen) -> str:
        found: list[Finding] = [finding for finding in verdict_on(seen).findings if finding.slug == slug]
        return found[0].cure

    assert cure("ttl-too-short", own(policies.MESSAGE_TTL_S, 60)(healthy())) == (
        f"pulsar-admin topicPolicies set-message-ttl {DUE} -t 0"
    )
    limited = settings(managedLedgerMaxUnackedRangesToPersist="777")(healthy())
    name = "managedLedgerMaxUnackedRangesToPersist"
    assert cure("low-gap-limit", limited) == f"write {name}=10000 into broker.conf, and restart the brokers one by one"
    assert cure("low-gap-limit", replace(limited, dynamic=frozenset({name}))) == (
        f"pulsar-admin brokers update-dynamic-config --config {name} --value 10000"
    )
    assert cure(
        "one-copy", own(policies.PERSISTENCE, policies.Persistence(ensemble=1, write_quorum=1, ack_quorum=1))(healthy())
    ) == (f"pulsar-admin topicPolicies set-persistence {DUE} -e 2 -w 2 -a 2 -r 0")
    assert cure(
        "delays-off", own(policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=False, tick_ms=2_000))(healthy())
    ) == (f"pulsar-admin topicPolicies set-delayed-delivery {DUE} -e -t 2s")
    half = policies.DelayedDelivery(active=False, tick_ms=500)
    assert cure("delays-off", own(policies.DELAYED_DELIVERY, half)(healthy())) == "timewheel doctor plan.toml --fix"
    assert cure("delay-too-long", own(
        policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=True, tick_ms=2_000, max_delay_ms=DAY_MS // 4)
    )(healthy())) == f"pulsar-admin topicPolicies set-delayed-delivery {DUE} -e -t 2s -md 0s"  # fmt: skip


@pytest.mark.parametrize(
    ("due_ms", "said"),
    [(NOW_MS + 24_473 * 60_000, "the first due in 17 d"), (NOW_MS - 90_000, "the first overdue by 1.5 min")],
)
def test_how_far_off_a_timer_is_stands_in_days_where_it_is_days(due_ms: int, said: str) -> None:
    asked = part(TIER, head=Head(timer_id="a", due_ms=due_ms, release_ms=NOW_MS + 1))
    seen = all_of(without_relays, stats(TIER, subscriptions=WAITING), asked)(healthy())
    (found,) = [one for one in verdict_on(seen).findings if one.slug == "no-relay"]
    assert said in found.read


def test_a_low_limit_on_gaps_alone_is_a_note_with_the_figures_and_near_it_gaps_are_the_warning() -> None:
    limited = settings(managedLedgerMaxUnackedRangesToPersist="777")(healthy())
    found = {one.slug: one for one in verdict_on(replace(limited, gaps=(gaps(3),))).findings}
    assert "many-gaps" not in found
    assert found["low-gap-limit"].severity is Severity.INFO
    assert found["low-gap-limit"].read == (
        "managedLedgerMaxUnackedRangesToPersist is 777, by default it is 10,000; "
        "the fullest partition that was looked at has 3 gaps"
    )
    assert "the fullest" not in {one.slug: one for one in verdict_on(limited).findings}["low-gap-limit"].read


READ_PLAN = Plan(due_topic="persistent://a/b/t", subscriptions=("s",))
TOPIC = "/persistent/a/b/t"
PART = "/persistent/a/b/t-partition-0"
ANSWERS: dict[str, Any] = {
    "/brokers/configuration/runtime": {},
    "/brokers/configuration": [],
    "/brokers/version": "4.0.7",
    "/bookies/all": {"bookies": [{"bookieId": "1"}, {"bookieId": "2"}, {"bookieId": "3"}]},
    "/brokers": ["one:8080"],
    "/brokers/health": "ok",
    "/namespaces/a/b": {"replication_clusters": ["one"]},
    "/persistent/a/b": ["persistent://a/b/t-partition-0"],
    f"{TOPIC}/partitions": {"partitions": 1},
    f"{PART}/stats": {"subscriptions": {"s": {"type": "Shared", "consumers": []}}, "publishers": []},
    f"{TOPIC}/messageTTL": "0",
    f"{TOPIC}/backlogQuotaMap": {
        "destination_storage": {"limitSize": -1, "limitTime": -1, "policy": "producer_exception"},
        "message_age": {"limitSize": -1, "limitTime": -1, "policy": "producer_exception"},
    },
    f"{TOPIC}/inactiveTopicPolicies": {
        "deleteWhileInactive": False,
        "maxInactiveDurationSeconds": 60,
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    },
}


def slugs(answers: dict[str, Any]) -> list[str]:
    with Cluster(answers).client() as admin:
        return [finding.slug for finding in verdict_on(inspect_plan(admin, READ_PLAN, target="p.toml")).findings]


def test_a_plan_is_read_and_in_order() -> None:
    assert slugs(ANSWERS) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"/brokers/configuration/runtime": 403}, ["not-seen"] * 3),
        ({"/bookies/all": 403}, ["not-seen"]),
        ({f"{TOPIC}/messageTTL": 403}, ["unguarded-topic", "not-seen"]),
        ({f"{PART}/stats": 403}, ["not-seen"]),
        ({"/namespaces/a/b": 403}, ["not-seen"]),
        ({"/namespaces/a/b": 404}, ["missing-namespace"]),
        ({"/persistent/a/b": 403}, ["not-seen"]),
        ({"/persistent/a/b": []}, ["missing-topic", "auto-creation"]),
        ({f"{TOPIC}/messageTTL": "60"}, ["ttl-too-short"]),
    ],
)
def test_what_is_refused_is_told_and_the_rest_goes_on(changes: dict[str, Any], found: list[str]) -> None:
    assert slugs({**ANSWERS, **changes}) == found


def test_a_broker_without_policies_of_topics_is_asked_once() -> None:
    cluster = Cluster({**ANSWERS, f"{TOPIC}/messageTTL": 405})
    with cluster.client() as admin:
        verdict = verdict_on(inspect_plan(admin, READ_PLAN, target="p.toml"))
    assert [finding.slug for finding in verdict.findings] == ["no-topic-policies"]
    assert f"{TOPIC}/retention" not in cluster.asked


def test_what_is_in_force_is_asked_where_the_settings_are_not_known() -> None:
    answers = {**ANSWERS, "/brokers/configuration/runtime": 403}
    answers[f"{TOPIC}/delayedDelivery"] = {"active": False, "tickTime": 1_000}
    answers[f"{TOPIC}/persistence"] = {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    assert {"delays-off", "one-copy-perhaps"} <= set(slugs(answers))


def test_a_topic_that_is_not_there() -> None:
    with Cluster({**ANSWERS, f"{TOPIC}/partitions": 404}).client() as admin, pytest.raises(NoSuchTarget):
        inspect_topic(admin, READ_PLAN.due_topic)


def test_a_partition_stands_for_its_topic() -> None:
    with Cluster(ANSWERS).client() as admin:
        seen = inspect_topic(admin, f"{READ_PLAN.due_topic}-partition-0")
    assert [topic.name for topic in seen.topics] == [READ_PLAN.due_topic]
    assert verdict_on(seen).findings == ()


def test_nobody_answers() -> None:
    with AdminClient("http://127.0.0.1:1", retry_for_s=0) as admin, pytest.raises(AdminUnreachable):
        inspect_plan(admin, READ_PLAN, target="p.toml")


def test_facts_have_all_of_it() -> None:
    facts = facts_of(verdict_on(place(subscription_expiration_time_minutes=5)(healthy())))
    assert (facts["worst"], facts["errors"], facts["warnings"], facts["notes"]) == ("error", 1, 0, 0)
    assert facts["findings"][0]["cure"] == "pulsar-admin namespaces set-subscription-expiration-time acme/crm -t 0"
    assert facts_of(verdict_on(healthy()))["worst"] == "ok"


def test_what_was_left_out_is_skipped_and_odd_names_are_written() -> None:
    odd = replace(
        healthy(),
        target="a\x00b",
        unread=(Unseen(source=Source.TIME, what="the broker", reason="\x1b[31m"),),
        namespaces={"acme/crm": namespace()},
    )
    suite = ET.fromstring(junit_of(verdict_on(odd)))
    assert suite.get("skipped") == "1"
    assert suite.find("testcase[@name='clock-differs']/skipped") is not None
    assert suite.get("name") == "timewheel doctor a\\x00b"
