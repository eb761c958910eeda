"""Samples of the exporter's looks at topics and plans. Pure: values in, samples out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import Sample

if TYPE_CHECKING:
    from timewheel.inspect.gaps import GapGrowth, GapSnapshot, SubscriptionGaps
    from timewheel.inspect.gaps.snapshot import GapHistory
    from timewheel.inspect.status import Status

HOUR_S = 3_600
NEXT = 4
"""Ranges of due times with a label of their own: overdue, next minute, hour and day. Later days share a label."""


def of_snapshot(snapshot: GapSnapshot, snapshots: GapHistory, most: int) -> Iterator[Sample]:
    """Yield the samples of a look at gaps.

    Args:
        snapshot: The snapshot, with its worst subscriptions first.
        snapshots: This look and the snapshots before it, for growth.
        most: Limit on reported subscriptions; the worst are reported, since each makes a dozen series.
    """
    for one in snapshot.subscriptions[:most]:
        yield from of_subscription(one, snapshots.growth(one))
    yield Sample(told.LEFT_OUT, (), max(len(snapshot.subscriptions) - most, 0))


def of_subscription(one: SubscriptionGaps, growth: GapGrowth | None) -> Iterator[Sample]:
    """Yield the samples of a subscription with all its partitions; growth: None if it is not known yet."""
    labels, worst = (one.topic, one.subscription), one.worst
    yield Sample(told.GAPS, labels, worst.gap_count)
    yield Sample(told.GAPS_IN_ALL, labels, one.gap_count)
    yield Sample(told.GAP_LIMIT, labels, worst.gap_limit)
    yield Sample(told.GAP_LIMIT_RATIO, labels, worst.share)
    yield Sample(told.UNLOAD_AGAIN, labels, one.again_entries)
    if growth is not None:
        yield Sample(told.GAP_GROWTH, labels, growth.per_hour)
        if growth.hours_to_limit is not None:
            yield Sample(told.GAP_LIMIT_SECONDS, labels, growth.hours_to_limit * HOUR_S)
    states = {"delayed": one.delayed, "in_flight": one.unacked, "ready": one.ready, "unknown": one.unknown}
    for state, count in states.items():
        yield Sample(told.BACKLOG, (*labels, state), count)
    yield Sample(told.PINNED, labels, one.pinned_bytes)
    yield Sample(told.INDEX, labels, one.index_bytes)


def of_status(status: Status) -> Iterator[Sample]:
    """Yield the samples of a plan."""
    due_topic = status.plan.due_topic
    amounts = [amount.count for amount in status.by_stretch()]
    names = [bucket.name.replace(" ", "_") for bucket in status.horizon.buckets[:NEXT]]
    for name, count in zip((*names, "later"), (*amounts[:NEXT], sum(amounts[NEXT:])), strict=True):
        yield Sample(told.TIMERS, (due_topic, name), count)
    for one in status.topics():
        yield Sample(told.HEAD_LATE, (due_topic, one.topic), one.late_ms / 1_000)
    yield Sample(told.UNATTENDED, (due_topic,), len(status.unattended()))
    if status.dead_letters is not None:
        yield Sample(told.DEAD, (due_topic,), status.dead_letters)
