"""The steps that a topic needs: a pure comparison of the plan with the broker's state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from timewheel.broker.admin import policies
from timewheel.core.errors import TopologyError
from timewheel.core.escapes import pulsar_admin
from timewheel.core.names import parts_of
from timewheel.core.plurals import counted
from timewheel.core.topology import TopicSpec
from timewheel.provision.provisioned import Provisioned


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNamespace:
    """Create a namespace; only if permitted by the caller."""

    namespace: str

    @property
    def topic(self) -> str:
        return self.namespace

    def __str__(self) -> str:
        return "create namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic; 0 partitions for a topic that is not partitioned."""

    topic: str
    partitions: int

    def __str__(self) -> str:
        return f"create with {partitions_in_words(self.partitions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMissedPartitions:
    """Create partitions that the topic's metadata names but that do not exist: its creation was interrupted."""

    topic: str
    missing: tuple[int, ...]

    def __str__(self) -> str:
        return f"create missing partitions {', '.join(map(str, self.missing))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowTopic:
    """Raise the number of partitions; only if permitted by the caller."""

    topic: str
    partitions: int
    before: int

    def __str__(self) -> str:
        return f"grow from {self.before} to {self.partitions} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSubscription:
    """Create a subscription on the partitions that lack it; ``latest`` starts it with messages sent from then on."""

    topic: str
    subscription: str
    start: Literal["earliest", "latest"] = "earliest"

    def __str__(self) -> str:
        return f"create subscription {self.subscription} at {self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """Set a policy on the topic, where it beats the namespace's (broker-facts: policies-of-topics)."""

    topic: str
    policy: policies.Policy[Any]
    value: Any

    def __str__(self) -> str:
        return f"set {self.policy} = {_VALUE_TEXTS.get(self.policy, self.value)}"


Step = CreateNamespace | CreateTopic | CreateMissedPartitions | GrowTopic | CreateSubscription | SetPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """State of a topic on the broker."""

    partitions: int | None  # number of partitions; None if the topic does not exist, 0 if it is not partitioned
    existing: frozenset[int] = frozenset()  # numbers (`parts_of`); an interrupted creation leaves fewer
    # names of subscriptions by number of the existing partition
    subscriptions: Mapping[int, frozenset[str]] = field(default_factory=dict)
    # policies set on the topic itself; an unset policy is None or missing
    policies: Mapping[policies.Policy[Any], Any] = field(default_factory=dict)
    stray: tuple[str, ...] = ()  # partitions that exist although the topic does not
    provisioned: Provisioned | None = None  # the provisioning record of a due topic


_WANTED: Final[tuple[tuple[policies.Policy[Any], Any], ...]] = (
    (policies.MESSAGE_TTL_S, 0),
    (policies.SIZE_QUOTA, policies.NO_QUOTA),
    (policies.AGE_QUOTA, policies.NO_QUOTA),
    (policies.INACTIVE_TOPIC, policies.KEEP_INACTIVE),
)
_VALUE_TEXTS: Final[Mapping[policies.Policy[Any], str]] = {
    policies.MESSAGE_TTL_S: "0 (never)",
    policies.SIZE_QUOTA: "-1 (no limit)",
    policies.AGE_QUOTA: "-1 (no limit)",
    policies.INACTIVE_TOPIC: "deleteWhileInactive false",
    policies.DEDUPLICATION: "true",
}


def wanted_policies(spec: TopicSpec) -> tuple[tuple[policies.Policy[Any], Any], ...]:
    """Return the policies that a topic sets itself, with values (broker-facts: policies-of-topics)."""
    return (*_WANTED, (policies.DEDUPLICATION, True)) if spec.deduplication else _WANTED


def steps_for(spec: TopicSpec, state: TopicState, *, grow: bool = False) -> tuple[Step, ...]:
    """Return the steps that a topic needs, in an order in which an interruption loses nothing.

    A topic accepts messages as soon as it exists, so its subscriptions come next, at the earliest position: they still
    get messages published in between. A subscription that a plan adds later to a due topic starts at the latest
    position: messages that other subscriptions have handled are not for it. Policies follow, since their absence takes
    a minute or more to do harm.

    Raises:
        TopologyError: The topic exists, and cannot be changed into the form that the plan needs.
    """
    steps: list[Step] = []
    if state.partitions is None:
        if state.stray:
            raise TopologyError(
                spec.name,
                f"a client published or subscribed before it was provisioned, and the broker made {state.stray[0]} "
                "alone, which is in the way",
                "stop them, save what it holds (no subscription of the plan reads it), and delete it: "
                + pulsar_admin("topics", "delete", state.stray[0]),
            )
        steps.append(CreateTopic(topic=spec.name, partitions=spec.partitions))
    else:
        _check_form(spec, state.partitions, grow=grow)
        missing = tuple(sorted(set(range(state.partitions)) - state.existing))
        if missing:
            # Before anything else: a call about a topic that lacks a partition makes the broker hang.
            steps.append(CreateMissedPartitions(topic=spec.name, missing=missing))
        if state.partitions < spec.partitions:
            steps.append(GrowTopic(topic=spec.name, partitions=spec.partitions, before=state.partitions))
    steps += [
        CreateSubscription(topic=spec.name, subscription=subscription, start=_start(subscription, state))
        for subscription in spec.subscriptions
        if not all(subscription in state.subscriptions.get(number, ()) for number in range(len(spec.parts)))
    ]
    return (*steps, *policy_steps(spec, state.policies))


def policy_steps(spec: TopicSpec, policies: Mapping[policies.Policy[Any], Any]) -> tuple[SetPolicy, ...]:
    """Return the steps that set the policies that a topic must set itself."""
    return tuple(
        SetPolicy(topic=spec.name, policy=policy, value=value)
        for policy, value in wanted_policies(spec)
        if not _satisfied(policy, value, policies.get(policy))
    )


def _check_form(spec: TopicSpec, partitions: int, *, grow: bool) -> None:
    if partitions == spec.partitions or (grow and 0 < partitions < spec.partitions):
        return
    has, into = f"has {partitions_in_words(partitions)}, the plan says", "a broker cannot change the one into the other"
    write = f"write partitions = {partitions} in the plan"
    if spec.partitions == 0:
        problem, remedy = f"{has} partitions = 0, and {into}", write
    elif partitions == 0 and not spec.is_own:
        problem = f"exists without partitions, the plan says partitions = {spec.partitions}, and {into}"
        remedy = f"{write}, or give it another due_topic"
    elif partitions == 0:
        problem = "exists without partitions, and the relay and its takeover need them, be it one"
        remedy = "let its consumers drain it and delete it, or give the plan another due_topic"
    elif partitions > spec.partitions:
        problem = f"{has} {spec.partitions}, and they cannot be taken away"
        remedy = write + (", if its due topic has as many; else drain it and delete it" if spec.is_own else "")
    else:
        problem = (
            f"{has} {spec.partitions}; growing moves keys to other partitions, and processes with the old plan do not "
            "see the new partitions"
        )
        remedy = (
            f"{write}, or grow it on purpose (timewheel topics ensure PLAN --grow) and restart consumers, then relays, "
            "then producers"
        )
    raise TopologyError(spec.name, problem, remedy)


def partitions_in_words(number: int) -> str:
    """Return the number of partitions in words."""
    return counted(number, "partition") if number else "no partitions"


def _start(subscription: str, state: TopicState) -> Literal["earliest", "latest"]:
    """Return the start position: earliest for a subscription that may have existed before, so that it loses nothing."""
    anywhere = any(subscription in names for names in state.subscriptions.values())
    if anywhere or state.provisioned is None or subscription in state.provisioned.subscriptions:
        return "earliest"
    return "latest"


def _satisfied(policy: policies.Policy[Any], wanted: Any, found: Any) -> bool:
    """Return whether a policy has the wanted effect; its other fields (actions, durations) are left to its owner."""
    if found is None:
        return False
    if policy is policies.SIZE_QUOTA:
        return bool(found.limit_bytes == policies.UNLIMITED)
    if policy is policies.AGE_QUOTA:
        return bool(found.limit_s == policies.UNLIMITED)
    if policy is policies.INACTIVE_TOPIC:
        return not found.delete
    return bool(found == wanted)


def existing_of(names: frozenset[str], topic: str, partitions: int) -> frozenset[int]:
    """Return the numbers of a topic's partitions that are among these names."""
    return frozenset(number for number, part in enumerate(parts_of(topic, partitions)) if part in names)


def waves_of(specs: Sequence[TopicSpec]) -> list[list[TopicSpec]]:
    """Return the topics in the order of creation; topics of a wave do not depend on each other."""
    waves: defaultdict[tuple[int, int], list[TopicSpec]] = defaultdict(list)
    for spec in specs:
        held = spec.role in {"tier", "slot"}
        rank = 3 if spec.is_entrance else 2 if held else 1 if spec.is_consumed else 0
        if not spec.partitions:
            rank = -1  # its clients look for the dead-letter topic first (broker-facts: unpartitioned-topics)
        # A timer hops from long stays to short stays: the destinations of a topic's timers come before it.
        waves[rank, spec.longest_stay_ms if held else 0].append(spec)
    return [waves[key] for key in sorted(waves)]
