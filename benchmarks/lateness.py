"""How late does a timer reach its handler?

Alone on the machine, three ways through one broker, one after the other, with the same due times (a seeded Poisson
stream):

- raw: pulsar-client's ``deliver_at`` and a Shared consumer, which is what one has without timewheel;
- native: the same topic kind through timewheel's producer and consumer: a lead, and an exact hold;
- tiered: through two tiers and the relay that the consumer embeds.

Goal: p99 at most 20 ms, none early, for both of ours.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pulsar

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, provisioned, service
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Native, Scheme, Tiered
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import Broker

SHOWN = frozenset(("p50 ms", "p99 ms", "max ms", "early"))

Way = Callable[[Any, Broker, int], Result]

SEED = 7
GOAL_P99_MS = 20
TIMERS_PER_S = 200
FIRST_DUE_MS = 12_000  # after everything is sent, and beyond every lead; the tiers below hold for part of it
GUARD_MS = 3_000
"""All timers are sent at once here, so all hop at once: the guard is the time that a relay has for such a burst."""
PATIENCE_S = 60.0


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

    def result(self, way: str, *, goal: bool) -> Result:
        """Lateness by the handler's own reading of the machine's clock."""
        if not self.complete.wait(PATIENCE_S):
            raise RuntimeError(f"{way}: only {len(self._late_ms)} of {self._timers} timers came")
        ordered = sorted(self._late_ms)
        p99_ms, early = ordered[len(ordered) * 99 // 100], sum(late_ms < 0 for late_ms in ordered)
        return Result(
            question="lateness",
            subject=way,
            figures={
                "p50 ms": ordered[len(ordered) // 2],
                "p99 ms": p99_ms,
                "max ms": ordered[-1],
                "early": early,
                "timers": len(ordered),
            },
            goal=f"p99 at most {GOAL_P99_MS} ms, none early" if goal else "",
            met=early == 0 and p99_ms <= GOAL_P99_MS if goal else None,
        )


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


def raw(client: Any, broker: Broker, timers: int) -> Result:
    plan = provisioned(broker, "raw")
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
    return clocked.result("raw pulsar-client", goal=False)


def ours(way: str, scheme: Scheme) -> Way:
    """Through timewheel's producer and consumer, and the embedded relay where the scheme has one."""

    def measured(client: Any, broker: Broker, timers: int) -> Result:
        plan = provisioned(broker, way, scheme, max_delay_ms=300_000, guard_ms=GUARD_MS)
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
        return clocked.result(f"timewheel {way}", goal=True)

    return measured


WAYS: tuple[Way, ...] = (
    raw,
    ours("native", Native()),
    ours("tiered", Tiered(window_ms=4_000, tiers_ms=(4_000, 6_000))),
)


def main(quick: bool = False) -> list[Result]:
    timers = 1_000 if quick else 6_000
    with service() as broker, connected(broker) as client:
        return [way(client, broker, timers) for way in WAYS]
