"""Former topics: topics beside a due topic under timewheel's names that do not belong to the present plan.

Examples are a removed tier, a ring of another geometry, an interval of another length. Timers may still wait in them,
and the topics' names describe them completely (broker-facts: topics-outside-the-plan). Relays drain former holding
topics by the present plan's routing; consumers drain former due topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timewheel.core.errors import TopologyError
from timewheel.core.names import CalendarTopic, Names, SlotTopic, TierTopic, dead_letter_topic, partition_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import Step, steps
from timewheel.core.topology import HoldingTopic

_NAMED = 3
"""Topics that a message names; the attribute has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerTopic:
    """Topic of an earlier plan, outside the present plan.

    Args:
        name: Full name, without a partition suffix.
        holding: Holding topic as a relay drains it; None: it is not a holding topic, or its name cannot be read.
        is_due: The topic is not for relays: it was the topic of an interval, or the due topic before a calendar.
        is_followed: The topic is a due topic, and consumers of this plan read it. The due topic before a calendar is
            not followed if it is unpartitioned: a consumer could not distinguish it from a missing topic
            (broker-facts: unpartitioned-topics).
        parked_by: Subscription whose parked timers lie in the topic until an operator handles them; None: the topic
            has no parked timers.
        is_partitioned: The topic has partitions, like all topics that timewheel creates.
        backlog: Unacknowledged entries, on the subscription with the most of them; a batch of timers is one entry.
        producers: Number of connected producers: clients of the earlier plan may still send to the topic.
        relays: Ids of the connected relays.
        drained_by: Those of the relays whose own plan no longer names the topic: they drain it.
    """

    name: str
    holding: HoldingTopic | None = None
    is_due: bool = False
    is_followed: bool = False
    parked_by: str | None = None
    is_partitioned: bool = True
    backlog: int = 0
    producers: int = 0
    relays: tuple[str, ...] = ()
    drained_by: tuple[str, ...] = ()

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
    """Select the former topics from the topics in the plan's namespaces: an earlier plan of the due topic used them.

    A calendar's topics whose interval has passed are not former topics, as long as the intervals have the plan's
    length: consumers visit these topics until they are drained.

    Args:
        plan: The plan.
        names: Full names of topics and of partitions.
        beside: Plans of the same due topic whose relays and consumers run beside those of this plan.

    Returns:
        Former topics, sorted by name, without their backlogs.
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
    """Read the name of a holding topic, whichever plan of the due topic made it.

    Args:
        plan: A plan of the due topic. A slot's name does not contain its head start: this plan's guard is used, the
            head start of every ring without its own setting (broker-facts: slot-release-time).
        name: Full name, without a partition suffix.

    Returns:
        None if the topic is not a holding topic of this due topic, or its name has an unknown form.
    """
    for prefix in Names(plan).own_prefixes:
        if (tier := TierTopic.parse(prefix, name)) is not None:
            step = Step(kind="tier", stay_ms=tier.stay_ms, min_remaining_ms=tier.stay_ms)
            return HoldingTopic(name=name, step=step, slot=0, by_broker=tier.by_broker)
        if (slot := SlotTopic.parse(prefix, name)) is not None:
            step = Step(
                kind="slot",
                slot_ms=slot.slot_ms,
                slots=slot.slots,
                headstart_ms=min(plan.guard_ms, slot.slot_ms),
            )
            return HoldingTopic(name=name, step=step, slot=slot.slot, by_broker=False)
    return None
