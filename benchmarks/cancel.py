"""What do cancels cost?

Three questions, on one broker:

- **Handling**: a backlog of timers that are all due is handled by one consumer, under a plan without ``[cancel]``, with
  it, and with it and many live cancellations of other timers. The three take turns; medians of their rates.
- **Lateness**: timers of a seeded Poisson stream, every other one cancelled 5 to 150 ms before it is due, so that the
  log is never quiet. How late are the others, and was any handed out whose cancel was certain?
- **Start**: a log of live cancellations in packs, as a compactor leaves it, read by a consumer that starts.

Goals: at least 0.9 of the rate with 100,000 live cancellations; p99 of the lateness at most 20 ms, and none handed out
that was certain; a million read within 5 s.
"""

from __future__ import annotations

import random
import resource
import threading
import time
from functools import partial
from typing import Any

from benchmarks import turns
from benchmarks.handlers import fill, on_threads
from benchmarks.lateness import Clocked, due_times_ms
from benchmarks.result import Result
from benchmarks.service import Address, connected, now_ms, provisioned, service
from benchmarks.turns import Pace, alone, compared, in_turns
from timewheel.client.cancellation_log import PACK_PROPERTY, CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Answer, Cancel, Cancellation, CancelResult, Plan, SystemClock
from timewheel.core.cancellations import packs
from timewheel.core.durations import DAY_MS
from timewheel.core.names import Names, partition_topic
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.relay.compactor import PENDING_PACKS
from timewheel.testing import Broker

SHOWN = frozenset((*turns.SHOWN, "of that without", "s", "memory, MB", "p99 ms", "early", "certain yet handed"))
SEED = 7
ROUNDS = 5
GOAL_RATE = 0.9
GOAL_P99_MS = 20
GOAL_START_S = 5
CLOSE_MS = (5, 150)
PATIENCE_S = 120
MB = 1_000_000


def cancellation_others(client: Any, plan: Plan, count: int) -> None:
    """Fill a log with live cancellations, in packs, of timers that are not sent."""
    producer = client.create_producer(
        partition_topic(Names(plan).cancellations, 0),
        batching_enabled=False,
        block_if_queue_full=True,
        max_pending_messages=PENDING_PACKS,
    )
    at_ms = now_ms()
    live = (Cancellation("timer", f"other-{number:09d}", at_ms * 1_000, at_ms + DAY_MS) for number in range(count))
    for pack in packs(live):
        producer.send_async(pack, lambda *_: None, properties={PACK_PROPERTY: "1 of 1"})
    producer.flush()
    producer.close()


def rate(address: Address, timers: int, cancel: Cancel | None, live: int) -> Pace:
    """One round, in this process."""
    with connected(address) as client:
        plan = provisioned(address, "cancel", cancel=cancel)
        fill(client, plan, timers)
        if live:
            cancellation_others(client, plan, live)
        return on_threads()(client, plan, timers)


def handling(address: Address, timers: int, live: int, rounds: int) -> list[Result]:
    ways: dict[str, tuple[Cancel | None, int]] = {
        "without": (None, 0),
        "with [cancel]": (Cancel(), 0),
        f"and {live:,} live cancellations": (Cancel(), live),
    }
    found = in_turns({way: partial(alone, rate, address, timers, *options) for way, options in ways.items()}, rounds)
    without = found.pop("without")
    return [
        compared("handling", way, paces, without, rival="that without", goal=GOAL_RATE) for way, paces in found.items()
    ]


class Cancelling:
    """Every other timer is cancelled shortly before it is due."""

    def __init__(self, producer: DelayedProducer) -> None:
        self.certain: set[str] = set()
        self._producer = producer
        self._random = random.Random(SEED)
        self._timers: list[tuple[int, Timer]] = []

    def sent(self, error: TimewheelError | None, timer: Timer) -> None:
        if error is not None:
            raise RuntimeError(f"{timer.id} was not sent: {error}")
        if int(timer.id) % 2:
            self._timers.append((timer.due_ms - self._random.randint(*CLOSE_MS), timer))

    def run(self) -> None:
        for at_ms, timer in sorted(self._timers):
            time.sleep(max(at_ms - now_ms(), 0) / 1_000)
            self._producer.cancel_async(timer, partial(self._reported, timer.id))

    def _reported(self, timer_id: str, _: TimewheelError | None, cancel_result: CancelResult | None) -> None:
        if cancel_result is not None and cancel_result.answer is Answer.CERTAIN:
            self.certain.add(timer_id)


def lateness(client: Any, broker: Broker, timers: int) -> Result:
    """The second question; ``timers`` are not cancelled, and as many are."""
    plan = provisioned(broker, "cancel-late", cancel=Cancel(skew_ms=0))
    clocked = Clocked(timers)
    handed: set[str] = set()

    def handle(message: DelayedMessage) -> None:
        assert message.due_at is not None
        assert message.timer_id is not None
        handed.add(message.timer_id)
        if int(message.timer_id) % 2 == 0:
            clocked.note(round(message.due_at.timestamp() * 1_000))
        if clocked.complete.is_set():
            consumer.stop()

    with DelayedConsumer(client, plan, "bench") as consumer, DelayedProducer(client, plan) as producer:
        cancelling = Cancelling(producer)
        for number, due_ms in enumerate(due_times_ms(2 * timers)):
            producer.send_async(b"", cancelling.sent, deliver_at=due_ms, timer_id=str(number))
        producer.flush()
        thread = threading.Thread(target=cancelling.run)
        thread.start()
        consumer.run(handle, workers=2)
        thread.join()
        producer.flush()
    found = clocked.result("with dense cancels", goal=True)
    broken = len(cancelling.certain & handed)
    figures = {**found.figures, "certain": len(cancelling.certain), "certain yet handed": broken}
    return Result(
        question=found.question,
        subject=found.subject,
        figures=figures,
        goal=f"{found.goal}; none handed that was certain",
        met=bool(found.met) and not broken,
    )


def start(client: Any, broker: Broker, live: int) -> Result:
    plan = provisioned(broker, "cancel-start", cancel=Cancel())
    cancellation_others(client, plan, live)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = CancellationLog(client, plan, SystemClock(), Hooks(()))
    began_s = time.perf_counter()
    log.start()
    if not log.await_answer(log.ask(), PATIENCE_S * 1_000):
        raise RuntimeError("the log was not read to its end")
    took_s = time.perf_counter() - began_s
    found = len(log.table)
    log.stop()
    if found != live:
        raise RuntimeError(f"{found} of {live} cancellations were read")
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) * 1_024 / MB
    return Result(
        question="start",
        subject=f"{live:,} live cancellations",
        figures={"s": took_s, "memory, MB": grown_mb},
        goal=f"at most {GOAL_START_S} s",
        met=took_s <= GOAL_START_S,
    )


def main(quick: bool = False) -> list[Result]:
    timers, live, many, rounds = (2_000, 10_000, 100_000, 1) if quick else (20_000, 100_000, 1_000_000, ROUNDS)
    with service() as broker, connected(broker) as client:
        # The start first: memory that was used before would be used again.
        found = [
            [start(client, broker, many)],
            handling(Address.of(broker), timers, live, rounds),
            [lateness(client, broker, 500 if quick else 3_000)],
        ]
    return [result for results in found for result in results]
