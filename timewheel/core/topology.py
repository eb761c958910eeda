"""Topology: the topics, subscriptions and policies that must exist on the broker before a plan's first publish; and
former topics, under timewheel's names beside the due topic, which do not belong to the present plan.

Examples of former topics are a removed tier, a ring of another geometry, an interval of another length. Timers may
still wait in them, and their names describe them completely (broker-facts: topics-outside-the-plan). Relays drain
former holding topics by the present plan's routing; consumers drain former due topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from timewheel.core.errors import TopologyError
from timewheel.core.names import (
    CANCELLATIONS_SUBSCRIPTION,
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    CalendarTopic,
    Names,
    SlotTopic,
    TierTopic,
    dead_letter_topic,
    partition_of,
    parts_of,
)
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import INTAKE_STEP, JOURNAL_STEP, Step, longest_due_stay_ms, steps

TopicRole = Literal["due", "tier", "slot", "dead_letter", "cancellations", "retry", "parked", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """Specification of a topic.

    Further policies are the same for all topics: messageTTL 0, size and age quota -1, deleteWhileInactive false
    (broker-facts: policies-of-topics).
    """

    name: str  # full name, without a partition suffix
    role: TopicRole  # purpose of the topic
    # number of partitions; 0: the topic is unpartitioned, which only a due topic may be (broker-facts:
    # failover-and-takeover)
    partitions: int
    # subscriptions that must exist, from the earliest position, before the first publish
    subscriptions: tuple[str, ...]
    # True for the destinations of relays' hops (broker-facts: deduplicated-destinations). It is a topic policy, which
    # overrides the namespace's.
    deduplication: bool
    # longest time that a message may wait in the topic unacknowledged if nothing fails; TTL and quotas must not be
    # shorter
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
    """Holding topic with the step that decides when its timers leave."""

    name: str  # full name, without a partition suffix
    step: Step  # step of the topic: its tier or its ring
    slot: int  # index of the slot in its ring; 0 for a tier
    by_broker: bool  # True if the broker's delay holds the timers, False if a relay does


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All topics of a plan (for a calendar, of a span of time), and its holding topics with their steps."""

    topics: tuple[TopicSpec, ...]
    holding: tuple[HoldingTopic, ...]

    def __contains__(self, topic: object) -> bool:
        return any(spec.name == topic for spec in self.topics)


def topology(plan: Plan, now_ms: int, *, drains: bool = False) -> Topology:
    """Return all topics that a plan needs now, which decides only the intervals of a calendar. ``drains``: holding
    topics of an earlier plan are to be drained, and relays hop, whatever this plan's scheme is.
    """
    names = Names(plan)
    hops = plan.needs_relay or drains
    holding = tuple(
        HoldingTopic(name=name, step=step, slot=slot, by_broker=not plan.holds_in_relay)
        for step in steps(plan)
        for slot, name in enumerate(names.of_step(step))
    )
    due_names = [plan.due_topic]
    if isinstance(plan.scheme, Calendar):
        due_names = [names.calendar_topic(interval) for interval in calendar_intervals(plan, now_ms)]
    in_due_ms, in_all_ms = longest_due_stay_ms(plan), plan.max_delay_ms
    remembered_ms = in_all_ms + (0 if plan.cancel is None else plan.cancel.keep_ms)

    def spec(
        role: TopicRole,
        name: str,
        longest_stay_ms: int,
        *subscriptions: str,
        partitions: int = plan.own_partitions,
        deduplication: bool = True,
    ) -> TopicSpec:
        return TopicSpec(
            name=name,
            role=role,
            partitions=partitions,
            subscriptions=subscriptions,
            deduplication=deduplication,
            longest_stay_ms=longest_stay_ms,
        )

    topics = [
        spec("due", name, in_due_ms, *plan.subscriptions, partitions=plan.partitions, deduplication=hops)
        for name in due_names
    ]
    kept_back = plan.subscriptions if plan.keeps_back else ()
    topics += [spec("retry", names.retry(one), in_due_ms, one, deduplication=hops) for one in kept_back]
    for topic in holding:
        role: TopicRole = "tier" if topic.step.kind == "tier" else "slot"
        stay_ms = topic.step.stay_ms or topic.step.slots * topic.step.slot_ms
        topics.append(spec(role, topic.name, stay_ms, RELAY_SUBSCRIPTION))
    if hops or not plan.is_partitioned:
        # No client can detect whether an unpartitioned topic exists. So clients that send or subscribe to such a topic
        # look for the dead-letter topic, which is created after it (broker-facts: unpartitioned-topics).
        dead_letter = names.dead_letter
        topics.append(
            spec("dead_letter", dead_letter, in_all_ms, DEAD_LETTER_SUBSCRIPTION, partitions=1, deduplication=hops)
        )
    if plan.cancel is not None:
        log, keeper = names.cancellations, CANCELLATIONS_SUBSCRIPTION
        topics.append(spec("cancellations", log, remembered_ms, keeper, partitions=1, deduplication=False))
    topics += [
        spec("parked", names.parked(one), remembered_ms, PARKED_SUBSCRIPTION, deduplication=False) for one in kept_back
    ]
    if plan.intake:
        topics.append(spec("intake", names.intake, in_all_ms, RELAY_SUBSCRIPTION))
        topics.append(spec("journal", names.journal, in_all_ms, RELAY_SUBSCRIPTION, JOURNAL_SUBSCRIPTION))
    return Topology(topics=tuple(topics), holding=holding)


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


_NAMED = 3  # topics that a message names; the attribute has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerTopic:
    """Topic of an earlier plan, outside the present plan."""

    name: str  # full name, without a partition suffix
    # holding topic as a relay drains it; None: it is not a holding topic, or its name cannot be read
    holding: HoldingTopic | None = None
    # the topic is not for relays: it was the topic of an interval, or the due topic before a calendar
    is_due: bool = False
    # the topic is a due topic, and consumers of this plan read it. The due topic before a calendar is not followed if
    # it is unpartitioned: a consumer could not distinguish it from a missing topic (broker-facts:
    # unpartitioned-topics).
    is_followed: bool = False
    # subscription whose parked timers lie in the topic until an operator handles them; None: the topic has no parked
    # timers
    parked_by: str | None = None
    is_partitioned: bool = True  # the topic has partitions, like all topics that timewheel creates
    # unacknowledged entries, on the subscription with the most of them; a batch of timers is one entry
    backlog: int = 0
    producers: int = 0  # number of connected producers: clients of the earlier plan may still send to the topic
    relays: tuple[str, ...] = ()  # ids of the connected relays
    drained_by: tuple[str, ...] = ()  # those of the relays whose own plan no longer names the topic: they drain it

    @property
    def drained(self) -> bool:
        """True if no entry waits in the topic, and no producer is connected."""
        return not self.backlog and not self.producers


class UndrainedTopics(TopologyError):
    """Timers wait in topics outside the plan, and no client of the plan would move them on.

    Attributes:
        topics: All these topics.
    """

    def __init__(self, topics: Sequence[FormerTopic], remedy: str) -> None:
        self.topics = tuple(topics)
        most = sorted(self.topics, key=lambda topic: -topic.backlog)
        named = ", ".join(f"{topic.name} ({topic.backlog})" for topic in most[:_NAMED])
        more = len(most) - _NAMED
        super().__init__(
            most[0].name,
            f"timers wait in topics that this plan does not name (entries in brackets): {named}"
            + (f" and {more} more" if more > 0 else ""),
            remedy,
        )


def former_topics(plan: Plan, names: Iterable[str], *, beside: Iterable[Plan] = ()) -> tuple[FormerTopic, ...]:
    """Select the former topics among the topics and partitions in the plan's namespaces, by name, without backlogs.

    An earlier plan of the due topic used them, and none of the plans ``beside``, whose relays and consumers run beside
    this plan's. A calendar's topics whose interval has passed are not former topics, as long as the intervals have the
    plan's length: consumers visit these topics until they are drained.
    """
    names = tuple(names)
    plans = [plan, *(other for other in beside if other.due_topic == plan.due_topic)]
    ours = {topic for each in plans for step in steps(each) for topic in Names(each).of_step(step)}
    own_prefixes = Names(plan).own_prefixes
    # Dead letters wait for an operator, whatever the plan; cancellations outlive the plan that took them.
    ours |= {dead_letter_topic(prefix) for prefix in own_prefixes}
    ours.add(Names(plan).cancellations)
    if plan.intake:
        ours |= {Names(plan).intake, Names(plan).journal}
    for each in plans:
        if each.keeps_back:
            ours |= {name(one) for one in each.subscriptions for name in (Names(each).retry, Names(each).parked)}
    lengths_ms = {each.scheme.interval_ms for each in plans if isinstance(each.scheme, Calendar)}
    if len(lengths_ms) < len(plans):
        ours.add(plan.due_topic)  # the due topic of a plan without a calendar
    prefixes = tuple(f"{prefix}." for prefix in own_prefixes)
    found = {
        topic for name in names if (topic := partition_of(name)[0]).startswith(prefixes) or topic == plan.due_topic
    }
    former = []
    unpartitioned = {plan.due_topic} & {*names}
    for name in sorted(found - ours):
        interval = CalendarTopic.parse(plan.due_topic, name)
        if interval is not None and interval.interval_ms in lengths_ms:
            continue
        is_the_due_topic = name == plan.due_topic
        former.append(
            FormerTopic(
                name=name,
                holding=holding_topic(plan, name),
                is_due=is_the_due_topic or interval is not None,
                is_followed=(is_the_due_topic and name not in unpartitioned)
                or (interval is not None and interval.interval_ms in plan.former_intervals_ms),
                parked_by=Names(plan).parked_by(name),
                is_partitioned=name not in unpartitioned,
            )
        )
    return tuple(former)


def holding_topic(plan: Plan, name: str) -> HoldingTopic | None:
    """Read the name of a holding topic, whichever plan of the due topic made it; None: it is none, or of an unknown
    form. A slot's name does not contain its head start: this plan's guard is used, the head start of every ring without
    its own setting (broker-facts: slot-release-time).
    """
    for prefix in Names(plan).own_prefixes:
        if (tier := TierTopic.parse(prefix, name)) is not None:
            step = Step(kind="tier", stay_ms=tier.stay_ms, min_remaining_ms=tier.stay_ms)
            return HoldingTopic(name=name, step=step, slot=0, by_broker=tier.by_broker)
        if (slot := SlotTopic.parse(prefix, name)) is not None:
            step = Step(
                kind="slot", slot_ms=slot.slot_ms, slots=slot.slots, headstart_ms=min(plan.guard_ms, slot.slot_ms)
            )
            return HoldingTopic(name=name, step=step, slot=slot.slot, by_broker=False)
    return None
