"""Topology: the topics, subscriptions and policies that must exist on the broker before a plan's first publish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from timewheel.core.names import (
    CANCELLATIONS_SUBSCRIPTION,
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    parts_of,
)
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import INTAKE_STEP, JOURNAL_STEP, Step, longest_due_stay_ms, steps

TopicRole = Literal["due", "tier", "slot", "dead_letter", "cancellations", "retry", "parked", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """Specification of a topic.

    Args:
        name: Full name, without a partition suffix.
        role: Purpose of the topic.
        partitions: Number of partitions; 0: the topic is unpartitioned, which only a due topic may be
            (broker-facts: failover-and-takeover).
        subscriptions: Subscriptions that must exist, from the earliest position, before the first publish.
        deduplication: True for the destinations of relays' hops (broker-facts: deduplicated-destinations). It is a
            topic policy, which overrides the namespace's.
        longest_stay_ms: Longest time that a message may wait in the topic unacknowledged if nothing fails; TTL and
            quotas must not be shorter.

    Further policies are the same for all topics: messageTTL 0, size and age quota -1, deleteWhileInactive false
    (broker-facts: policies-of-topics).
    """

    name: str
    role: TopicRole
    partitions: int
    subscriptions: tuple[str, ...]
    deduplication: bool
    longest_stay_ms: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Names under which a broker stores the topic."""
        return parts_of(self.name, self.partitions)

    @property
    def is_own(self) -> bool:
        """True if timewheel built the topic's name: all topics except a due topic outside a calendar."""
        return OWN_INFIX in self.name

    @property
    def takes_hops(self) -> bool:
        """True if timers hop to the topic from a holding topic, and keep their partition."""
        return self.role in {"due", "retry", "tier", "slot"}

    @property
    def is_entrance(self) -> bool:
        """True if incoming messages move on at once: timers from clients of any language, or a shadow's copies."""
        return self.role in {"intake", "journal"}

    @property
    def is_consumed(self) -> bool:
        """True if consumers read the topic, and the broker delays its messages."""
        return self.role in {"due", "retry"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingTopic:
    """Holding topic with the step that decides when its timers leave.

    Args:
        name: Full name, without a partition suffix.
        step: Step of the topic: its tier or its ring.
        slot: Index of the slot in its ring; 0 for a tier.
        by_broker: True if the broker's delay holds the timers, False if a relay does.
    """

    name: str
    step: Step
    slot: int
    by_broker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All topics of a plan (for a calendar, of a span of time), and its holding topics with their steps."""

    topics: tuple[TopicSpec, ...]
    holding: tuple[HoldingTopic, ...]

    def __contains__(self, topic: object) -> bool:
        return any(spec.name == topic for spec in self.topics)


def topology(plan: Plan, now_ms: int, *, drains: bool = False) -> Topology:
    """Return all topics that a plan needs at one moment.

    Args:
        plan: A valid plan.
        now_ms: UTC milliseconds; decides only which intervals of a calendar exist.
        drains: Holding topics of an earlier plan are to be drained: relays hop, whatever this plan's scheme is.
    """
    names = Names(plan)
    hops = plan.needs_relay or drains
    holding = tuple(
        HoldingTopic(name=name, step=step, slot=slot, by_broker=not plan.holds_in_relay)
        for step in steps(plan)
        for slot, name in enumerate(names.of_step(step))
    )
    due_names = (
        tuple(names.calendar_topic(interval) for interval in calendar_intervals(plan, now_ms))
        if isinstance(plan.scheme, Calendar)
        else (plan.due_topic,)
    )
    due = (
        TopicSpec(
            name=name,
            role="due",
            partitions=plan.partitions,
            subscriptions=plan.subscriptions,
            deduplication=hops,
            longest_stay_ms=longest_due_stay_ms(plan),
        )
        for name in due_names
    )
    held = (
        TopicSpec(
            name=topic.name,
            role="tier" if topic.step.kind == "tier" else "slot",
            partitions=plan.own_partitions,
            subscriptions=(RELAY_SUBSCRIPTION,),
            deduplication=True,
            longest_stay_ms=topic.step.stay_ms or topic.step.slots * topic.step.slot_ms,
        )
        for topic in holding
    )
    # No client can detect whether an unpartitioned topic exists. So clients that send or subscribe to such a topic look
    # for the dead-letter topic, which is created after it (broker-facts: unpartitioned-topics).
    has_dead_letters = hops or not plan.is_partitioned
    dead_letter = TopicSpec(
        name=names.dead_letter,
        role="dead_letter",
        partitions=1,
        subscriptions=(DEAD_LETTER_SUBSCRIPTION,),
        deduplication=hops,
        longest_stay_ms=plan.max_delay_ms,
    )
    return Topology(
        topics=(
            *due,
            *_for_retries(plan, names, hops=hops),
            *held,
            *((dead_letter,) if has_dead_letters else ()),
            *_of_cancellations(plan, names),
            *_for_parked(plan, names),
            *_for_intake(plan, names),
        ),
        holding=holding,
    )


def _of_cancellations(plan: Plan, names: Names) -> tuple[TopicSpec, ...]:
    """Return the log of cancellations; empty if the plan has no cancellation."""
    if plan.cancel is None:
        return ()
    log = TopicSpec(
        name=names.cancellations,
        role="cancellations",
        partitions=1,
        subscriptions=(CANCELLATIONS_SUBSCRIPTION,),
        deduplication=False,
        longest_stay_ms=plan.max_delay_ms + plan.cancel.keep_ms,
    )
    return (log,)


def _for_retries(plan: Plan, names: Names, *, hops: bool) -> Iterator[TopicSpec]:
    """Yield each subscription's topic of timers that it tries again, if the plan keeps timers back."""
    for subscription in plan.subscriptions if plan.keeps_back else ():
        yield TopicSpec(
            name=names.retry(subscription),
            role="retry",
            partitions=plan.own_partitions,
            subscriptions=(subscription,),
            deduplication=hops,
            longest_stay_ms=longest_due_stay_ms(plan),
        )


def _for_parked(plan: Plan, names: Names) -> Iterator[TopicSpec]:
    """Yield each subscription's topic of parked timers, which wait for an operator."""
    remembered_ms = plan.max_delay_ms + (0 if plan.cancel is None else plan.cancel.keep_ms)
    for subscription in plan.subscriptions if plan.keeps_back else ():
        yield TopicSpec(
            name=names.parked(subscription),
            role="parked",
            partitions=plan.own_partitions,
            subscriptions=(PARKED_SUBSCRIPTION,),
            deduplication=False,
            longest_stay_ms=remembered_ms,
        )


def _for_intake(plan: Plan, names: Names) -> Iterator[TopicSpec]:
    """Yield intake and journal, for timers that no SDK has routed and for a shadow's copies; none without intake."""
    if plan.intake:
        whole = TopicSpec(
            name=names.intake,
            role="intake",
            partitions=plan.own_partitions,
            subscriptions=(RELAY_SUBSCRIPTION,),
            deduplication=True,
            longest_stay_ms=plan.max_delay_ms,
        )
        yield whole
        subscriptions = (RELAY_SUBSCRIPTION, JOURNAL_SUBSCRIPTION)
        yield replace(whole, name=names.journal, role="journal", subscriptions=subscriptions)


def entrances_of(plan: Plan) -> tuple[HoldingTopic, ...]:
    """Return the intake and the journal as relayed topics, whose messages move on at once; empty without an intake.

    They are not part of `Topology.holding`: a copy may move on only when its original is acknowledged in the due topic,
    which a plain relay cannot ensure.
    """
    if not plan.intake:
        return ()
    names = Names(plan)
    return (
        HoldingTopic(name=names.intake, step=INTAKE_STEP, slot=0, by_broker=False),
        HoldingTopic(name=names.journal, step=JOURNAL_STEP, slot=0, by_broker=False),
    )


def calendar_intervals(plan: Plan, now_ms: int) -> range:
    """Return the intervals (numbers since 1970) that a calendar plan needs now, up to that of the last due time.

    A further interval is added, so that a plan provisioned now stays complete for at least an interval.
    """
    assert isinstance(plan.scheme, Calendar)
    interval_ms = plan.scheme.interval_ms
    return range(now_ms // interval_ms, (now_ms + plan.max_delay_ms) // interval_ms + 2)
