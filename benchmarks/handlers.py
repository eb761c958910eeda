"""How fast is a backlog handled, next to one worker?

One consumer handles a backlog of timers that are all due, with a handler that does nothing. `DelayedConsumer` with one
worker and a plain function is what the others are compared with: more workers share one Python interpreter. The ways
take turns; medians of their rates.

Goals: `AsyncDelayedConsumer` on one loop at least 0.8 of that; an empty `Middleware`, and a `RetryPolicy` that nobody
needs, at least 0.95.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.result import Result, medians_in_turns, rate_rows
from benchmarks.service import connected, provisioned, service
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer, DelayedMessage, Middleware, RetryPolicy
from timewheel.core import Plan
from timewheel.producers import DelayedProducer

SHOWN = frozenset(("ratio",))
ROUNDS = 5
QUEUE = 5_000
GOAL_ASYNC = 0.8
GOAL_SEAM = 0.95
PATIENCE_S = 120.0

Way = Callable[[Any, Plan, int], float]


class Countdown:
    """Notes when the first of so many was handled, and stops the consumer at the last."""

    def __init__(self, timers: int, stop: Callable[[], None]) -> None:
        self._left = self._timers = timers
        self._stop = stop
        self._began_s = self._ended_s = 0.0

    def __call__(self) -> None:
        """One is handled; in one thread."""
        if self._left == self._timers:
            self._began_s = time.perf_counter()
        self._left -= 1
        if not self._left:
            self._ended_s = time.perf_counter()
            self._stop()

    @property
    def rate(self) -> float:
        if self._left:
            raise RuntimeError(f"{self._left} of {self._timers} timers did not come")
        return self._timers / (self._ended_s - self._began_s)


def on_threads(workers: int = 1, **options: Any) -> Way:

    def play(client: Any, plan: Plan, timers: int) -> float:
        with DelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE, **options) as consumer:
            count = Countdown(timers, consumer.stop)
            consumer.run(lambda _: count(), workers=workers)
        return count.rate

    return play


def coroutines_of_threads(client: Any, plan: Plan, timers: int) -> float:
    """An ``async def`` under `DelayedConsumer`: a worker waits for each."""
    with DelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE) as consumer:
        count = Countdown(timers, consumer.stop)

        async def handle(_: DelayedMessage) -> None:
            count()

        consumer.run(handle, workers=8)
    return count.rate


def on_a_loop(client: Any, plan: Plan, timers: int) -> float:

    async def play() -> float:
        async with AsyncDelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE) as consumer:
            count = Countdown(timers, consumer.stop)

            async def handle(_: DelayedMessage) -> None:
                count()

            async with asyncio.timeout(PATIENCE_S):
                await consumer.run(handle, concurrency=100)
        return count.rate

    return asyncio.run(play())


WAYS: dict[str, tuple[Way, float | None]] = {
    "DelayedConsumer, 1 worker": (on_threads(), None),
    "DelayedConsumer, 8 workers": (on_threads(8), None),
    "DelayedConsumer, 8 workers, async def": (coroutines_of_threads, None),
    "AsyncDelayedConsumer": (on_a_loop, GOAL_ASYNC),
    "1 worker, an empty Middleware": (on_threads(middleware=[Middleware()]), GOAL_SEAM),
    "1 worker, a RetryPolicy": (on_threads(retry=RetryPolicy()), GOAL_SEAM),
}


def main(quick: bool = False) -> list[Result]:
    timers, rounds = (4_000, 1) if quick else (40_000, ROUNDS)
    with service() as broker, connected(broker) as client:

        def rate(name: str) -> float:
            plan = provisioned(broker, "handlers", retry="RetryPolicy" in name)
            with DelayedProducer(client, plan) as producer:
                for _ in range(timers):
                    producer.send_async(b"x" * 100, lambda *_: None)
                producer.flush()
            return WAYS[name][0](client, plan, timers)

        rates = medians_in_turns({name: partial(rate, name) for name in WAYS}, rounds)
    goals = {name: goal for name, (_, goal) in WAYS.items() if goal is not None}
    return rate_rows("handlers", rates, goals, rounds)
