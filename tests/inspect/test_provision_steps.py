"""What a topic lacks, as steps over every state that an interruption can leave; and the record of a due topic."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import compress, product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import plan_of
from timewheel.broker.admin.client import AdminClient, NamespacePolicies
from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    DEDUPLICATION,
    INACTIVE_TOPIC,
    KEEP_INACTIVE,
    MESSAGE_TTL_S,
    NO_QUOTA,
    SIZE_QUOTA,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopic,
    Policy,
)
from timewheel.broker.admin.stats import read_topic_stats
from timewheel.cli.relay import RelayFactory
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.errors import AdminDenied, TopologyError
from timewheel.core.names import PROVISIONED_PROPERTY, CalendarTopic
from timewheel.core.plan import MAX_FORMER, Calendar, Native, Plan, Tiered
from timewheel.core.plurals import counted
from timewheel.core.topology import TopicSpec
from timewheel.events import RelayPlanOutdated
from timewheel.hooks import Event
from timewheel.provision.calendar_life import CalendarRoller, LifeState, Stage, grace_ms, roll, stage_of
from timewheel.provision.findings import Finding
from timewheel.provision.foreign_settings import (
    delayed_delivery_findings,
    expiry_findings,
    foreign_subscriptions,
    native_timer_findings,
    producer_name_findings,
    relay_count_findings,
    replication_findings,
    unacknowledged_findings,
)
from timewheel.provision.provision_steps import (
    CreateMissedPartitions,
    CreateSubscription,
    CreateTopic,
    GrowTopic,
    SetPolicy,
    TopicState,
    steps_for,
)
from timewheel.provision.provisioned import (
    Provisioned,
    provided,
    refuse_older,
    routing_of,
    same_revision,
    with_noted_namespaces,
)

TOPIC = "persistent://acme/crm/reminders"
SPEC = TopicSpec(
    name=TOPIC, role="due", partitions=2, subscriptions=("billing", "audit"), deduplication=True, longest_stay_ms=60_000
)
POLICIES: dict[Policy[Any], Any] = {
    MESSAGE_TTL_S: 0,
    SIZE_QUOTA: NO_QUOTA,
    AGE_QUOTA: NO_QUOTA,
    INACTIVE_TOPIC: KEEP_INACTIVE,
    DEDUPLICATION: True,
}
BOTH = frozenset({"billing", "audit"})
NEW = TopicState(partitions=None)
COMPLETE = TopicState(partitions=2, existing=frozenset({0, 1}), subscriptions={0: BOTH, 1: BOTH}, policies=POLICIES)


def test_a_new_topic_gets_its_subscriptions_first_and_then_its_policies() -> None:
    assert [str(step) for step in steps_for(SPEC, NEW)] == [
        "create with 2 partitions",
        "create subscription billing at earliest",
        "create subscription audit at earliest",
        "set messageTTL = 0 (never)",
        "set backlogQuota (destination_storage) = -1 (no limit)",
        "set backlogQuota (message_age) = -1 (no limit)",
        "set inactiveTopicPolicies = deleteWhileInactive false",
        "set deduplicationEnabled = true",
    ]
    assert steps_for(replace(SPEC, deduplication=False), NEW) == steps_for(SPEC, NEW)[:-1], "only where hops arrive"


def test_a_partition_that_was_never_made_comes_before_every_other_call() -> None:
    state = TopicState(partitions=2, existing=frozenset({0}), subscriptions={0: BOTH}, policies=POLICIES)
    assert steps_for(SPEC, state) == (
        CreateMissedPartitions(topic=TOPIC, missing=(1,)),
        CreateSubscription(topic=TOPIC, subscription="billing"),
        CreateSubscription(topic=TOPIC, subscription="audit"),
    )


@pytest.mark.parametrize(
    ("noted", "there", "start"),
    [
        # Nothing is noted: provisioning was interrupted, or has never been there.
        (None, "billing", "earliest"),
        # A plan has added it.
        ({"billing"}, "billing", "latest"),
        # It was removed, or is on some partitions alone: what it has not handled is still there.
        ({"billing", "audit"}, "billing", "earliest"),
        ({"billing"}, "audit", "earliest"),
    ],
)
def test_a_subscription_that_a_plan_adds_begins_at_the_latest_and_one_that_is_repaired_at_the_earliest(
    noted: set[str] | None, there: str, start: str
) -> None:
    state = replace(
        COMPLETE,
        subscriptions={0: frozenset({"billing", there}), 1: frozenset({"billing"})},
        provisioned=None if noted is None else Provisioned(subscriptions=frozenset(noted)),
    )
    (step,) = steps_for(SPEC, state)
    assert str(step) == f"create subscription audit at {start}"


@pytest.mark.parametrize(
    ("policy", "harmless", "harmful"),
    [
        (MESSAGE_TTL_S, [0], [1, 3_600]),
        (SIZE_QUOTA, [BacklogQuota(action="consumer_backlog_eviction")], [BacklogQuota(limit_bytes=10)]),
        (AGE_QUOTA, [BacklogQuota(limit_bytes=10, action="producer_exception")], [BacklogQuota(limit_s=10)]),
        (INACTIVE_TOPIC, [InactiveTopic(delete=False, after_s=7)], [InactiveTopic(delete=True)]),
        (DEDUPLICATION, [True], [False]),
    ],
    ids=str,
)
def test_a_policy_is_changed_only_if_what_is_set_does_harm(
    policy: Policy[Any], harmless: list[object], harmful: list[object]
) -> None:
    for found, changed in [*((value, False) for value in harmless), *((value, True) for value in [*harmful, None])]:
        assert bool(steps_for(SPEC, replace(COMPLETE, policies={**POLICIES, policy: found}))) is changed, found


@pytest.mark.parametrize(
    ("partitions", "problem", "remedy"),
    [
        (0, "without partitions", "another due_topic"),
        (3, "has 3 partitions, the plan says 2, and they cannot be taken away", "partitions = 3 in the plan"),
        (1, "has 1 partition, the plan says 2; growing moves keys", "--grow"),
    ],
)
def test_another_number_of_partitions_is_refused_with_its_remedy(partitions: int, problem: str, remedy: str) -> None:
    state = TopicState(
        partitions=partitions,
        existing=frozenset(range(partitions)),
        subscriptions=dict.fromkeys(range(partitions), BOTH),
        policies=POLICIES,
    )
    with pytest.raises(TopologyError) as caught:
        steps_for(SPEC, state)
    assert caught.value.topic == TOPIC
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize(("found", "wanted"), [(0, 1), (0, 4), (1, 0), (4, 0)])
def test_what_is_partitioned_and_what_is_not_cannot_become_the_other(found: int, wanted: int, *, grow: bool) -> None:
    state = TopicState(partitions=found, existing=frozenset(range(found)))
    with pytest.raises(TopologyError) as caught:
        steps_for(replace(SPEC, partitions=wanted), state, grow=grow)
    there = "exists without partitions" if not found else f"has {counted(found, 'partition')}"
    assert f"{there}, the plan says partitions = {wanted}" in caught.value.problem
    assert "a broker cannot change the one into the other" in caught.value.problem
    assert caught.value.remedy.startswith(f"write partitions = {found} in the plan")


def test_a_topic_of_ours_without_partitions_is_not_made_the_plans() -> None:
    state = TopicState(partitions=0)
    with pytest.raises(TopologyError) as caught:
        steps_for(replace(SPEC, name=f"{TOPIC}.tw.tier-1h", role="tier", partitions=1), state)
    assert "partitions = 0" not in str(caught.value), "only a due topic may be so"


def test_a_topic_without_partitions_is_made_as_such_and_finished_where_that_was_interrupted() -> None:
    spec = replace(SPEC, partitions=0)
    made = steps_for(spec, NEW)
    assert [str(step) for step in made][:3] == [
        "create with no partitions",
        "create subscription billing at earliest",
        "create subscription audit at earliest",
    ]
    half = TopicState(partitions=0, subscriptions={0: frozenset({"billing"})}, policies={})
    assert steps_for(spec, half) == made[2:]
    assert steps_for(spec, TopicState(partitions=0, subscriptions={0: BOTH}, policies=POLICIES)) == ()


def test_growth_on_purpose_gives_the_new_partitions_their_subscriptions() -> None:
    state = TopicState(partitions=1, existing=frozenset({0}), subscriptions={0: BOTH}, policies=POLICIES)
    assert steps_for(SPEC, state, grow=True) == (
        GrowTopic(topic=TOPIC, partitions=2, before=1),
        CreateSubscription(topic=TOPIC, subscription="billing"),
        CreateSubscription(topic=TOPIC, subscription="audit"),
    )


def test_a_stray_partition_is_in_the_way_and_may_hold_messages() -> None:
    state = TopicState(partitions=None, stray=(f"{TOPIC}-partition-0",))
    with pytest.raises(TopologyError, match="before it was provisioned") as caught:
        steps_for(SPEC, state)
    assert f"{TOPIC}-partition-0" in caught.value.remedy


def test_whatever_is_lacking_the_steps_supply_it_and_nothing_else() -> None:
    """All states of a topic of two partitions: each of its parts there or not."""
    names = sorted(BOTH)
    for second, *bits in product([False, True], repeat=1 + 4 + len(POLICIES)):
        present = bits[:4] if second else [*bits[:2], False, False]
        state = TopicState(
            partitions=2,
            existing=frozenset({0, 1} if second else {0}),
            subscriptions={
                number: frozenset(compress(names, present[2 * number : 2 * number + 2])) for number in range(1 + second)
            },
            policies=dict(compress(POLICIES.items(), bits[4:])),
        )
        steps = steps_for(SPEC, state)
        made = {step.subscription for step in steps if isinstance(step, CreateSubscription)}
        assert made == {name for name in names if not all(name in state.subscriptions.get(p, ()) for p in (0, 1))}
        assert {step.policy for step in steps if isinstance(step, SetPolicy)} == set(POLICIES) - set(state.policies)
        assert [isinstance(step, CreateMissedPartitions) for step in steps].count(True) == int(not second)
        assert not any(isinstance(step, CreateTopic | GrowTopic) for step in steps)


# ---------------------------------------------------------------------------------------------- what cannot be mended


def namespace(expiry_min: int | None = None, clusters: tuple[str, ...] = ("one",)) -> NamespacePolicies:
    return NamespacePolicies(
        namespace="acme/crm",
        replication_clusters=clusters,
        schema_validation_enforced=False,
        document={"subscription_expiration_time_minutes": expiry_min},
    )


@pytest.mark.parametrize(
    ("expiry_min", "broker", "found"),
    [
        (None, None, ""),
        (None, {"subscriptionExpirationTimeMinutes": "0"}, ""),
        (0, {"subscriptionExpirationTimeMinutes": "60"}, ""),  # the namespace beats the broker
        (None, {"subscriptionExpirationTimeMinutes": "60"}, "after 60 min, of the broker"),
        (30, {"subscriptionExpirationTimeMinutes": "0"}, "after 30 min, set on the namespace acme/crm"),
    ],
)
def test_subscription_expiry_is_an_error_since_no_topic_policy_beats_it(
    expiry_min: int | None, broker: dict[str, str] | None, found: str
) -> None:
    findings = [*expiry_findings(namespace(expiry_min), broker)]
    assert [finding.severity.word for finding in findings] == (["error"] if found else [])
    if found:
        assert found in findings[0].read
        assert "set-subscription-expiration-time acme/crm -t 0" in findings[0].cure


def test_a_replicated_namespace_is_warned_of() -> None:
    (finding,) = replication_findings(namespace(clusters=("east", "west")), "PLAN")
    assert (finding.severity.word, finding.subject, "east, west" in finding.read) == ("warning", "acme/crm", True)


@pytest.mark.parametrize(
    ("found", "level", "problem"),
    [
        (DelayedDelivery(active=True), None, ""),
        (DelayedDelivery(active=True, max_delay_ms=60_000), None, ""),
        (DelayedDelivery(active=False), "error", "delayed delivery is off"),
        (DelayedDelivery(active=True, max_delay_ms=59_000), "error", "delay is 59s"),
        (DelayedDelivery(active=True, tick_ms=100), "warning", "tick is 100 ms; the plan says 1000 ms"),
    ],
)
def test_a_broker_that_does_not_delay_as_the_plan_needs(
    found: DelayedDelivery, level: str | None, problem: str
) -> None:
    findings = [*delayed_delivery_findings(TOPIC, found, spec=SPEC, tick_ms=1_000)]
    assert [finding.severity.word for finding in findings] == ([level] if level else [])
    assert all(problem in finding.read for finding in findings)


def test_a_strangers_subscription_matters_on_our_own_topics_only() -> None:
    there = {0: frozenset({"billing", "audit", "debug"}), 1: frozenset({"debug", "timewheel-look-0a"})}
    assert not [*foreign_subscriptions(SPEC, there)]
    (finding,) = foreign_subscriptions(replace(SPEC, role="tier"), there)
    assert finding.severity.word == "warning"
    assert "'debug'" in finding.read


@pytest.mark.parametrize(
    ("max_unacked", "remedy"),
    [
        (0, None),  # no bound at all
        (50_000, None),  # the broker's default: twice the 25,000 that a consumer holds
        (49_999, "max_held=24999, or pulsar-admin"),
        (400, "max_held=200, or pulsar-admin"),
        (1, "pulsar-admin"),
    ],
)
def test_a_bound_below_what_consumers_hold_is_found(max_unacked: int, remedy: str | None) -> None:
    findings = [*unacknowledged_findings(SPEC, max_unacked)]
    assert [finding.severity.word for finding in findings] == ([] if remedy is None else ["warning"])
    assert all(f"PerConsumer is {max_unacked:,}; 25,000" in finding.read for finding in findings)
    assert all(str(remedy) in finding.cure for finding in findings)
    assert all(finding.cure.endswith(f"{TOPIC} -m 50000") for finding in findings)


@pytest.mark.parametrize(
    ("names", "broker", "told"),
    [
        (7_999, None, None),
        (8_000, None, "8,000 producers' names are remembered of a partition, of 10,000"),
        (8_000, {"brokerDeduplicationMaxNumberOfProducers": "20000"}, None),
        (90, {"brokerDeduplicationMaxNumberOfProducers": "100"}, "90 producers' names"),
    ],
)
def test_names_of_producers_that_are_about_to_be_forgotten(
    names: int, broker: dict[str, str] | None, told: str | None
) -> None:
    found = [*producer_name_findings(SPEC, names, broker)]
    assert [finding.severity.word for finding in found] == (["warning"] if told else [])
    assert told is None or told in found[0].read


@pytest.mark.parametrize("settings", [None, {}, {"managedLedgerMaxUnackedRangesToPersist": "20"}])
def test_native_timers_whose_gaps_stay_far_from_the_limit_are_no_alarm(settings: dict[str, str] | None) -> None:
    limit = 20 if settings else 10_000

    def found(*delayed: int) -> list[Finding]:
        parts = [{"subscriptions": {"billing": {"msgDelayed": one, "msgBacklog": one}}} for one in delayed]
        return [*native_timer_findings(SPEC, [read_topic_stats(part, clients=False) for part in parts], settings)]

    assert found(0, 0) == []
    (few,) = found(limit // 2, limit // 2)
    assert (few.severity.word, f"{limit:,} timers wait here" in few.read) == ("info", True)
    assert "shadow" not in few.cure
    (many,) = found(0, limit // 2 + 1)
    assert many.severity.word == "warning"
    assert many.cure.startswith("first a shadow: timewheel shadow start")


@pytest.mark.parametrize(("relays", "told"), [(0, False), (49, False), (50, True)])
def test_many_relays_within_consumers_are_warned_of(relays: int, told: bool) -> None:
    found = relay_count_findings(SPEC, relays)
    assert [(finding.severity.word, f"{relays} relays" in finding.read) for finding in found] == [
        ("warning", True)
    ] * told


PLAN = plan_of(
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), subscriptions=("a:b/c d%é", "billing"), holding_namespace="acme/held"
)
OF_HELD = "persistent://acme/held/acme~crm~reminders.tw.tier-1d-partition-0"


def test_a_note_is_read_as_it_was_written() -> None:
    noted = provided(PLAN, None, [])
    assert noted == Provisioned(
        subscriptions=frozenset(PLAN.subscriptions),
        namespaces=frozenset({"acme/held"}),
        revision=PLAN.revision,
        routing=routing_of(PLAN),
    )
    assert Provisioned.read(noted.properties()) == noted
    of_earlier_version = json.loads(noted.properties()[PROVISIONED_PROPERTY])
    del of_earlier_version["routing"]
    properties = {PROVISIONED_PROPERTY: json.dumps(of_earlier_version)}
    assert Provisioned.read(properties) == replace(noted, routing="")


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "7", '{"subscriptions": 7, "namespaces": []}'])
def test_what_is_no_note_counts_as_none(text: str | None) -> None:
    assert Provisioned.read({} if text is None else {PROVISIONED_PROPERTY: text}) is None


def test_a_namespace_is_noted_as_long_as_a_topic_of_the_plan_is_in_it() -> None:
    noted, after = provided(PLAN, None, []), replace(PLAN, holding_namespace=None)
    assert with_noted_namespaces(after, noted).former_namespaces == ("acme/held",)
    assert with_noted_namespaces(PLAN, noted) == PLAN
    whole = with_noted_namespaces(after, noted)
    assert provided(whole, noted, [OF_HELD]).namespaces == {"acme/held"}
    assert provided(whole, noted, ["persistent://acme/held/another"]).namespaces == frozenset()


@pytest.mark.parametrize("names", [{"no namespace"}, {f"acme/n{number}" for number in range(MAX_FORMER + 1)}])
def test_a_note_that_somebody_else_wrote_breaks_nothing(names: set[str]) -> None:
    found = with_noted_namespaces(PLAN, Provisioned(namespaces=frozenset(names))).former_namespaces
    assert len(found) in {0, MAX_FORMER}


def test_only_an_older_plan_is_refused() -> None:
    noted = provided(replace(PLAN, revision=2), None, [])
    for plan in (replace(PLAN, revision=2), replace(PLAN, revision=3)):
        refuse_older(plan, plan.due_topic, noted)
    refuse_older(PLAN, PLAN.due_topic, None)
    refuse_older(PLAN, PLAN.due_topic, Provisioned())
    with pytest.raises(TopologyError, match="revision 2 of its plan, and this file has revision 1") as refused:
        refuse_older(PLAN, PLAN.due_topic, noted, "old plan.toml")
    assert "write revision = 3 in it and run timewheel topics ensure 'old plan.toml'" in refused.value.remedy


def test_of_two_plans_of_one_revision_that_route_differently_both_are_named() -> None:
    """A change without a raised revision once passed in silence, and so did the file from before it."""
    noted = provided(PLAN, None, [])
    changed = replace(PLAN, scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 2 * DAY_MS)))
    (found,) = same_revision(changed, PLAN.due_topic, noted, "my plan.toml")
    assert routing_of(PLAN) in found.read
    assert routing_of(changed) in found.read
    assert "write revision = 2 in it and run timewheel topics ensure 'my plan.toml'" in found.cure
    of_earlier_code = replace(noted, routing=f"0.{noted.routing}")
    same_route = replace(PLAN, max_delay_ms=PLAN.max_delay_ms - DAY_MS)
    for plan, record in (
        (PLAN, noted),
        (same_route, noted),
        (replace(changed, revision=2), noted),
        (changed, None),
        (changed, replace(noted, routing="")),
        (changed, of_earlier_code),
    ):
        assert same_revision(plan, PLAN.due_topic, record) == ()


def test_a_relay_of_an_older_file_says_so_once_and_goes_on() -> None:
    """It read its file at its start, and nothing said that another file had provisioned the topic since."""
    events: list[Event] = []
    properties: dict[str, str] = {}
    admin: Any = SimpleNamespace()
    admin.topics = SimpleNamespace(properties=lambda _: dict(properties), list=lambda _: ())
    factory = RelayFactory(None, admin, lambda: (PLAN,), None, None, 1 << 20, (events.append,))
    former_topics = factory._options(PLAN)["former_topics"]
    for noted in (None, replace(PLAN, revision=1), replace(PLAN, revision=3), replace(PLAN, revision=3)):
        if noted is not None:
            properties |= provided(noted, None, []).properties()
        assert former_topics() == ()
    (event,) = events
    assert isinstance(event, RelayPlanOutdated)
    assert "revision 3 of its plan, and this file has revision 1" in event.reason
    admin.topics.properties = lambda _: (_ for _ in ()).throw(AdminDenied(403, "GET", "no"))
    assert former_topics() == ()


START_MS = 1_767_225_600_000  # 2026-01-01
INTERVAL = CalendarTopic("persistent://acme/crm/reminders", DAY_MS, START_MS)
END_MS = START_MS + DAY_MS
GRACE_MS = 5 * MINUTE_MS
PLAN_SUBSCRIPTIONS = ("billing", "audit")


def state(*, terminated: bool = True, entries: int = 0, consumed: str = "", **backlog: int) -> LifeState:
    return LifeState(
        interval=INTERVAL,
        terminated=terminated,
        entries=entries,
        backlog=backlog,
        complete=frozenset(backlog),
        consumed=frozenset(consumed.split()),
        producers=0,
    )


@pytest.mark.parametrize(
    ("found", "stage"),
    [
        (state(terminated=False, billing=0, audit=0), Stage.PASSED),
        (state(terminated=False, entries=9, billing=0, audit=0), Stage.PASSED),
        (state(terminated=False, entries=9, billing=9, audit=0), Stage.DRAINING),
        (state(terminated=False, billing=0, audit=0, consumed="audit"), Stage.IN_USE),
        (state(terminated=False, entries=9, billing=0), Stage.STRANDED),
        (state(entries=9, billing=0, audit=0, consumed="audit"), Stage.DRAINED),
        (state(entries=9, billing=9, audit=9), Stage.DRAINING),
        (state(entries=9, billing=0, audit=1), Stage.DRAINING),
        (state(entries=9, billing=0, audit=0, foreign=1), Stage.DRAINING),  # every subscription, not only the plan's
        (state(entries=9, billing=0, audit=0), Stage.DRAINED),
        (state(entries=0, billing=0, audit=0), Stage.DRAINED),
        (state(entries=9, billing=0), Stage.STRANDED),  # audit is gone, and nobody knows what it had handled
        (state(entries=9), Stage.STRANDED),
        (state(entries=0, billing=0), Stage.DRAINED),  # nothing was ever there to be handled
        (state(entries=0), Stage.DRAINED),
        (state(entries=9, foreign=0), Stage.STRANDED),
        (replace(state(entries=9, billing=0, audit=0), complete=frozenset({"billing"})), Stage.STRANDED),
    ],
)
def test_the_stage_of_a_passed_topic(found: LifeState, stage: Stage) -> None:
    assert stage_of(found, PLAN_SUBSCRIPTIONS, END_MS + GRACE_MS, GRACE_MS) is stage


@given(
    terminated=st.booleans(),
    entries=st.integers(0, 3),
    consumed=st.sampled_from(["", "billing"]),
    backlog=st.dictionaries(st.sampled_from(["billing", "audit", "foreign"]), st.integers(0, 3)),
    now_ms=st.integers(START_MS - DAY_MS, END_MS + DAY_MS),
)
def test_a_topic_is_ended_and_removed_only_once_it_has_passed_and_is_drained(
    *, terminated: bool, entries: int, consumed: str, backlog: dict[str, int], now_ms: int
) -> None:
    found = state(terminated=terminated, entries=entries, consumed=consumed, **backlog)
    stage = stage_of(found, PLAN_SUBSCRIPTIONS, now_ms, GRACE_MS)
    if now_ms < END_MS + GRACE_MS:
        assert stage is Stage.OPEN
    if stage in {Stage.PASSED, Stage.DRAINED}:
        assert now_ms >= END_MS + GRACE_MS
        assert terminated or not consumed
        assert terminated is (stage is Stage.DRAINED)
        assert not any(backlog.values())
        assert not entries or backlog.keys() >= set(PLAN_SUBSCRIPTIONS)


def plan(interval_ms: int, guard_ms: int = GRACE_MS) -> Plan:
    calendar, longest_ms = Calendar(interval_ms=interval_ms), 10 * interval_ms
    return plan_of(calendar, subscriptions=PLAN_SUBSCRIPTIONS, max_delay_ms=longest_ms, guard_ms=guard_ms)


@pytest.mark.parametrize(
    ("interval_ms", "pause_ms"), [(DAY_MS, MINUTE_MS), (HOUR_MS, MINUTE_MS), (60_000, 15_000), (1_000, 1_000)]
)
def test_a_keeper_looks_several_times_an_interval_and_at_least_once_a_minute(interval_ms: int, pause_ms: int) -> None:
    with AdminClient("http://localhost:1") as admin:
        assert CalendarRoller(admin, plan(interval_ms), SystemClock()).pause_ms == pause_ms
    assert grace_ms(plan(interval_ms, guard_ms=7_000)) == 7_000, "the plan's guard"


def test_only_a_calendar_rolls() -> None:
    native = Plan(due_topic=INTERVAL.due_topic, subscriptions=("s",), scheme=Native())
    with AdminClient("http://localhost:1") as admin:
        with pytest.raises(TypeError, match="Native"):
            roll(admin, native, START_MS)
        with pytest.raises(TypeError, match="Native"):
            CalendarRoller(admin, native, SystemClock())
