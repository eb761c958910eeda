"""Topics of an earlier plan: what stands beside a due topic under timewheel's names, and no longer belongs to its plan.

A tier that was taken out, a ring of another geometry, an interval of another length: timers may still wait there, and
their names tell what they are (broker-facts: topics-outside-the-plan). Relays drain what an earlier plan held, by the
present plan's routing; consumers drain what was a due topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timewheel.core.errors import TopologyError
from timewheel.core.names import CalendarTopic, Names, SlotTopic, TierTopic, dead_letter_topic, partition_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import Step, steps
from timewheel.core.topology import HoldingTopic

__all__ = ["FormerTopic", "TimersLeftBehind", "former_topics", "holding_topic"]

_NAMED = 3
"""So many topics are named in a message; all of them stand in the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerTopic:
    """A topic outside the plan.

    Args:
        name: Full name, without a partition suffix.
        holding: How a relay drains it; None: it is no holding topic, or its name cannot be read.
        is_due: It is not for relays: it was the topic of an interval, or it is the due topic from before a calendar.
        is_followed: It is a due topic, and consumers of this plan read it. The due topic from before a calendar is not,
            where it is not partitioned: a consumer could not tell it from one that is missing
            (broker-facts: unpartitioned-topics).
        parked_by: The subscription whose parked timers lie there until an operator deals with them; None: it is for
            none.
        is_partitioned: It has partitions, as all have that timewheel made of its own.
        backlog: Entries that are not acknowledged, on the subscription that has most; a batch of timers is one entry.
        producers: That are connected: who works by the earlier plan may still send there.
        relays: Ids of the relays that are connected.
        drained_by: Of those the ones whose own plan no longer names it, wherever something waits: they drain it.
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
        """Whether nothing waits there, and nobody is about to send."""
        return not self.backlog and not self.producers


class TimersLeftBehind(TopologyError):
    """Timers wait in topics that the plan does not name, and nobody who works by it would move them on.

    Attributes:
        topics: All of them.
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
    """Of the topics in the plan's namespaces those that an earlier plan of the same due topic used.

    A calendar's topics whose interval has passed are not among them, as long as the intervals are as long as the
    plan's: consumers visit those until they are drained.

    Args:
        plan: The plan.
        names: Full names of topics; those of partitions too.
        beside: Plans of the same due topic whose relays and consumers run beside this one's.

    Returns:
        Sorted by name; backlogs are not known here.
    """
    names = tuple(names)
    plans = [plan, *(other for other in beside if other.due_topic == plan.due_topic)]
    ours = {topic for each in plans for step in steps(each) for topic in Names(each).of_step(step)}
    own_prefixes = Names(plan).own_prefixes
    # A dead letter waits for an operator, whatever the plan; cut-offs outlive the plan that took them.
    ours |= {dead_letter_topic(prefix) for prefix in own_prefixes}
    ours.add(Names(plan).cuts)
    if plan.intake:
        ours |= {Names(plan).intake, Names(plan).journal}
    for each in plans:
        if each.keeps_back:
            ours |= {name(one) for one in each.subscriptions for name in (Names(each).retry, Names(each).parked)}
    lengths_ms = {each.scheme.interval_ms for each in plans if isinstance(each.scheme, Calendar)}
    if len(lengths_ms) < len(plans):
        ours.add(plan.due_topic)  # of one that is no calendar
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
    """Read a holding topic's name, whichever plan of the due topic made it.

    Args:
        plan: A plan of the due topic. A slot's head start is not in its name: this plan's guard is taken, which every
            ring has unless it was told another (broker-facts: slot-release-time).
        name: Full name, without a partition suffix.

    Returns:
        None: it is none of this due topic's, or of a form that is not known here.
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
