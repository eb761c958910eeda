"""Names of topics and subscriptions: every name that timewheel makes up is made up here.

A plan's own topics are ``<due topic>.tw.<role>``; a ring's carry the plan's revision, since another ring geometry gives
the same slot number another meaning (broker-facts: slot-release-time). In a holding namespace of its own the topic's
tenant and namespace stand before it, ``acme~crm~reminders.tw.<role>``: two plans may share that namespace, and the last
part of their due topics' names.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import NamedTuple

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS, format_duration, parse_duration
from timewheel.core.errors import DurationError
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import Step

__all__ = [
    "DEAD_LETTER_SUBSCRIPTION",
    "RELAY_SUBSCRIPTION",
    "CalendarTopic",
    "Names",
    "dead_letter_topic",
    "namespace_of",
    "partition_of",
    "partition_topic",
]

RELAY_SUBSCRIPTION = "timewheel-relay"
"""The one subscription of every holding topic."""
DEAD_LETTER_SUBSCRIPTION = "timewheel-dead-letter"
"""Exists from the start, so that no dead letter is lost for want of a reader."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CACHED_INTERVALS = 4_096
_PARTITION = re.compile(r"(.+)-partition-(\d+)")
_LABEL = re.compile(r"([0-9]+[a-z]+)-(\d{8})(?:T(\d{4})(\d{2})?(?:\.(\d{3}))?Z)?", re.ASCII)


def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a topic's full name."""
    return topic.partition("://")[2].rpartition("/")[0]


def partition_topic(topic: str, partition: int) -> str:
    """The name of one partition of a partitioned topic."""
    return f"{topic}-partition-{partition}"


def partition_of(partition_topic_name: str) -> tuple[str, int]:
    """Split a partition's name into the partitioned topic and its index; the index is -1 if there is none."""
    match = _PARTITION.fullmatch(partition_topic_name)
    return (match[1], int(match[2])) if match else (partition_topic_name, -1)


def dead_letter_topic(prefix: str) -> str:
    """The dead-letter topic beside holding topics whose names begin so (`Names.own_prefixes`)."""
    return f"{prefix}.dead-letter"


class Names:
    """The names of one plan's topics."""

    __slots__ = ("_calendar", "_held", "_plan", "dead_letter", "own_prefixes")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        domain, rest = plan.due_topic.split("://")
        namespace, local = rest.rsplit("/", 1)
        holding = plan.holding_namespace or namespace
        # No tenant or namespace has a "~", so the parts cannot run into each other.
        prefix = "" if holding == namespace else namespace.replace("/", "~") + "~"
        self._held = f"{domain}://{holding}/{prefix}{local}.tw"
        self.dead_letter = dead_letter_topic(self._held)
        self.own_prefixes = tuple(sorted({self._held, f"{plan.due_topic}.tw"}))
        """How all names begin that timewheel makes up for this due topic, in its own namespace and in the holding one;
        a full stop follows."""
        self._calendar: dict[int, str] = {}

    def of_step(self, step: Step) -> tuple[str, ...]:
        """The holding topics of a step: one for a tier, one per slot for a ring, none for the due topic."""
        match step.kind:
            case "tier":
                # Messages under the broker's delay and messages without it must never share a topic.
                kind = "tier" if self._plan.holds_in_relay else "delay"
                return (f"{self._held}.{kind}-{format_duration(step.stay_ms)}",)
            case "slot":
                ring = f"{self._held}.r{self._plan.revision}.ring-{format_duration(step.slot_ms)}"
                return tuple(f"{ring}.{slot:03d}" for slot in range(step.slots))
            case "due":
                return ()

    def calendar_topic(self, interval: int) -> str:
        """The due topic of one calendar interval.

        Args:
            interval: Intervals since 1970 (due time // interval length).
        """
        name = self._calendar.get(interval)
        if name is None:
            if len(self._calendar) >= _CACHED_INTERVALS:
                self._calendar.clear()
            interval_ms = self._plan.scheme.interval_ms if isinstance(self._plan.scheme, Calendar) else DAY_MS
            topic = CalendarTopic(self._plan.due_topic, interval_ms, interval * interval_ms)
            name = self._calendar[interval] = topic.name
        return name


class CalendarTopic(NamedTuple):
    """The due topic of one calendar interval.

    Args:
        due_topic: The plan's.
        interval_ms: Length of the interval.
        start_ms: When it begins, UTC milliseconds; a multiple of the length.
    """

    due_topic: str
    interval_ms: int
    start_ms: int

    @property
    def end_ms(self) -> int:
        """When the next interval begins."""
        return self.start_ms + self.interval_ms

    @property
    def name(self) -> str:
        """The topic's full name: due topic, length, and start as far as the length needs it."""
        start = _EPOCH + dt.timedelta(milliseconds=self.start_ms)
        if self.interval_ms % DAY_MS == 0:
            label = f"{start:%Y%m%d}"
        elif self.interval_ms % MINUTE_MS == 0:
            label = f"{start:%Y%m%dT%H%M}Z"
        elif self.interval_ms % SECOND_MS == 0:
            label = f"{start:%Y%m%dT%H%M%S}Z"
        else:
            label = f"{start:%Y%m%dT%H%M%S}.{start.microsecond // 1000:03d}Z"
        return f"{self.due_topic}{OWN_INFIX}{format_duration(self.interval_ms)}-{label}"

    @classmethod
    def parse(cls, due_topic: str, name: str) -> CalendarTopic | None:
        """Read a topic's name; None if it is not that of an interval of this due topic, of whatever length."""
        head = due_topic + OWN_INFIX
        match = _LABEL.fullmatch(name, len(head)) if name.startswith(head) else None
        if match is None:
            return None
        length, day, minute, second, millisecond = match.groups(default="")
        try:
            interval_ms = parse_duration(length)
            start = dt.datetime.strptime(f"{day}{minute or '0000'}{second or '00'}+0000", "%Y%m%d%H%M%S%z")
        except (DurationError, ValueError):
            return None
        start_ms = round((start - _EPOCH).total_seconds()) * SECOND_MS + int(millisecond or 0)
        topic = cls(due_topic, interval_ms, start_ms)
        # Only what we would have written ourselves: anything else is a stranger's, and not ours to remove.
        return topic if interval_ms and start_ms % interval_ms == 0 and topic.name == name else None
