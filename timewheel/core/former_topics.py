"""Topics of an earlier plan: what stands beside a due topic under timewheel's names, and no longer belongs to its plan.

A tier that was taken out, a ring of another revision, an interval of another length: timers may still wait there, and
nobody who works by the present plan would ever read them (broker-facts: topics-outside-the-plan).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timewheel.core.errors import TopologyError
from timewheel.core.names import CalendarTopic, Names, dead_letter_topic, partition_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import steps

__all__ = ["FormerTopic", "TimersLeftBehind", "former_topics"]

_NAMED = 3
"""So many topics are named in a message; all of them stand in the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerTopic:
    """A topic outside the plan in which timers wait.

    Args:
        name: Full name, without a partition suffix.
        backlog: Entries that are not acknowledged, on the subscription that has most; a batch of timers is one entry.
    """

    name: str
    backlog: int


class TimersLeftBehind(TopologyError):
    """Timers wait in topics that the plan does not name: nobody who works by it would move them on.

    Attributes:
        topics: All of them.
    """

    def __init__(self, topics: Sequence[FormerTopic]) -> None:
        self.topics = tuple(topics)
        most = sorted(self.topics, key=lambda topic: -topic.backlog)
        named = ", ".join(f"{topic.name} ({topic.backlog})" for topic in most[:_NAMED])
        more = len(most) - _NAMED
        super().__init__(
            most[0].name,
            f"timers wait in topics that this plan does not name (entries in brackets): {named}"
            + (f" and {more} more" if more > 0 else ""),
            "go back to the plan that named them until they are empty, or say --despite-former-topics, keep that "
            "plan's consumers running, and its relay beside this one's: timewheel relay run PLAN FORMER_PLAN",
        )


def former_topics(plan: Plan, names: Iterable[str], *, beside: Iterable[Plan] = ()) -> tuple[str, ...]:
    """Of the topics in the plan's namespaces those that an earlier plan of the same due topic used.

    A calendar's topics whose interval has passed are not among them, as long as the intervals are as long as the
    plan's: consumers visit those until they are drained.

    Args:
        plan: The plan.
        names: Full names of topics; those of partitions too.
        beside: Plans of the same due topic whose relays and consumers run beside this one's.

    Returns:
        Full names without partition suffixes, sorted.
    """
    plans = [plan, *(other for other in beside if other.due_topic == plan.due_topic)]
    ours = {topic for each in plans for step in steps(each) for topic in Names(each).of_step(step)}
    # A dead letter waits for an operator, not for a relay.
    ours |= {dead_letter_topic(prefix) for prefix in Names(plan).own_prefixes}
    lengths_ms = {each.scheme.interval_ms for each in plans if isinstance(each.scheme, Calendar)}
    prefixes = tuple(f"{prefix}." for prefix in Names(plan).own_prefixes)
    found = {partition_of(name)[0] for name in names if name.startswith(prefixes)} - ours
    return tuple(sorted(name for name in found if not _is_followed(plan.due_topic, name, lengths_ms)))


def _is_followed(due_topic: str, name: str, lengths_ms: set[int]) -> bool:
    interval = CalendarTopic.parse(due_topic, name)
    return interval is not None and interval.interval_ms in lengths_ms
