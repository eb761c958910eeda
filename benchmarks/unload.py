"""How long is a due topic silent after an unload?

After a reload a Shared subscription's broker reads its whole backlog again, to know which message is due when, before
it delivers anything, about 80 to 100 us for each pending message (broker-facts: silence-after-unload). So what counts
is how many timers stand in the due topic itself. Every scheme gets the same 300,000 timers, due evenly over 30 days,
and holds its natural share of them there: plain pulsar-client all, the others what a day holds. A calendar's and a
wheel's share goes up and down with the hour, so theirs is measured at its highest: their day has just begun.

Then, some times over: unload every topic of the scheme, send a probe that is due now, and take the time from the end of
the unload to the probe's arrival. Nothing else comes due meanwhile, and a consumer and (where there is one) its relay
stay connected throughout, as they would be.

Goal: under 2 s with tiers and with a wheel, in the worst round.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pulsar

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, provisioned, service
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.core import DAY_MS, Calendar, Native, Plan, Ring, Router, Scheme, Tiered, Wheel
from timewheel.core.names import partition_topic
from timewheel.core.topology import topology
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

SHOWN = frozenset(("pending", "silent, s", "worst, s"))
SEED = 7
TIMERS = 300_000
QUICK_TIMERS = 30_000
ROUNDS = 3
GOAL_S = 2.0
DAYS = 30
SHORTEST_MS = 20 * 60_000  # longer than all rounds of one scheme take, so that nothing but probes comes due
BEGUN_MS = 60_000
"""How long ago the day of a calendar or a wheel began, at least: topics of the day before are nobody's business."""
PAYLOAD = bytes(range(200))
PATIENCE_S = 300.0  # for one probe, and for the broker to have read all that was published
CALLS_AT_ONCE = 8

SchemeOf = Callable[[int], Scheme]  # makes a scheme of the length of a day, in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One row; if it has a goal, a probe has to arrive within `GOAL_S`."""

    name: str
    scheme: SchemeOf
    raw: bool = False
    has_goal: bool = True


SUBJECTS = (
    Subject(name="native, raw client", scheme=lambda _: Native(), raw=True, has_goal=False),
    Subject(name="tiered, relay", scheme=lambda day_ms: Tiered(window_ms=day_ms, tiers_ms=(day_ms, 5 * day_ms))),
    Subject(
        name="tiered, broker",
        scheme=lambda day_ms: Tiered(window_ms=day_ms, tiers_ms=(day_ms, 5 * day_ms), hold="broker"),
    ),
    Subject(name="calendar, day", scheme=lambda day_ms: Calendar(interval_ms=day_ms), has_goal=False),
    Subject(name="wheel, day slots", scheme=lambda day_ms: Wheel(rings=(Ring(slot_ms=day_ms, slots=DAYS + 2),))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Timers pending where the probe goes, and seconds.

    From the probe's send to its arrival without an unload; of the unloads; from the end of each unload to the probe's
    arrival.
    """

    in_due_topic: int
    calm_s: float
    unload_s: tuple[float, ...]
    silent_s: tuple[float, ...]


class Side(ABC):
    """A connected producer and consumer of one plan."""

    def __init__(self, producer: Any, consumer: Any) -> None:
        self._producer = producer
        self._consumer = consumer
        self._stored = 0

    @abstractmethod
    def _on_stored(self, outcome: Any, _: Any) -> None:
        """Count it if it was stored; called by one thread."""

    def publish(self, due_ms: int) -> None:
        self._producer.send_async(PAYLOAD, self._on_stored, deliver_at=due_ms)

    def confirmed(self) -> int:
        """Wait for the outcome of every `publish`, and return how many are stored."""
        self._producer.flush()
        return self._stored

    @abstractmethod
    def probe(self, name: str) -> None:
        """Send a timer that is due now, and return when it is here."""


class Raw(Side):
    """Plain pulsar-client: what one has without timewheel."""

    def _on_stored(self, outcome: Any, _: Any) -> None:
        self._stored += outcome == pulsar.Result.Ok

    def probe(self, name: str) -> None:
        self._producer.send_async(PAYLOAD, self._on_stored, properties={"probe": name})
        arrived = ""
        while arrived != name:  # an earlier round's may come again: its acknowledgement was not written
            message = self._consumer.receive(timeout_millis=int(PATIENCE_S * 1_000))
            arrived = message.properties()["probe"]
            self._consumer.acknowledge(message)


class Ours(Side):
    """Timewheel's producer and consumer, which embeds the relay."""

    def _on_stored(self, outcome: Any, _: Any) -> None:
        self._stored += outcome is None

    def probe(self, name: str) -> None:
        self._producer.send_async(PAYLOAD, self._on_stored, timer_id=name)
        message = self._consumer.receive(timeout_millis=int(PATIENCE_S * 1_000))
        if message.timer_id != name:
            raise RuntimeError(f"{message.timer_id} came instead of the probe {name}")
        self._consumer.acknowledge(message)


@contextmanager
def raw_side(client: Any, plan: Plan) -> Iterator[Side]:
    topic = partition_topic(plan.due_topic, 0)
    consumer = client.subscribe(
        topic,
        plan.subscriptions[0],
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(topic, block_if_queue_full=True)
    try:
        yield Raw(producer, consumer)
    finally:
        producer.close()
        consumer.close()


@contextmanager
def our_side(client: Any, plan: Plan) -> Iterator[Side]:
    # No hooks: an unload is what every round is about, and need not be reported by every partition.
    with (
        DelayedConsumer(client, plan, plan.subscriptions[0], hooks=()) as consumer,
        DelayedProducer(client, plan, hooks=()) as producer,
    ):
        eventually(lambda: consumer.ready, PATIENCE_S, message="the consumer and its relay are ready")
        yield Ours(producer, consumer)


def day_that_has_just_begun_ms(at_ms: int) -> int:
    """The length of a day, at most the real one, of which a multiple since 1970 was `BEGUN_MS` ago.

    It began up to some 20 s earlier than that: the days since 1970 each give away a fraction of a millisecond.
    """
    begun_ms = at_ms - BEGUN_MS
    return begun_ms // (begun_ms // DAY_MS + 1)


def publish(side: Side, day_ms: int, timers: int) -> None:
    """Send timers, due evenly over all days, in random order."""
    rng = random.Random(SEED)
    for _ in range(timers):
        side.publish(now_ms() + rng.randrange(SHORTEST_MS, DAYS * day_ms))
    stored = side.confirmed()
    if stored != timers:
        raise RuntimeError(f"only {stored} of {timers} timers were stored")


def pending(admin: AdminClient, plan: Plan, topic: str) -> int:
    """How many timers wait in the due topic, once the broker has read them all."""

    def read() -> int:
        subscription = admin.topics.partitioned_stats(topic).total.subscriptions[plan.subscriptions[0]]
        assert subscription.delayed >= subscription.backlog, f"{subscription.delayed} of {subscription.backlog} read"
        return subscription.backlog

    return eventually(read, PATIENCE_S, poll=0.2, message=f"timers wait in {topic}")


def unload(admin: AdminClient, plan: Plan, probed: str) -> float:
    """Unload every topic of the plan, and last the one that is probed; returns the seconds that it took."""
    began_s = time.monotonic()
    others = [spec.name for spec in topology(plan, now_ms()).topics if spec.name != probed]
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        list(pool.map(admin.topics.unload, others))
    admin.topics.unload(probed)
    return time.monotonic() - began_s


def probe_s(side: Side, name: str) -> float:
    """Seconds from now until a timer that is sent now, and due now, is here."""
    began_s = time.monotonic()
    side.probe(name)
    return time.monotonic() - began_s


def silence(client: Any, broker: Broker, subject: Subject, *, timers: int, rounds: int) -> Silence:
    """Measure one scheme, on topics of its own that are gone afterwards."""
    day_ms = day_that_has_just_begun_ms(now_ms())
    plan = provisioned(broker, "unload", subject.scheme(day_ms), max_delay_ms=DAYS * day_ms)
    side_of = raw_side if subject.raw else our_side
    with AdminClient(broker.admin_url) as admin:
        try:
            with side_of(client, plan) as side:
                publish(side, day_ms, timers)
                probed = Router(plan).route(now_ms(), now_ms()).topic
                in_due_topic = pending(admin, plan, probed)
                calm_s = probe_s(side, "calm")
                taken = [(unload(admin, plan, probed), probe_s(side, f"round-{turn}")) for turn in range(rounds)]
        finally:
            with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
                list(pool.map(admin.topics.delete, [spec.name for spec in topology(plan, now_ms()).topics]))
    return Silence(
        in_due_topic=in_due_topic,
        calm_s=calm_s,
        unload_s=tuple(unload_s for unload_s, _ in taken),
        silent_s=tuple(silent_s for _, silent_s in taken),
    )


def compare(client: Any, broker: Broker, *, timers: int, rounds: int) -> list[Result]:
    """Measure all schemes one after the other; the first one is what the others are compared with."""
    results: list[Result] = []
    native_s = 0.0
    for subject in SUBJECTS:
        began_s = time.monotonic()
        found = silence(client, broker, subject, timers=timers, rounds=rounds)
        typical_s, worst_s = statistics.median(found.silent_s), max(found.silent_s)
        native_s = native_s or typical_s
        results.append(
            Result(
                question="silence after an unload",
                subject=subject.name,
                figures={
                    "pending in all": timers,
                    "pending": found.in_due_topic,
                    "calm, s": found.calm_s,
                    "unload, s": statistics.median(found.unload_s),
                    "silent, s": typical_s,
                    "worst, s": worst_s,
                    "native / this": native_s / typical_s,
                    "rounds": rounds,
                },
                goal=f"under {GOAL_S:.0f} s in the worst round" if subject.has_goal else "",
                met=worst_s < GOAL_S if subject.has_goal else None,
            )
        )
        print(f"{subject.name}: {time.monotonic() - began_s:.0f} s, load average {os.getloadavg()[0]:.1f}", flush=True)
    return results


def main(quick: bool = False) -> list[Result]:
    with service() as broker, connected(broker) as client:
        return compare(client, broker, timers=QUICK_TIMERS if quick else TIMERS, rounds=ROUNDS)
