"""Everything that must exist on the broker before a plan's first publish: topics, subscriptions, policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from timewheel.core.names import (
    CUTS_SUBSCRIPTION,
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    parts_of,
)
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import INTAKE_STEP, JOURNAL_STEP, Step, longest_due_stay_ms, steps

__all__ = ["HoldingTopic", "TopicRole", "TopicSpec", "Topology", "calendar_intervals", "entrances_of", "topology"]

TopicRole = Literal["due", "tier", "slot", "dead_letter", "cuts", "retry", "parked", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """One topic.

    Args:
        name: Full name, without a partition suffix.
        role: What it is for.
        partitions: How many; 0: it is not partitioned, which only a due topic may be
            (broker-facts: failover-and-takeover).
        subscriptions: Must exist, from the earliest position, before the first publish.
        deduplication: On where relays hop to (broker-facts: deduplicated-destinations); it is a topic policy, which
            beats the namespace's.
        longest_stay_ms: How long a message may wait here unacknowledged when nothing fails; TTL and quotas must not be
            shorter.

    Further policies are the same for all: messageTTL 0, size and age quota -1, deleteWhileInactive false
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
        """The names under which a broker stores it."""
        return parts_of(self.name, self.partitions)

    @property
    def is_own(self) -> bool:
        """Whether timewheel made up its name: all but a due topic outside a calendar."""
        return OWN_INFIX in self.name

    @property
    def takes_hops(self) -> bool:
        """Whether timers come to it from a topic that waits, and keep the partition that they have there."""
        return self.role in {"due", "retry", "tier", "slot"}

    @property
    def is_entrance(self) -> bool:
        """Whether what comes to it moves on at once: timers from clients of any language, or a shadow's copies."""
        return self.role in {"intake", "journal"}

    @property
    def is_consumed(self) -> bool:
        """Whether consumers read it, and the broker delays what is in it."""
        return self.role in {"due", "retry"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingTopic:
    """A holding topic with the step that says when its timers leave.

    Args:
        name: Full name, without a partition suffix.
        step: Its tier or its ring.
        slot: The slot's number in its ring; 0 for a tier.
        by_broker: Whether its timers are under the broker's delay, or else held by a relay.
    """

    name: str
    step: Step
    slot: int
    by_broker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All topics of a plan (for a calendar: those of a span of time), and its holding topics with their steps."""

    topics: tuple[TopicSpec, ...]
    holding: tuple[HoldingTopic, ...]

    def __contains__(self, topic: object) -> bool:
        return any(spec.name == topic for spec in self.topics)


def topology(plan: Plan, now_ms: int, *, drains: bool = False) -> Topology:
    """Everything that a plan implies at one moment.

    Args:
        plan: A valid plan.
        now_ms: UTC milliseconds; decides which intervals of a calendar exist, nothing else.
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
    # No client can tell whether an unpartitioned topic is there. So whoever sends or subscribes to one looks for this,
    # which is made after it (broker-facts: unpartitioned-topics).
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
            *_of_cut_offs(plan, names),
            *_for_parked(plan, names),
            *_for_intake(plan, names),
        ),
        holding=holding,
    )


def _of_cut_offs(plan: Plan, names: Names) -> tuple[TopicSpec, ...]:
    """Their log; nothing where none can be."""
    if plan.cancel is None:
        return ()
    log = TopicSpec(
        name=names.cuts,
        role="cuts",
        partitions=1,
        subscriptions=(CUTS_SUBSCRIPTION,),
        deduplication=False,
        longest_stay_ms=plan.max_delay_ms + plan.cancel.keep_ms,
    )
    return (log,)


def _for_retries(plan: Plan, names: Names, *, hops: bool) -> Iterator[TopicSpec]:
    """Each subscription's own topic of what it has tried again; nothing where nothing is kept back."""
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
    """Each subscription's own topic of what waits for an operator."""
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
    """Where timers come in that no SDK has routed, and a shadow's copies; nothing where none may."""
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
    """The intake and the journal as topics that are relayed: what comes there moves on at once; none without an intake.

    They are none of `Topology.holding`: a copy may move on only when its original is acknowledged in the due topic,
    which a plain relay cannot see to.
    """
    if not plan.intake:
        return ()
    names = Names(plan)
    return (
        HoldingTopic(name=names.intake, step=INTAKE_STEP, slot=0, by_broker=False),
        HoldingTopic(name=names.journal, step=JOURNAL_STEP, slot=0, by_broker=False),
    )


def calendar_intervals(plan: Plan, now_ms: int) -> range:
    """The intervals (numbers since 1970) that a calendar plan needs now: the running one to that of the last due time.

    One more is added, so that a plan provisioned now is complete for at least one interval.
    """
    assert isinstance(plan.scheme, Calendar)
    interval_ms = plan.scheme.interval_ms
    return range(now_ms // interval_ms, (now_ms + plan.max_delay_ms) // interval_ms + 2)
