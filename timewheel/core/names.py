"""Names of topics and subscriptions: every name that timewheel makes up is made up here.

A plan's own topics are ``<due topic>.tw.<role>``; a ring's carry the plan's revision, since another ring geometry gives
the same slot number another meaning (rules.md 17). In a holding namespace of its own the topic's tenant and namespace
stand before it, ``acme~crm~reminders.tw.<role>``: two plans may share that namespace, and the last part of their due
topics' names.
"""

from __future__ import annotations

import datetime as dt
import re

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS, format_duration
from timewheel.core.plan import Plan
from timewheel.core.steps import Step

__all__ = ["DEAD_LETTER_SUBSCRIPTION", "RELAY_SUBSCRIPTION", "Names", "partition_of", "partition_topic"]

RELAY_SUBSCRIPTION = "timewheel-relay"
"""The one subscription of every holding topic."""
DEAD_LETTER_SUBSCRIPTION = "timewheel-dead-letter"
"""Exists from the start, so that no dead letter is lost for want of a reader."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CACHED_INTERVALS = 4_096
_PARTITION = re.compile(r"(.+)-partition-(\d+)")


def partition_topic(topic: str, partition: int) -> str:
    """The name of one partition of a partitioned topic."""
    return f"{topic}-partition-{partition}"


def partition_of(partition_topic_name: str) -> tuple[str, int]:
    """Split a partition's name into the partitioned topic and its index; the index is -1 if there is none."""
    match = _PARTITION.fullmatch(partition_topic_name)
    return (match[1], int(match[2])) if match else (partition_topic_name, -1)


class Names:
    """The names of one plan's topics."""

    __slots__ = ("_calendar", "_held", "_plan", "dead_letter")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        domain, rest = plan.due_topic.split("://")
        namespace, local = rest.rsplit("/", 1)
        holding = plan.holding_namespace or namespace
        # No tenant or namespace has a "~", so the parts cannot run into each other.
        prefix = "" if holding == namespace else namespace.replace("/", "~") + "~"
        self._held = f"{domain}://{holding}/{prefix}{local}.tw"
        self.dead_letter = f"{self._held}.dead-letter"
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
            name = self._calendar[interval] = f"{self._plan.due_topic}.tw.{self._label(interval)}"
        return name

    def _label(self, interval: int) -> str:
        interval_ms = getattr(self._plan.scheme, "interval_ms", DAY_MS)
        start = _EPOCH + dt.timedelta(milliseconds=interval * interval_ms)
        length = format_duration(interval_ms)
        if interval_ms % DAY_MS == 0:
            return f"{length}-{start:%Y%m%d}"
        if interval_ms % MINUTE_MS == 0:
            return f"{length}-{start:%Y%m%dT%H%M}Z"
        if interval_ms % SECOND_MS == 0:
            return f"{length}-{start:%Y%m%dT%H%M%S}Z"
        return f"{length}-{start:%Y%m%dT%H%M%S}.{start.microsecond // 1000:03d}Z"
