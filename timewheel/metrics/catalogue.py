"""Catalogue of all metrics: meaning, unit and labels. The table in the docs is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

Kind = Literal["counter", "gauge", "histogram"]
By = Literal["producer", "consumer", "relay", "shadow", "events", "exporter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Definition of a metric.

    Attributes:
        name: Name in Prometheus: with ``_total`` for a counter, without the suffixes for a histogram.
        kind: A counter only grows, a gauge may fall, a histogram counts by size.
        labels: Names of the labels.
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
    """Value of a metric.

    Attributes:
        metric: The metric.
        labels: Values of the labels, in the metric's order.
        value: Value in the unit that the metric's name states.
        buckets: For a histogram: cumulative counts by upper bound; the last bound is infinity.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: Sequence[tuple[str, float]] = ()


_OF_PRODUCER = ("due_topic",)
_OF_CONSUMER = ("due_topic", "subscription")
_OF_RELAY = ("due_topic", "relay_id")
_OF_HOLDING = ("due_topic", "relay_id", "topic")
_OF_SHADOW = ("due_topic", "relay_id")
_OF_SUBSCRIPTION = ("topic", "subscription")


def _metric(name: str, kind: Kind, labels: tuple[str, ...], by: By, means: str) -> Metric:
    return Metric(name=f"timewheel_{name}", kind=kind, labels=labels, means=means, by=by)


PRODUCER_STORED = _metric("producer_stored_total", "counter", _OF_PRODUCER, "producer", "Stored timers.")
PRODUCER_REFUSED = _metric(
    "producer_refused_total", "counter", _OF_PRODUCER, "producer", "Sends with arguments that cannot be sent."
)
PRODUCER_FAILED = _metric("producer_failed_total", "counter", _OF_PRODUCER, "producer", "Sends that were not stored.")
PRODUCER_UNKNOWN = _metric(
    "producer_unknown_total", "counter", _OF_PRODUCER, "producer", "Sends that may be stored or not."
)
PRODUCER_PENDING = _metric("producer_pending", "gauge", _OF_PRODUCER, "producer", "Sends under way.")
PRODUCER_CANCELLATIONS = _metric(
    "producer_cancellations_total",
    "counter",
    _OF_PRODUCER,
    "producer",
    "Stored cancellations: cancels and replacements.",
)

CONSUMER_READY = _metric(
    "consumer_ready", "gauge", _OF_CONSUMER, "consumer", "1: subscribed and connected, its relay ready; else 0."
)
CONSUMER_RECEIVED = _metric(
    "consumer_received_total", "counter", _OF_CONSUMER, "consumer", "Messages taken from the client."
)
CONSUMER_HANDED = _metric(
    "consumer_handed_total",
    "counter",
    _OF_CONSUMER,
    "consumer",
    "Timers given out; a timer given out twice counts twice.",
)
CONSUMER_DONE = _metric("consumer_done_total", "counter", _OF_CONSUMER, "consumer", "Handled timers.")
CONSUMER_FAILED = _metric(
    "consumer_failed_total", "counter", _OF_CONSUMER, "consumer", "Timers negatively acknowledged; they come again."
)
CONSUMER_EARLY = _metric(
    "consumer_early_total", "counter", _OF_CONSUMER, "consumer", "Timers received early, and held until their due time."
)
CONSUMER_FAR_TOO_EARLY = _metric(
    "consumer_far_too_early_total", "counter", _OF_CONSUMER, "consumer",
    "Timers received much too early: delayed delivery is off, or a clock is wrong.",
)  # fmt: skip
CONSUMER_COPIES = _metric(
    "consumer_copies_dropped_total", "counter", (*_OF_CONSUMER, "why"), "consumer",
    "Dropped copies: handled already, redelivered while in flight, or stored twice.",
)  # fmt: skip
CONSUMER_TIMED_OUT = _metric(
    "consumer_timed_out_total", "counter", _OF_CONSUMER, "consumer", "Timers given out again after the ack time-out."
)
CONSUMER_FOREIGN = _metric(
    "consumer_foreign_total", "counter", (*_OF_CONSUMER, "why"), "consumer",
    "Messages that are no timers, or unreadable; a shadow's are dropped.",
)  # fmt: skip
CONSUMER_KEPT_BACK = _metric(
    "consumer_kept_back_total", "counter", (*_OF_CONSUMER, "why"), "consumer",
    "Timers not handled: cancelled or replaced, overdue, parked, skipped, or retried.",
)  # fmt: skip
CONSUMER_POSTPONED = _metric(
    "consumer_postponed_total",
    "counter",
    _OF_CONSUMER,
    "consumer",
    "Timers postponed by or around a handler.",
)
CONSUMER_UNEVALUATED = _metric(
    "consumer_unevaluated_total", "counter", _OF_CONSUMER, "consumer",
    "Timers given out though the log of cancellations did not answer.",
)  # fmt: skip
CONSUMER_HELD = _metric(
    "consumer_held", "gauge", _OF_CONSUMER, "consumer", "Timers in flight that wait for their due time."
)
CONSUMER_LATENESS = _metric(
    "consumer_lateness_seconds", "histogram", _OF_CONSUMER, "consumer",
    "Lateness of each timer that was given out.",
)  # fmt: skip

RELAY_READY = _metric(
    "relay_ready", "gauge", _OF_RELAY, "relay", "1: all partitions are served, and nothing is unreadable; else 0."
)
RELAY_UNREADABLE = _metric(
    "relay_unreadable_topics", "gauge", _OF_RELAY, "relay", "Topics of earlier plans that the relay cannot drain."
)
RELAY_PARTITIONS = _metric(
    "relay_partitions", "gauge", (*_OF_RELAY, "state"), "relay", "Partitions of holding topics by state."
)
RELAY_HOPS = _metric(
    "relay_hops_total", "counter", (*_OF_HOLDING, "lane"), "relay",
    "Timers moved on (on time, late, to their slot's tail, to the dead letters) or dropped as cancelled.",
)  # fmt: skip
RELAY_ENTRIES = _metric(
    "relay_entries_written_total", "counter", _OF_HOLDING, "relay",
    "Entries stored for the relay; a group of hops is one entry.",
)  # fmt: skip
RELAY_REPEATED = _metric(
    "relay_repeated_total", "counter", (*_OF_HOLDING, "why"), "relay",
    "Messages received again after a reload, or sent again and dropped by the broker.",
)  # fmt: skip
RELAY_JUMPS = _metric(
    "relay_jumps_total",
    "counter",
    _OF_HOLDING,
    "relay",
    "Jumps over messages that another relay had moved.",
)
RELAY_SESSIONS = _metric(
    "relay_sessions_failed_total", "counter", _OF_HOLDING, "relay", "Sessions that failed and began anew."
)
RELAY_IN_FLIGHT = _metric("relay_in_flight", "gauge", _OF_HOLDING, "relay", "Hops under way.")
RELAY_IN_FLIGHT_BYTES = _metric(
    "relay_in_flight_bytes", "gauge", _OF_HOLDING, "relay", "Payloads and properties of hops under way."
)
RELAY_HEAD_LATE = _metric(
    "relay_head_late_seconds", "gauge", _OF_HOLDING, "relay",
    "Lag: how long ago the head, or the last hop, should have left; 0: on time.",
)  # fmt: skip
RELAY_DISCONNECTED = _metric(
    "relay_disconnected_partitions", "gauge", _OF_RELAY, "relay", "Partitions without a connection to the broker."
)
RELAY_STUCK = _metric("relay_stuck_partitions", "gauge", _OF_RELAY, "relay", "Partitions whose thread is stuck.")

SHADOW_STATE = _metric("shadow_state", "gauge", (*_OF_SHADOW, "state"), "shadow", "1 for the requested state; else 0.")
SHADOW_REFUSED = _metric(
    "shadow_refused", "gauge", _OF_SHADOW, "shadow", "1: moving is refused, with the reason in /readyz; else 0."
)
SHADOW_PARTITIONS = _metric(
    "shadow_partitions", "gauge", _OF_SHADOW, "shadow", "Partitions of the due topic that all shadows share."
)
SHADOW_LED = _metric("shadow_led_partitions", "gauge", _OF_SHADOW, "shadow", "Partitions from which this shadow moves.")
SHADOW_CAUGHT_UP = _metric(
    "shadow_caught_up_partitions", "gauge", _OF_SHADOW, "shadow",
    "Partitions that it leads and whose backlog it has gone through.",
)  # fmt: skip
SHADOW_STUCK = _metric("shadow_stuck_partitions", "gauge", _OF_SHADOW, "shadow", "Partitions whose mover is stuck.")
SHADOW_ENTRIES = _metric(
    "shadow_entries_total", "counter", (*_OF_SHADOW, "decision"), "shadow",
    "Entries of the due topic by decision; each session counts pending entries again.",
)  # fmt: skip
SHADOW_MOVED = _metric("shadow_moved_total", "counter", _OF_SHADOW, "shadow", "Copies that the journal has stored.")
SHADOW_DEDUPLICATED = _metric(
    "shadow_deduplicated_total", "counter", _OF_SHADOW, "shadow", "Copies that the broker had already."
)
SHADOW_ACKED = _metric(
    "shadow_acked_total", "counter", _OF_SHADOW, "shadow",
    "Originals acknowledged for their copies.",
)  # fmt: skip
SHADOW_ACKED_AGAIN = _metric(
    "shadow_acked_again_total", "counter", _OF_SHADOW, "shadow",
    "Originals whose acknowledgement a broker had forgotten.",
)  # fmt: skip
SHADOW_NUDGES = _metric(
    "shadow_nudges_total", "counter", _OF_SHADOW, "shadow", "Messages that keep brokers from starving the topic."
)
SHADOW_SESSIONS = _metric(
    "shadow_sessions_failed_total", "counter", _OF_SHADOW, "shadow", "Sessions that failed and began anew."
)
SHADOW_LAG = _metric(
    "shadow_lag_seconds", "gauge", (*_OF_SHADOW, "quantile"), "shadow",
    "From an original's publish to its move, of the last thousand while it ran; the slowest partition.",
)  # fmt: skip
SHADOW_GUARD = _metric(
    "shadow_guard_seconds", "gauge", _OF_SHADOW, "shadow", "The plan's guard, to compare with the lag."
)

EVENTS = _metric("events_total", "counter", ("event", "level"), "events", "Events by name (docs/events.md).")

GAPS = _metric("gaps", "gauge", _OF_SUBSCRIPTION, "exporter", "Gaps of the partition nearest to the limit.")
GAPS_IN_ALL = _metric("gaps_in_all_partitions", "gauge", _OF_SUBSCRIPTION, "exporter", "Gaps of all partitions.")
GAP_LIMIT = _metric("gap_limit", "gauge", _OF_SUBSCRIPTION, "exporter", "Gaps of a partition that the broker stores.")
GAP_LIMIT_RATIO = _metric(
    "gap_limit_used_ratio", "gauge", _OF_SUBSCRIPTION, "exporter",
    "Used part of the limit, by gaps or as the stored form counts; 1 is all of it.",
)  # fmt: skip
UNLOAD_AGAIN = _metric(
    "unload_again_entries", "gauge", _OF_SUBSCRIPTION, "exporter",
    "Acknowledged entries that an unload now would deliver again.",
)  # fmt: skip
GAP_GROWTH = _metric(
    "gap_growth_per_hour", "gauge", _OF_SUBSCRIPTION, "exporter", "Growth of gaps; absent until known."
)
GAP_LIMIT_SECONDS = _metric(
    "gap_limit_reached_seconds", "gauge", _OF_SUBSCRIPTION, "exporter",
    "Time to the limit at this growth; absent without growth.",
)  # fmt: skip
BACKLOG = _metric(
    "backlog_entries", "gauge", (*_OF_SUBSCRIPTION, "state"), "exporter",
    "Unacknowledged entries: delayed, in_flight of consumers, ready; unknown: no consumer is connected.",
)  # fmt: skip
PINNED = _metric(
    "pinned_bytes", "gauge", _OF_SUBSCRIPTION, "exporter",
    "Size of ledgers that the subscription keeps.",
)  # fmt: skip
INDEX = _metric(
    "delayed_index_bytes", "gauge", _OF_SUBSCRIPTION, "exporter", "The broker's memory for delayed messages."
)
TIMERS = _metric(
    "timers", "gauge", ("due_topic", "due"), "exporter",
    "Waiting timers of a plan by due time; sampled where topics do not show it.",
)  # fmt: skip
HEAD_LATE = _metric(
    "topic_head_late_seconds", "gauge", ("due_topic", "topic"), "exporter",
    "How long ago the oldest entry of a plan's topic should have left; 0: on time.",
)  # fmt: skip
UNATTENDED = _metric(
    "unattended_partitions",
    "gauge",
    ("due_topic",),
    "exporter",
    "Partitions with late timers and no connected relay.",
)
DEAD = _metric(
    "dead_letters", "gauge", ("due_topic",), "exporter", "Entries in the dead-letter topic; absent if not seen."
)
SNAPSHOT_LAST = _metric(
    "exporter_last_snapshot_timestamp_seconds", "gauge", (), "exporter", "Unix time of the last snapshot."
)
LOOK_EVERY = _metric(
    "exporter_interval_seconds",
    "gauge",
    (),
    "exporter",
    "Seconds between the starts of snapshots.",
)
SNAPSHOT_SECONDS = _metric("exporter_snapshot_seconds", "gauge", (), "exporter", "Duration of the last snapshot.")
LOOK_FAILED = _metric(
    "exporter_snapshots_failed_total", "counter", (), "exporter", "Failed snapshots; the snapshot before is exported."
)
UNSEEN = _metric(
    "exporter_unseen",
    "gauge",
    (),
    "exporter",
    "Topics, namespaces and tenants that the last snapshot could not see, or that do not exist.",
)
LEFT_OUT = _metric("exporter_left_out", "gauge", (), "exporter", "Less severe subscriptions, not exported (--limit).")

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in the order of this file."""


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
                histogram.add_metric(labels, list(_added(same)), sum(one.value for one in same))
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


def _added(histograms: Sequence[Sample]) -> Iterator[tuple[str, float]]:
    for same_bound in zip(*(one.buckets for one in histograms), strict=True):
        yield same_bound[0][0], sum(count for _, count in same_bound)
