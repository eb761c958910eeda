"""How late does a timer reach its handler, and is any early? Alone on the machine, against plain delayed delivery.

Three ways through one broker, one after the other, with the same due times (a seeded Poisson stream):

- raw: pulsar-client's ``deliver_at`` and a Shared consumer, which is what one has without timewheel;
- native: the same topic kind through timewheel's producer and consumer: a lead, and an exact hold;
- tiered: through two tiers and the relay that the consumer embeds.

Goal: p99 at most 20 ms, none early, for both of ours.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pulsar

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.errors import TimewheelError
from timewheel.core.plan import Native, Plan, Scheme, Tiered
from timewheel.ops.admin import AdminClient
from timewheel.ops.provision import ensure
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import LocalPulsar

SEED = 7
GOAL_P99_MS = 20
TIMERS_PER_S = 200
FIRST_DUE_MS = 8_000
"""After everything is sent, and beyond every lead; the tiers below hold for part of it."""
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One way's result; lateness by the handler's own reading of the machine's clock, in milliseconds."""

    way: str
    timers: int
    early: int
    p50_ms: int
    p99_ms: int
    max_ms: int

    @property
    def good(self) -> bool:
        return self.early == 0 and self.p99_ms <= GOAL_P99_MS


class Clocked:
    """Notes how late each timer was when it got here."""

    def __init__(self, timers: int) -> None:
        self._late_ms: list[int] = []
        self._timers = timers
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def note(self, due_ms: int) -> None:
        late_ms = now_ms() - due_ms
        with self._lock:
            self._late_ms.append(late_ms)
            if len(self._late_ms) == self._timers:
                self.complete.set()

    def sent(self, error: TimewheelError | None, timer: Timer) -> None:
        if error is not None:
            print(f"{timer.id} was not sent: {error}")  # it will be missed

    def result(self, way: str) -> Lateness:
        if not self.complete.wait(PATIENCE_S):
            raise RuntimeError(f"{way}: only {len(self._late_ms)} of {self._timers} timers came")
        ordered = sorted(self._late_ms)
        return Lateness(
            way=way,
            timers=len(ordered),
            early=sum(late_ms < 0 for late_ms in ordered),
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[len(ordered) * 99 // 100],
            max_ms=ordered[-1],
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def due_times_ms(timers: int) -> list[int]:
    """Poisson arrivals from `FIRST_DUE_MS` after now on, in random order of sending."""
    rng = random.Random(SEED)
    at_ms = float(now_ms() + FIRST_DUE_MS)
    times = []
    for _ in range(timers):
        at_ms += rng.expovariate(TIMERS_PER_S / 1000)
        times.append(int(at_ms))
    rng.shuffle(times)
    return times


def raw(client: Any, admin: AdminClient, timers: int) -> Lateness:
    """Plain delayed delivery."""
    plan = provisioned(admin, "raw", Native())
    consumer = client.subscribe(plan.due_topic, "bench", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(plan.due_topic, block_if_queue_full=True)
    clocked = Clocked(timers)
    for due_ms in due_times_ms(timers):
        producer.send_async(b"", lambda *_: None, properties={"due": str(due_ms)}, deliver_at=due_ms)
    producer.flush()
    while not clocked.complete.is_set():
        message = consumer.receive(timeout_millis=int(PATIENCE_S * 1000))
        clocked.note(int(message.properties()["due"]))
        consumer.acknowledge(message)
    producer.close()
    consumer.close()
    return clocked.result("raw")


def ours(way: str, scheme: Scheme) -> Callable[[Any, AdminClient, int], Lateness]:
    def measured(client: Any, admin: AdminClient, timers: int) -> Lateness:
        plan = provisioned(admin, way, scheme)
        clocked = Clocked(timers)

        def handle(message: DelayedMessage) -> None:
            assert message.due_at is not None
            clocked.note(round(message.due_at.timestamp() * 1000))
            if clocked.complete.is_set():
                consumer.stop()

        with DelayedConsumer(client, plan, "bench") as consumer:
            with DelayedProducer(client, plan) as producer:
                for due_ms in due_times_ms(timers):
                    producer.send_async(b"", clocked.sent, deliver_at=due_ms)
            consumer.run(handle, workers=2)
        return clocked.result(way)

    return measured


def provisioned(admin: AdminClient, way: str, scheme: Scheme) -> Plan:
    plan = Plan(
        due_topic=f"persistent://public/default/bench-{way}",
        subscriptions=("bench",),
        scheme=scheme,
        max_delay_ms=300_000,
        guard_ms=500,
    )
    ensure(admin, plan, now_ms=now_ms())
    return plan


WAYS: tuple[Callable[[Any, AdminClient, int], Lateness], ...] = (
    raw,
    ours("native", Native()),
    ours("tiered", Tiered(window_ms=3_000, tiers_ms=(3_000, 5_000))),
)


def main(quick: bool = False) -> list[Lateness]:
    """Measure all ways and print a table; quick: fewer timers."""
    timers = 1_000 if quick else 6_000
    results = []
    with LocalPulsar() as broker, AdminClient(broker.admin_url) as admin:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        print(f"lateness at the handler, ms; {timers} timers at {TIMERS_PER_S}/s, Pulsar {broker.version}")
        print(f"{'way':8} {'p50':>6} {'p99':>6} {'max':>6} {'early':>6}")
        for way in WAYS:
            result = way(client, admin, timers)
            results.append(result)
            print(f"{result.way:8} {result.p50_ms:6} {result.p99_ms:6} {result.max_ms:6} {result.early:6}", flush=True)
        client.close()
    met = all(result.good for result in results if result.way != "raw")
    print(f"goal (ours: p99 at most {GOAL_P99_MS} ms, none early): {'met' if met else 'MISSED'}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer timers")
    main(parser.parse_args().quick)
