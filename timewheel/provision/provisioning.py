"""Provisioning: create everything on the broker that a plan needs, before its first publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import wait_random

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import attempts
from timewheel.broker.admin.parts import loaded_parts, producer_names
from timewheel.broker.admin.policies import DELAYED_DELIVERY, MAX_UNACKED_PER_CONSUMER
from timewheel.core.clock import pause
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, TopologyError
from timewheel.core.escapes import pulsar_admin
from timewheel.core.names import RELAY_SUBSCRIPTION, namespace_of, partition_of, partition_topic, parts_of
from timewheel.core.plan import Plan, Tiered
from timewheel.core.topology import TopicSpec, UndrainedTopics, topology
from timewheel.provision.findings import Finding, Severity
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
from timewheel.provision.former_topics import findings_of, former_names, left_behind, look_into, remedy_for
from timewheel.provision.provision_steps import (
    CreateMissedPartitions,
    CreateNamespace,
    CreateSubscription,
    CreateTopic,
    GrowTopic,
    SetPolicy,
    Step,
    TopicState,
    existing_of,
    steps_for,
    wanted_policies,
    waves_of,
)
from timewheel.provision.provisioned import (
    note,
    provided,
    provisioned,
    refuse_older,
    same_revision,
    with_noted_namespaces,
)

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE = 8  # concurrent admin calls: a wheel has dozens of topics, and a broker answers each call in some 20 ms
DEDUPLICATION_WAIT_MS = 30_000  # a loaded topic enables deduplication a moment after its policy was set
POLL_MS = 50
POLICY_WAIT_S = 5.0  # time until a policy can be read back; a policy that takes longer was undone, and is set again
POLICY_TURNS = 4
MEETING_WAIT_MS = 10_000  # two concurrent runs collide at a topic or a subscription for milliseconds
MEETING_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of provisioning, or of a dry run."""

    dry_run: bool  # True if nothing was changed; the steps are then still to do
    topics: tuple[str, ...]  # all topics of the plan at that moment
    steps: tuple[Step, ...]  # steps in order; empty if everything was in place
    findings: tuple[Finding, ...]  # problems that provisioning cannot repair

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that mean lost, refused or early messages."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def ensure(
    admin: AdminClient,
    plan: Plan,
    *,
    now_ms: int,
    dry_run: bool = False,
    create_namespaces: bool = False,
    grow: bool = False,
    ignore_former_topics: bool = False,
    target: str = "PLAN",
) -> Report:
    """Create the plan's topics, subscriptions and topic policies; existing objects are left unchanged.

    Everything is read before anything is changed, so a topic that cannot be repaired stops the run at the start. Then
    topics are created against the direction of a timer's hops (dead letters, due topics, small tiers, large tiers).
    Wherever the run is interrupted, a topic exists only if all topics exist that its timers go to. A due topic that is
    not partitioned, which may belong to a user, comes before all of them. A second run continues.

    Args:
        admin: Client of the cluster; its role must administer the tenants.
        plan: A valid plan.
        now_ms: Present time, UTC milliseconds; decides the intervals of a calendar.
        dry_run: Change nothing; only report the steps.
        create_namespaces: Create missing namespaces (never tenants).
        grow: Raise the number of partitions of topics that have fewer than the plan.
        ignore_former_topics: Only warn of timers in topics of an earlier plan that no relay or consumer of this plan
            would move: the caller takes care of them.
        target: The user's name for the plan.

    Returns:
        The steps and the findings. Findings do not stop the run.

    Raises:
        TopologyError: A tenant or namespace is missing, a topic exists in a form that cannot be repaired, or a later
            revision of the plan was provisioned last.
        UndrainedTopics: Timers wait in topics of an earlier plan, and no relay or consumer would move them
            (broker-facts: topics-outside-the-plan).
        AdminDenied: The role lacks permission; the error names the missing permission.
        AdminError: A call failed for another reason; a second run continues from there.
    """
    namespaces = sorted(
        {namespace_of(spec.name) for spec in topology(plan, now_ms).topics} | {namespace_of(plan.due_topic)}
    )
    stored = {namespace: _names_in(admin, namespace, create=create_namespaces) for namespace in namespaces}
    noted = provisioned(admin, plan.due_topic)
    refuse_older(plan, plan.due_topic, noted, target)
    whole = with_noted_namespaces(plan, noted)
    listed = [name for names in stored.values() for name in names or ()]
    listed += former_names(admin, whole, besides=namespaces)
    former = look_into(admin, whole, listed)
    stranded = left_behind(plan, former)
    if stranded and not ignore_former_topics:
        remedy = remedy_for(plan, stranded, target)
        raise UndrainedTopics(stranded, f"{remedy}; or give --ignore-former-topics if you take care of them")
    drains = any(topic.holding is not None for topic in former)
    waves = waves_of(topology(plan, now_ms, drains=drains).topics)
    specs = [spec for wave in waves for spec in wave]
    with ThreadPoolExecutor(CALLS_AT_ONCE, "timewheel-provision") as pool:
        states = dict(zip(specs, pool.map(lambda spec: _state(admin, spec, stored), specs), strict=True))
        needed = {spec: steps_for(spec, states[spec], grow=grow) for spec in specs}
        missing = [CreateNamespace(namespace=name) for name in namespaces if stored[name] is None]
        if not dry_run:
            for step in missing:
                _apply(admin, step)
            for wave in waves:
                _each(pool, lambda spec: _bring_up(admin, spec, needed[spec]), wave)
            made = provided(whole, noted, listed)
            due = [spec for spec in specs if spec.role == "due" and states[spec].provisioned != made]
            _each(pool, lambda spec: note(admin, spec.name, made), due)
        findings = (
            *same_revision(plan, plan.due_topic, noted, target),
            *_findings(admin, plan, states, target, dry_run=dry_run),
            *findings_of(plan, former, target),
        )
    return Report(
        dry_run=dry_run,
        topics=tuple(spec.name for spec in specs),
        steps=(*missing, *(step for spec in specs for step in needed[spec])),
        findings=findings,
    )


def _names_in(admin: AdminClient, namespace: str, *, create: bool) -> frozenset[str] | None:
    """List all topics of a namespace, partitions by name; None if the namespace is missing and may be created."""
    tenant = namespace.partition("/")[0]
    with _explained(f"looking into namespace {namespace}"):
        try:
            admin.namespaces.policies(namespace)
        except AdminMissing:
            pass
        else:
            return frozenset(admin.topics.list(namespace))
        try:
            admin.namespaces.list(tenant)
        except AdminMissing as error:
            raise TopologyError(
                namespace, f"there is no tenant {tenant}", pulsar_admin("tenants", "create", tenant)
            ) from error
    if not create:
        raise TopologyError(
            namespace,
            "there is no such namespace",
            f"{pulsar_admin('namespaces', 'create', namespace)}, or timewheel topics ensure PLAN --create-namespaces",
        )
    return None


def _state(admin: AdminClient, spec: TopicSpec, stored: Mapping[str, frozenset[str] | None]) -> TopicState:
    names = stored[namespace_of(spec.name)]
    with _explained(f"looking at {spec.name}"):
        partitions = None if names is None else admin.topics.partitions(spec.name)
        if not names or partitions is None or bool(partitions) != bool(spec.partitions):
            stray = tuple(sorted(name for name in names or () if partition_of(name)[0] == spec.name != name))
            return TopicState(partitions=partitions, stray=stray)
        existing = existing_of(names, spec.name, partitions)
        return TopicState(
            partitions=partitions,
            existing=existing,
            subscriptions={
                number: frozenset(admin.subscriptions.list(part))
                for number, part in enumerate(parts_of(spec.name, partitions))
                if number in existing
            },
            policies={policy: _policy(admin, spec.name, policy) for policy, _ in wanted_policies(spec)},
            provisioned=provisioned(admin, spec.name) if spec.role == "due" else None,
        )


def _policy(admin: AdminClient, topic: str, policy: Any) -> Any:
    with _policies_on(topic):
        return admin.topic_policies.get(topic, policy)


def _bring_up(admin: AdminClient, spec: TopicSpec, steps: Sequence[Step]) -> None:
    """Take a topic's steps, and read back the policies, which travel through a system topic."""
    for step in steps:
        if not isinstance(step, SetPolicy):
            _apply(admin, step)
    _set_policies(admin, spec.name, [step for step in steps if isinstance(step, SetPolicy)])
    if spec.deduplication and steps:
        # A hop that arrives before deduplication is in force could be stored twice after a crash (broker-facts:
        # deduplicated-destinations).
        _await_deduplication(admin, spec)


def _apply(admin: AdminClient, step: Step) -> None:
    with _explained(f"taking the step: {step} ({step.topic})"):
        match step:
            case CreateNamespace(namespace=namespace):
                admin.namespaces.create(namespace)
            case CreateTopic(topic=topic, partitions=partitions):
                _create_topic(admin, topic, partitions)
            case CreateMissedPartitions(topic=topic):
                admin.topics.create_missed_partitions(topic)
            case GrowTopic(topic=topic, partitions=partitions):
                admin.topics.update_partitions(topic, partitions)
            case CreateSubscription():
                _create_subscription(admin, step)
            case SetPolicy(topic=topic, policy=policy, value=value):
                with _policies_on(topic):
                    admin.topic_policies.set(topic, policy, value)


def _set_policies(admin: AdminClient, topic: str, steps: Sequence[SetPolicy]) -> None:
    """Set policies one after another, each read back, until all hold (broker-facts: policies-set-side-by-side)."""
    left = list(steps)
    for turn in range(1, POLICY_TURNS + 1):
        for step in left:
            _apply(admin, step)
            with _explained(f"reading back the policies of {topic}"):
                try:
                    admin.topic_policies.await_value(topic, step.policy, step.value, timeout_s=POLICY_WAIT_S)
                except TopologyError:
                    if turn == POLICY_TURNS:
                        raise
        # A concurrent client that sets another policy may have undone ours since.
        left = [step for step in steps if _policy(admin, topic, step.policy) != step.value]
        if not left:
            return
    raise TopologyError(
        topic,
        f"its policy {left[0].policy} was set {POLICY_TURNS} times, and each time undone",
        "find the other program that sets policies of this topic, and run this again",
    )


def _create_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create a topic, even while another client creates it: the broker then reports too early that it exists."""
    if admin.topics.create(topic, partitions) if partitions else admin.topics.create_unpartitioned(topic):
        return
    deadline_ms = admin.clock.monotonic_ms() + MEETING_WAIT_MS
    while (found := admin.topics.partitions(topic)) != partitions:
        if found is not None or admin.clock.monotonic_ms() >= deadline_ms:
            raise TopologyError(topic, "another process is creating it, in another form", "run this again")
        pause(admin.clock, POLL_MS)
    if partitions:
        # Partitions may not exist yet, and calls about a topic that lacks a partition hang.
        admin.topics.create_missed_partitions(topic)


def _create_subscription(admin: AdminClient, step: CreateSubscription) -> None:
    """Create a subscription, even while another client creates it.

    The broker then refuses (412, "failed to fence") until the subscription exists.
    """
    repeated = attempts(
        admin.clock,
        again=lambda error: isinstance(error, AdminError) and error.status == 412,
        within_ms=MEETING_WAIT_MS,
        pauses=wait_random(max=MEETING_PAUSE_S),
    )
    repeated(admin.subscriptions.create, step.topic, step.subscription, start=step.start)


def _await_deduplication(admin: AdminClient, spec: TopicSpec) -> None:
    deadline_ms = admin.clock.monotonic_ms() + DEDUPLICATION_WAIT_MS
    while True:
        # A partition that is not loaded reads its policies when it is loaded.
        loaded = loaded_parts(admin, spec)
        waiting = [name for name, stats in loaded.items() if stats.deduplication != "Enabled"]
        if not waiting:
            return
        if admin.clock.monotonic_ms() >= deadline_ms:
            raise TopologyError(
                waiting[0],
                f"deduplication is set, and {loaded[waiting[0]].deduplication or 'not in force'} "
                f"{DEDUPLICATION_WAIT_MS // 1000} s later",
                "unload the topic, or see the broker's log",
            )
        pause(admin.clock, POLL_MS)


def _relays(admin: AdminClient, spec: TopicSpec) -> int:
    """Return the number of relays connected to the first partition: each relay reads all partitions."""
    stats = admin.topics.stats(partition_topic(spec.name, 0), clients=True)
    relays = stats.subscriptions.get(RELAY_SUBSCRIPTION)
    return 0 if relays is None else len(relays.consumers or ())


def _findings(
    admin: AdminClient, plan: Plan, states: Mapping[TopicSpec, TopicState], target: str, *, dry_run: bool
) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    broker = admin.brokers.runtime_configuration()
    for namespace in sorted({namespace_of(spec.name) for spec in states}):
        try:
            policies = admin.namespaces.policies(namespace)
        except AdminMissing:
            continue  # a dry run, and the namespace would be created
        findings += (*expiry_findings(policies, broker), *replication_findings(policies, target))
    by_broker = isinstance(plan.scheme, Tiered) and plan.scheme.hold == "broker"
    held = [state for spec, state in states.items() if spec.role in {"tier", "slot"}]
    is_new = plan.needs_relay and not plan.intake and all(state.partitions is None for state in held)
    due_seen, asked_of_relays = False, by_broker or plan.relay != "embedded"
    for spec, state in states.items():
        findings += foreign_subscriptions(spec, state.subscriptions)
        if spec.deduplication and spec.role != "slot" and state.partitions is not None:
            # Slots are left out: the read loads a topic, and producers of slots send to the due topic as well.
            findings += producer_name_findings(spec, producer_names(admin, spec), broker)
        if spec.role == "tier" and state.partitions and not asked_of_relays:
            asked_of_relays = True  # relays read all tiers alike
            findings += relay_count_findings(spec, _relays(admin, spec), target)
        delays = (spec.role == "due" and not due_seen) or (spec.role == "tier" and by_broker)
        if not delays or (dry_run and state.partitions is None):
            continue
        if spec.role == "due":
            due_seen = True  # a calendar's topics are all alike
            if is_new and state.partitions is not None:
                findings += native_timer_findings(spec, loaded_parts(admin, spec).values(), broker)
            bound = admin.topic_policies.get(spec.name, MAX_UNACKED_PER_CONSUMER, applied=True)
            findings += unacknowledged_findings(spec, bound) if bound is not None else ()
        found = admin.topic_policies.get(spec.name, DELAYED_DELIVERY, applied=True)
        if found is not None:
            findings += delayed_delivery_findings(spec.name, found, spec=spec, tick_ms=plan.tick_ms, target=target)
    return tuple(findings)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Add the interrupted action to a refusal, which already names the missing permission."""
    try:
        yield
    except AdminDenied as error:
        raise AdminDenied(error.status, error.endpoint, f"{error.reason}; while {what}") from error


@contextmanager
def _policies_on(topic: str) -> Iterator[None]:
    try:
        yield
    except AdminError as error:
        if error.status == 405:  # Method Not Allowed: topic policies are disabled
            raise TopologyError(
                topic,
                "this broker has no policies of topics, and a namespace's TTL or quota would drop timers",
                "set topicLevelPoliciesEnabled=true and systemTopicEnabled=true in broker.conf",
            ) from error
        raise


def _each(pool: ThreadPoolExecutor, act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for all items concurrently, and wait for all; the first error is raised."""
    futures = [pool.submit(act, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
