"""Samples of producers, consumers and relays. Pure: counts in, samples out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from timewheel.core.names import partition_of
from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import Sample

if TYPE_CHECKING:
    from timewheel.consumers import ConsumerCounts, LatenessCounts
    from timewheel.producers import ProducerCounts
    from timewheel.relay.status import PartitionStatus, RelayStatus


def of_producer(due_topic: str, counts: ProducerCounts) -> Iterator[Sample]:
    """Yield the samples of a producer."""
    labels = (due_topic,)
    yield Sample(told.PRODUCER_STORED, labels, counts.stored)
    yield Sample(told.PRODUCER_REFUSED, labels, counts.refused)
    yield Sample(told.PRODUCER_FAILED, labels, counts.failed)
    yield Sample(told.PRODUCER_UNKNOWN, labels, counts.unknown)
    yield Sample(told.PRODUCER_PENDING, labels, counts.pending)
    yield Sample(told.PRODUCER_CANCELLATIONS, labels, counts.cut)


def of_consumer(due_topic: str, subscription: str, counts: ConsumerCounts, *, ready: bool) -> Iterator[Sample]:
    """Yield the samples of a consumer."""
    labels = (due_topic, subscription)
    yield Sample(told.CONSUMER_READY, labels, ready)
    yield Sample(told.CONSUMER_RECEIVED, labels, counts.received)
    yield Sample(told.CONSUMER_HANDED, labels, counts.handed)
    yield Sample(told.CONSUMER_DONE, labels, counts.done)
    yield Sample(told.CONSUMER_FAILED, labels, counts.failed)
    yield Sample(told.CONSUMER_EARLY, labels, counts.early)
    yield Sample(told.CONSUMER_FAR_TOO_EARLY, labels, counts.far_too_early)
    for why in ("already_handled", "redelivered", "extra_copies"):
        yield Sample(told.CONSUMER_COPIES, (*labels, why), getattr(counts, why))
    yield Sample(told.CONSUMER_TIMED_OUT, labels, counts.timed_out)
    for why, count in (
        ("no_envelope", counts.foreign),
        ("unreadable", counts.envelope_errors),
        ("too_new", counts.too_new),
        ("nudge", counts.nudges),
    ):
        yield Sample(told.CONSUMER_FOREIGN, (*labels, why), count)
    yield Sample(told.CONSUMER_HELD, labels, counts.held)
    for why in ("cancelled", "overdue", "parked", "skipped", "retried"):
        yield Sample(told.CONSUMER_KEPT_BACK, (*labels, why), getattr(counts, why))
    yield Sample(told.CONSUMER_POSTPONED, labels, counts.postponed)
    yield Sample(told.CONSUMER_UNEVALUATED, labels, counts.unevaluated)


def of_lateness(due_topic: str, subscription: str, counted: LatenessCounts) -> Iterator[Sample]:
    """Yield the samples of a consumer that measures lateness."""
    from timewheel.consumers.counts import BOUNDS_MS  # noqa: PLC0415 - a process without consumers does not load them

    bounds = [*(str(bound / 1_000) for bound in BOUNDS_MS), "+Inf"]
    counts, total = [], 0
    for count in counted.counts:
        total += count
        counts.append(float(total))
    buckets = tuple(zip(bounds, counts, strict=True))
    yield Sample(told.CONSUMER_LATENESS, (due_topic, subscription), counted.sum_ms / 1_000, buckets)


def of_relay(due_topic: str, status: RelayStatus, now_ms: int) -> Iterator[Sample]:
    """Yield the samples of a relay; partitions of a holding topic are combined.

    Args:
        due_topic: Due topic of its plan.
        status: Status of the relay.
        now_ms: UTC milliseconds.
    """
    labels = (due_topic, status.relay_id)
    yield Sample(told.RELAY_READY, labels, status.ready)
    yield Sample(told.RELAY_UNREADABLE, labels, len(status.unreadable))
    for state, count in sorted(Counter(one.state.value for one in status.partitions).items()):
        yield Sample(told.RELAY_PARTITIONS, (*labels, state), count)
    yield Sample(told.RELAY_DISCONNECTED, labels, sum(not one.connected for one in status.partitions))
    yield Sample(told.RELAY_STUCK, labels, sum(not one.alive for one in status.partitions))
    by_topic: defaultdict[str, list[PartitionStatus]] = defaultdict(list)
    for partition in status.partitions:
        by_topic[partition_of(partition.topic)[0]].append(partition)
    for topic, partitions in sorted(by_topic.items()):
        yield from _of_topic((*labels, topic), partitions, now_ms)


def _of_topic(labels: tuple[str, ...], partitions: list[PartitionStatus], now_ms: int) -> Iterator[Sample]:
    def total(count: str) -> int:
        return sum(getattr(one, count) for one in partitions)

    yield Sample(told.RELAY_HOPS, (*labels, "on_time"), total("forwarded"))
    for lane in ("late", "dead", "refiled", "dropped"):
        yield Sample(told.RELAY_HOPS, (*labels, lane), total(lane))
    yield Sample(told.RELAY_ENTRIES, labels, total("entries"))
    yield Sample(told.RELAY_REPEATED, (*labels, "received"), total("skipped"))
    yield Sample(told.RELAY_REPEATED, (*labels, "sent"), total("deduplicated"))
    yield Sample(told.RELAY_JUMPS, labels, total("jumps"))
    yield Sample(told.RELAY_SESSIONS, labels, total("failures"))
    yield Sample(told.RELAY_IN_FLIGHT, labels, total("in_flight"))
    yield Sample(told.RELAY_IN_FLIGHT_BYTES, labels, total("in_flight_bytes"))
    releases = [one.newest_release_ms for one in partitions if one.newest_release_ms is not None]
    yield Sample(told.RELAY_HEAD_LATE, labels, max(now_ms - min(releases, default=now_ms), 0) / 1_000)
