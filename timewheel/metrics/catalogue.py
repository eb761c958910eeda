"""Catalogue of all metrics: meaning, unit, labels, and where each is read. The docs' table is generated from it.

Pure: counts in, samples out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from timewheel.core.durations import SECOND_MS
from timewheel.core.names import partition_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from timewheel.consumers import BaseConsumer, LatenessCounts
    from timewheel.core.plan import Plan
    from timewheel.inspect.gaps import GapSnapshot
    from timewheel.inspect.gaps.snapshot import GapHistory
    from timewheel.inspect.status import Status
    from timewheel.relay.relay import PartitionStatus, RelayStatus
    from timewheel.shadow.shadow import ShadowStatus

Kind = Literal["counter", "gauge", "histogram"]
By = Literal["producer", "consumer", "relay", "shadow", "events", "exporter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Definition of a metric.

    Attributes:
        name: Name in Prometheus: with ``_total`` for a counter, without the suffixes for a histogram.
        kind: A counter only grows, a gauge may fall, a histogram counts by size.
        means: Meaning in one sentence; becomes the help text.
        by: Source: a role in your process, or the exporter.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    means: str
    by: By


@dataclass(frozen=True, slots=True)
class Sample:
    """Value of a metric, in the unit that its name states, with the values of its labels in their order.

    The buckets of a histogram are cumulative counts by upper bound; the last bound is infinity.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: Sequence[tuple[str, float]] = ()


Table = dict[Metric, str | Callable[[Any], float | Mapping[str, float] | None]]
"""Metrics, and the attribute or function that reads each: a value; values by the last label; None if not known."""
_made: list[Metric] = []


def _made_by(by: By, *common: str) -> Callable[..., Metric]:
    def metric(name: str, means: str, *labels: str, kind: Kind | None = None) -> Metric:
        kind = kind or ("counter" if name.endswith("_total") else "gauge")
        _made.append(Metric(name=f"timewheel_{name}", kind=kind, labels=(*common, *labels), means=means, by=by))
        return _made[-1]

    return metric


def _each(*names: str, **attributes: str) -> Callable[[Any], Mapping[str, float]]:
    """Read attributes by label; a name alone is both."""
    by_label = {**{name: name for name in names}, **attributes}
    return lambda source: {label: getattr(source, attribute) for label, attribute in by_label.items()}


def _total(attribute: str) -> Callable[[Iterable[Any]], float]:
    return lambda parts: sum(getattr(part, attribute) for part in parts)


def _totals(*names: str, **attributes: str) -> Callable[[Iterable[Any]], Mapping[str, float]]:
    by_label = {**{name: name for name in names}, **attributes}
    return lambda parts: {label: sum(getattr(part, name) for part in parts) for label, name in by_label.items()}


def _of_movers(attribute: str) -> Callable[[Any], float]:
    return lambda status: sum(getattr(one, attribute) for one in status.movers)


_producer = _made_by("producer", "due_topic")
PRODUCER: Table = {
    _producer("producer_stored_total", "Stored timers."): "stored",
    _producer("producer_refused_total", "Sends with arguments that cannot be sent."): "refused",
    _producer("producer_failed_total", "Sends that were not stored."): "failed",
    _producer("producer_unknown_total", "Sends that may be stored or not."): "unknown",
    _producer("producer_pending", "Sends under way."): "pending",
    _producer("producer_cancellations_total", "Stored cancellations: cancels and replacements."): "cut",
    _producer("producer_replaced_total", "Dead producers of the client that were replaced."): "replaced",
}
"""Of a producer's counts."""

_consumer = _made_by("consumer", "due_topic", "subscription")
CONSUMER_READY = _consumer("consumer_ready", "1: subscribed and connected, its relay ready; else 0.")
CONSUMER: Table = {
    _consumer("consumer_received_total", "Messages taken from the client."): "received",
    _consumer("consumer_handed_total", "Timers given out; a timer given out twice counts twice."): "handed",
    _consumer("consumer_done_total", "Handled timers."): "done",
    _consumer("consumer_failed_total", "Timers negatively acknowledged; they come again."): "failed",
    _consumer("consumer_early_total", "Timers received early, and held until their due time."): "early",
    _consumer(
        "consumer_far_too_early_total", "Timers received much too early: delayed delivery is off, or a clock is wrong."
    ): "far_too_early",
    _consumer(
        "consumer_copies_dropped_total",
        "Dropped copies: handled already, redelivered while in flight, or stored twice.",
        "why",
    ): _each("already_handled", "redelivered", "extra_copies"),
    _consumer(
        "consumer_let_go_total", "Timers let go when their partition's connection was lost; they come again."
    ): "let_go",
    _consumer("consumer_replaced_total", "Consumers of the client that stayed away, and were replaced."): "replaced",
    _consumer("consumer_timed_out_total", "Timers given out again after the ack time-out."): "timed_out",
    _consumer(
        "consumer_foreign_total", "Messages that are no timers, or unreadable; a shadow's are dropped.", "why"
    ): _each(no_envelope="foreign", unreadable="envelope_errors", too_new="too_new", nudge="nudges"),
    _consumer(
        "consumer_kept_back_total",
        "Timers not handled: cancelled or replaced, overdue, parked, skipped, or retried.",
        "why",
    ): _each("cancelled", "overdue", "parked", "skipped", "retried"),
    _consumer("consumer_postponed_total", "Timers postponed by or around a handler."): "postponed",
    _consumer(
        "consumer_unevaluated_total", "Timers given out though the log of cancellations did not answer."
    ): "unevaluated",
    _consumer("consumer_held", "Timers in flight that wait for their due time."): "held",
}
"""Of a consumer's counts."""
CONSUMER_LATENESS = _consumer(
    "consumer_lateness_seconds", "Lateness of each timer that was given out.", kind="histogram"
)

_relay = _made_by("relay", "due_topic", "relay_id")
_holding = _made_by("relay", "due_topic", "relay_id", "topic")
RELAY_READY = _relay("relay_ready", "1: all partitions are served, and nothing is unreadable; else 0.")
RELAY: Table = {
    RELAY_READY: "ready",
    _relay("relay_unreadable_topics", "Topics of earlier plans that the relay cannot drain."): (
        lambda status: len(status.unreadable)
    ),
    _relay("relay_partitions", "Partitions of holding topics by state.", "state"): (
        lambda status: dict(sorted(Counter(one.state.value for one in status.partitions).items()))
    ),
}
"""Of a relay's status."""
HOLDING: Table = {
    _holding(
        "relay_hops_total",
        "Timers moved on (on time, late, to their slot's tail, to the dead letters) or dropped as cancelled.",
        "lane",
    ): _totals("late", "dead", "refiled", "dropped", on_time="forwarded"),
    _holding("relay_entries_written_total", "Entries stored for the relay; a group of hops is one entry."): _total(
        "entries"
    ),
    _holding(
        "relay_repeated_total",
        "Messages received again after a reload, or sent again and dropped by the broker.",
        "why",
    ): _totals(received="skipped", sent="deduplicated"),
    _holding("relay_jumps_total", "Jumps over messages that another relay had moved."): _total("jumps"),
    _holding("relay_sessions_failed_total", "Sessions that failed and began anew."): _total("failures"),
    _holding("relay_in_flight", "Hops under way."): _total("in_flight"),
    _holding("relay_in_flight_bytes", "Payloads and properties of hops under way."): _total("in_flight_bytes"),
}
"""Of the partitions of a holding topic."""
RELAY_HEAD_LATE = _holding(
    "relay_head_late_seconds", "Lag: how long ago the head, or the last hop, should have left; 0: on time."
)
RELAY |= {
    _relay("relay_disconnected_partitions", "Partitions without a connection to the broker."): (
        lambda status: sum(not one.connected for one in status.partitions)
    ),
    _relay("relay_stuck_partitions", "Partitions whose thread is stuck."): (
        lambda status: sum(not one.alive for one in status.partitions)
    ),
}

_shadow = _made_by("shadow", "due_topic", "relay_id")
SHADOW_STATE = _shadow("shadow_state", "1 for the requested state; else 0.", "state")
SHADOW_REFUSED = _shadow("shadow_refused", "1: moving is refused, with the reason in /readyz; else 0.")
SHADOW: Table = {
    SHADOW_STATE: lambda status: {
        state.value: state is status.state for state in type(status.state).__members__.values()
    },
    SHADOW_REFUSED: lambda status: bool(status.refusal),
    _shadow("shadow_partitions", "Partitions of the due topic that all shadows share."): (
        lambda status: len(status.movers)
    ),
    _shadow("shadow_led_partitions", "Partitions from which this shadow moves."): _of_movers("leads"),
    _shadow(
        "shadow_caught_up_partitions", "Partitions that it leads and whose backlog it has gone through."
    ): _of_movers("caught_up"),
    _shadow("shadow_stuck_partitions", "Partitions whose mover is stuck."): (
        lambda status: sum(not one.alive for one in status.movers)
    ),
    _shadow(
        "shadow_entries_total",
        "Entries of the due topic by decision; each session counts pending entries again.",
        "decision",
    ): lambda status: {
        decision: sum(one.decisions[decision] for one in status.movers) for decision in status.movers[0].decisions
    },
    _shadow("shadow_moved_total", "Copies that the journal has stored."): _of_movers("moved"),
    _shadow("shadow_deduplicated_total", "Copies that the broker had already."): _of_movers("deduplicated"),
    _shadow("shadow_acked_total", "Originals acknowledged for their copies."): "acked_originals",
    _shadow("shadow_acked_again_total", "Originals whose acknowledgement a broker had forgotten."): _of_movers(
        "acked_again"
    ),
    _shadow("shadow_nudges_total", "Messages that keep brokers from starving the topic."): _of_movers("nudges"),
    _shadow("shadow_sessions_failed_total", "Sessions that failed and began anew."): _of_movers("failures"),
}
"""Of a shadow's status."""
SHADOW_LAG = _shadow(
    "shadow_lag_seconds",
    "From an original's publish to its move, of the last thousand while it ran; the slowest partition.",
    "quantile",
)
SHADOW_GUARD = _shadow("shadow_guard_seconds", "The plan's guard, to compare with the lag.")

EVENTS = _made_by("events", "event", "level")("events_total", "Events by name (docs/events.md).")

_subscription = _made_by("exporter", "topic", "subscription")
SUBSCRIPTION: Table = {
    _subscription("gaps", "Gaps of the partition nearest to the limit."): "worst.gap_count",
    _subscription("gaps_in_all_partitions", "Gaps of all partitions."): "gap_count",
    _subscription("gap_limit", "Gaps of a partition that the broker stores."): "worst.gap_limit",
    _subscription(
        "gap_limit_used_ratio", "Used part of the limit, by gaps or as the stored form counts; 1 is all of it."
    ): "worst.share",
    _subscription(
        "unload_again_entries", "Acknowledged entries that an unload now would deliver again."
    ): "again_entries",
}
"""Of a subscription with all its partitions."""
GROWTH: Table = {
    _subscription("gap_growth_per_hour", "Growth of gaps; absent until known."): "per_hour",
    _subscription("gap_limit_reached_seconds", "Time to the limit at this growth; absent without growth."): (
        lambda growth: None if growth.hours_to_limit is None else growth.hours_to_limit * 3_600
    ),
}
SUBSCRIPTION |= {
    _subscription(
        "backlog_entries",
        "Unacknowledged entries: delayed, in_flight of consumers, ready; unknown: no consumer is connected.",
        "state",
    ): _each("delayed", "ready", "unknown", in_flight="unacked"),
    _subscription("pinned_bytes", "Size of ledgers that the subscription keeps."): "pinned_bytes",
    _subscription("delayed_index_bytes", "The broker's memory for delayed messages."): "index_bytes",
}

_plan = _made_by("exporter", "due_topic")
NEXT = 4  # ranges of due times with a label of their own: overdue, next minute, hour and day. Later days share a label.


def _by_due_time(status: Status) -> Mapping[str, float]:
    amounts = [amount.count for amount in status.by_stretch()]
    names = [bucket.name.replace(" ", "_") for bucket in status.horizon.buckets[:NEXT]]
    return dict(zip((*names, "later"), (*amounts[:NEXT], sum(amounts[NEXT:])), strict=True))


PLAN: Table = {
    _plan("timers", "Waiting timers of a plan by due time; sampled where topics do not show it.", "due"): _by_due_time,
    _plan(
        "topic_head_late_seconds",
        "How long ago the oldest entry of a plan's topic should have left; 0: on time.",
        "topic",
    ): lambda status: {one.topic: one.late_ms / SECOND_MS for one in status.topics()},
    _plan("unattended_partitions", "Partitions with late timers and no connected relay."): (
        lambda status: len(status.unattended())
    ),
    _plan("dead_letters", "Entries in the dead-letter topic; absent if not seen."): "dead_letters",
}
"""Of the status of a plan."""
_exporter = _made_by("exporter")
SNAPSHOT_LAST = _exporter("exporter_last_snapshot_timestamp_seconds", "Unix time of the last snapshot.")
LOOK_EVERY = _exporter("exporter_interval_seconds", "Seconds between the starts of snapshots.")
SNAPSHOT_SECONDS = _exporter("exporter_snapshot_seconds", "Duration of the last snapshot.")
LOOK_FAILED = _exporter("exporter_snapshots_failed_total", "Failed snapshots; the snapshot before is exported.")
UNSEEN = _exporter(
    "exporter_unseen", "Topics, namespaces and tenants that the last snapshot could not see, or that do not exist."
)
LEFT_OUT = _exporter("exporter_left_out", "Less severe subscriptions, not exported (--limit).")

CATALOGUE: tuple[Metric, ...] = tuple(_made)
"""All metrics, in the order of this file."""


def samples_of(table: Table, source: object, *labels: str) -> Iterator[Sample]:
    """Read all metrics of a table."""
    for metric, read in table.items():
        found = attrgetter(read)(source) if isinstance(read, str) else read(source)
        if isinstance(found, Mapping):
            yield from (Sample(metric, (*labels, label), value) for label, value in found.items())
        elif found is not None:
            yield Sample(metric, labels, found)


def of_consumer(consumer: BaseConsumer, lateness: LatenessCounts) -> Iterator[Sample]:
    """Yield the samples of a consumer that measures lateness."""
    from timewheel.consumers.counts import BOUNDS_MS  # noqa: PLC0415 - a process without consumers does not load them

    labels = (consumer.plan.due_topic, consumer.subscription)
    yield Sample(CONSUMER_READY, labels, consumer.ready)
    yield from samples_of(CONSUMER, consumer.counts, *labels)
    bounds = [*(str(bound / SECOND_MS) for bound in BOUNDS_MS), "+Inf"]
    buckets = tuple(zip(bounds, map(float, accumulate(lateness.counts)), strict=True))
    yield Sample(CONSUMER_LATENESS, labels, lateness.sum_ms / SECOND_MS, buckets)


def of_relay(due_topic: str, status: RelayStatus, now_ms: int) -> Iterator[Sample]:
    """Yield the samples of a relay; partitions of a holding topic are combined."""
    yield from samples_of(RELAY, status, due_topic, status.relay_id)
    by_topic: defaultdict[str, list[PartitionStatus]] = defaultdict(list)
    for partition in status.partitions:
        by_topic[partition_of(partition.topic)[0]].append(partition)
    for topic, partitions in sorted(by_topic.items()):
        labels = (due_topic, status.relay_id, topic)
        yield from samples_of(HOLDING, partitions, *labels)
        releases = [one.newest_release_ms for one in partitions if one.newest_release_ms is not None]
        yield Sample(RELAY_HEAD_LATE, labels, max(now_ms - min(releases, default=now_ms), 0) / SECOND_MS)


def of_shadow(plan: Plan, relay_id: str, status: ShadowStatus) -> Iterator[Sample]:
    """Yield the samples of a shadow; partitions of the due topic are combined, and the longest lag counts."""
    yield from samples_of(SHADOW, status, plan.due_topic, relay_id)
    for quantile, name in (("0.5", "lag_p50_ms"), ("0.99", "lag_p99_ms")):
        known = [lag_ms for one in status.movers if (lag_ms := getattr(one, name)) is not None]
        if known:
            yield Sample(SHADOW_LAG, (plan.due_topic, relay_id, quantile), max(known) / SECOND_MS)
    yield Sample(SHADOW_GUARD, (plan.due_topic, relay_id), plan.guard_ms / SECOND_MS)


def of_snapshot(snapshot: GapSnapshot, snapshots: GapHistory, most: int) -> Iterator[Sample]:
    """Yield the samples of the ``most`` worst subscriptions (each makes a dozen series), and the number of others."""
    for one in snapshot.subscriptions[:most]:
        yield from samples_of(SUBSCRIPTION, one, one.topic, one.subscription)
        if (growth := snapshots.growth(one)) is not None:
            yield from samples_of(GROWTH, growth, one.topic, one.subscription)
    yield Sample(LEFT_OUT, (), max(len(snapshot.subscriptions) - most, 0))


_WORST_COUNTS: dict[Metric, Callable[[Iterable[float]], float]] = {
    CONSUMER_READY: min,
    RELAY_READY: min,
    RELAY_HEAD_LATE: max,
    SHADOW_STATE: max,
    SHADOW_REFUSED: max,
    SHADOW_LAG: max,
    SHADOW_GUARD: max,
}
"""Functions that combine roles with the same labels to the worst value; other metrics are summed."""


def families(samples: Iterable[Sample]) -> list[Family]:
    """Convert samples to prometheus-client's own families, in the catalogue's order, without empty metrics.

    Roles with the same labels, such as two producers of a plan in the same process, are combined.
    """
    from prometheus_client.core import (  # noqa: PLC0415 - the table of the docs is drawn without the library
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    by_metric: dict[Metric, dict[tuple[str, ...], list[Sample]]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, {}).setdefault(sample.labels, []).append(sample)
    made: list[Family] = []
    for metric in sorted(by_metric, key=CATALOGUE.index):
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.means, labels=metric.labels)
            for labels, same in by_metric[metric].items():
                added = same[0]
                for one in same[1:]:
                    added = added_to(added, one)
                histogram.add_metric(labels, added.buckets, added.value)
            made.append(histogram)
            continue
        family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
            metric.name, metric.means, labels=metric.labels
        )
        one_of = _WORST_COUNTS.get(metric, sum)
        for labels, same in by_metric[metric].items():
            family.add_metric(labels, one_of(one.value for one in same))
        made.append(family)
    return made


def added_to(one: Sample, other: Sample) -> Sample:
    """Add two samples of the same metric and labels."""
    buckets = tuple((bound, count + more) for (bound, count), (_, more) in zip(one.buckets, other.buckets, strict=True))
    return Sample(one.metric, one.labels, one.value + other.value, buckets)
