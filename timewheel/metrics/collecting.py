"""Metrics of this process's own producers, consumers, relays and shadows, read at each scrape only."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from timewheel.core.clock import Clock, SystemClock
from timewheel.events import CATALOGUE as EVENTS
from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import (
    PRODUCER,
    Metric,
    Sample,
    added_to,
    families,
    of_consumer,
    of_relay,
    of_shadow,
    samples_of,
)
from timewheel.serving import Answer, Page

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from timewheel.consumers import BaseConsumer
    from timewheel.core.plan import Plan
    from timewheel.hooks import Event
    from timewheel.producers import AsyncDelayedProducer, DelayedProducer
    from timewheel.relay import Relay
    from timewheel.relay.service import RelayLike
    from timewheel.shadow.shadow import ShadowStatus

Producer = TypeVar("Producer", bound="DelayedProducer | AsyncDelayedProducer")
Consumer = TypeVar("Consumer", bound="BaseConsumer")
Role = TypeVar("Role")
Read = Callable[[], tuple[Sample, ...] | None]  # returns the samples of a role; None: the role has ended


class Ended:
    """Keeps the last counts of ended roles, as long as a living role has the same labels. Not thread-safe.

    If none has, the series ends. A series that begins again later begins at its own count, as after a restart.
    """

    __slots__ = ("_kept", "_last")

    def __init__(self) -> None:
        self._last: Mapping[Read, Sequence[Sample]] = {}
        self._kept: dict[tuple[Metric, tuple[str, ...]], Sample] = {}

    def with_those_of(self, living: Mapping[Read, Sequence[Sample]]) -> list[Sample]:
        """Return the samples of living roles, with the kept counts of those that have ended since the last call."""
        told = [sample for samples in living.values() for sample in samples]
        kept = dict(self._kept)
        for role, samples in self._last.items():
            if role not in living:
                for sample in samples:
                    if sample.metric.kind != "gauge":
                        series = sample.metric, sample.labels
                        kept[series] = added_to(kept[series], sample) if series in kept else sample
        alive = {(sample.metric, sample.labels) for sample in told}
        self._kept = {series: sample for series, sample in kept.items() if series in alive}
        self._last = dict(living)
        return [*told, *self._kept.values()]


class ShadowLike(Protocol):
    """The part of a shadow that its metrics need."""

    @property
    def plan(self) -> Plan: ...
    @property
    def relay_id(self) -> str: ...
    def shadow_status(self) -> ShadowStatus: ...


class Metrics(Collector):
    """Collector that reports the counts of roles to Prometheus.

        metrics = Metrics()
        hooks = (log_event, metrics.count_event)
        producer = metrics.watch_producer(DelayedProducer(client, plan, hooks=hooks))
        consumer = metrics.watch_consumer(DelayedConsumer(client, plan, "billing", hooks=hooks))

    Roles count in any case; the collector reads the counts at each scrape. It keeps no role alive: the samples of a
    role end with it. If several roles have the same labels, the counters continue with the ended roles' counts at the
    last scrape: Prometheus treats a counter that falls as restarted. Metrics and labels are listed in
    docs/how-to/metrics.md; no label holds a value of a single timer.

    Args:
        registry: Registry of the scrapes; None: prometheus-client's default, which also has a service's other metrics.
        clock: Clock for the lateness of heads; None: the system's clock.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._roles: list[Read] = []
        # All events from the start: Prometheus sees no increase in a series that begins with 1.
        self._events: Counter[tuple[str, str]] = Counter(dict.fromkeys(((one.name, one.level) for one in EVENTS), 0))
        self._changing = threading.Lock()
        # Scrapes may overlap. Held while roles are read, so no role's thread may ever wait for it.
        self._reading = threading.Lock()
        self._ended = Ended()
        (registry or REGISTRY).register(self)

    def watch_producer(self, producer: Producer) -> Producer:
        """Collect the metrics of a producer from now on, and return the producer."""
        return self._watch(producer, lambda one: samples_of(PRODUCER, one.counts, one.plan.due_topic))

    def watch_consumer(self, consumer: Consumer) -> Consumer:
        """Collect the metrics of a consumer and of its relay from now on, have it measure lateness, and return it."""
        lateness = consumer.measure_lateness()

        def samples(one: Consumer) -> Iterator[Sample]:
            status = one.relay_status
            yield from of_consumer(one, lateness.counted())
            if status is not None:
                yield from of_relay(one.plan.due_topic, status, self._clock.now_ms())

        return self._watch(consumer, samples)

    def watch_relay(self, relay: Relay) -> Relay:
        """Collect the metrics of a relay from now on, and return the relay."""
        return self._watch(relay, lambda one: of_relay(one.plan.due_topic, one.status(), self._clock.now_ms()))

    def watch_relays(self, relays: Callable[[], Iterable[RelayLike]]) -> None:
        """Collect the metrics of all relays that exist at each scrape, for a service whose plans may change.

        Args:
            relays: Returns the relays; called at each scrape, on its thread.
        """

        def read() -> tuple[Sample, ...]:
            now_ms = self._clock.now_ms()
            return tuple(sample for one in relays() for sample in of_relay(one.plan.due_topic, one.status(), now_ms))

        self._add(read)

    def watch_shadows(self, shadows: Callable[[], Iterable[ShadowLike]]) -> None:
        """Collect the metrics of all shadows that exist at each scrape; `watch_relays` collects those of their relays.

        Args:
            shadows: Returns the shadows; called at each scrape, on its thread.
        """
        self._add(
            lambda: tuple(
                sample for one in shadows() for sample in of_shadow(one.plan, one.relay_id, one.shadow_status())
            )
        )

    def count_event(self, event: Event) -> None:
        """Count an event by name; to be used as a hook."""
        with self._changing:
            self._events[event.name, event.level] += 1

    def collect(self) -> list[Family]:
        """Return all metrics; prometheus-client calls this at a scrape."""
        return families([*self._read(), *self._counted_events()])

    def describe(self) -> list[Family]:
        """Return no metrics, so that registration reads no role."""
        return []

    def _watch(self, role: Role, samples: Callable[[Role], Iterable[Sample]]) -> Role:
        found = weakref.ref(role)

        def read() -> tuple[Sample, ...] | None:
            one = found()
            return None if one is None else tuple(samples(one))

        self._add(read)
        return role

    def _add(self, read: Read) -> None:
        with self._changing:
            self._roles.append(read)

    def _read(self) -> list[Sample]:
        with self._reading:
            with self._changing:
                roles = tuple(self._roles)
            found = {read: samples for read in roles if (samples := read()) is not None}
            with self._changing:
                self._roles = [read for read in self._roles if read in found or read not in roles]
            return self._ended.with_those_of(found)

    def _counted_events(self) -> Iterator[Sample]:
        with self._changing:
            events = sorted(self._events.items())
        for labels, count in events:
            yield Sample(told.EVENTS, labels, count)


def metrics_page(registry: CollectorRegistry = REGISTRY) -> Page:
    """Return a page for `timewheel.serving.HttpServer` with all metrics of a registry, in the format of Prometheus."""
    return lambda: Answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
