"""How fast is a backlog handled, next to the raw client and to one worker?

One consumer handles a backlog of timers that are all due. A loop that receives and acknowledges is compared with the
raw client's. A handler that does nothing is compared with that of `DelayedConsumer` with one worker and a plain
function: more workers share one Python interpreter.

Goals: a loop at least 0.68 of raw; `AsyncDelayedConsumer` on one loop 0.8 of one worker; an empty `Middleware`,
and a `RetryPolicy` that nobody needs, at least 0.95.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pulsar

from benchmarks import turns
from benchmarks.result import Result
from benchmarks.service import Address, connected, provisioned, service
from benchmarks.turns import Pace, Watch, alone, compared, in_turns
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer, DelayedMessage, Middleware, RetryPolicy
from timewheel.core import Plan
from timewheel.producers import DelayedProducer

SHOWN = frozenset(("of one worker", *turns.SHOWN))
HIDDEN = ("async def",)
ROUNDS = 5
QUEUE = 5_000
PATIENCE_S = 120.0

Way = Callable[[Any, Plan, int], Pace]


class Countdown:
    """Begins to measure when the first of so many was handled, and stops the consumer at the last."""

    def __init__(self, timers: int, stop: Callable[[], None]) -> None:
        self._left = self._timers = timers
        self._stop = stop
        self._watch: Watch | None = None
        self._pace: Pace | None = None

    def __call__(self) -> None:
        """One is handled; in one thread."""
        if self._watch is None:
            self._watch = Watch()
        self._left -= 1
        if not self._left:
            self._pace = self._watch.pace(self._timers)
            self._stop()

    @property
    def pace(self) -> Pace:
        if self._pace is None:
            raise RuntimeError(f"{self._left} of {self._timers} timers did not come")
        return self._pace


def received(receive: Callable[[], Any], acknowledge: Callable[[Any], None], timers: int) -> Pace:
    """Drain a backlog by a loop of the caller's own."""
    count = Countdown(timers, lambda: None)
    for _ in range(timers):
        acknowledge(receive())
        count()
    return count.pace


def raw_loop(client: Any, plan: Plan, timers: int) -> Pace:
    consumer = client.subscribe(
        plan.due_topic, "bench", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=QUEUE
    )
    return received(consumer.receive, consumer.acknowledge, timers)


def our_loop(client: Any, plan: Plan, timers: int) -> Pace:
    with DelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE) as consumer:
        return received(consumer.receive, consumer.acknowledge, timers)


def on_threads(workers: int = 1, **options: Any) -> Way:

    def play(client: Any, plan: Plan, timers: int) -> Pace:
        with DelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE, **options) as consumer:
            count = Countdown(timers, consumer.stop)
            consumer.run(lambda _: count(), workers=workers)
        return count.pace

    return play


def coroutines_of_threads(client: Any, plan: Plan, timers: int) -> Pace:
    """An ``async def`` under `DelayedConsumer`: a worker waits for each."""
    with DelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE) as consumer:
        count = Countdown(timers, consumer.stop)

        async def handle(_: DelayedMessage) -> None:
            count()

        consumer.run(handle, workers=8)
    return count.pace


def on_a_loop(client: Any, plan: Plan, timers: int) -> Pace:

    async def play() -> Pace:
        async with AsyncDelayedConsumer(client, plan, "bench", receiver_queue_size=QUEUE) as consumer:
            count = Countdown(timers, consumer.stop)

            async def handle(_: DelayedMessage) -> None:
                count()

            async with asyncio.timeout(PATIENCE_S):
                await consumer.run(handle, concurrency=100)
        return count.pace

    return asyncio.run(play())


WORKER, RAW, LOOP = "DelayedConsumer, 1 worker", "raw", "DelayedConsumer.receive"
WAYS: dict[str, Way] = {
    RAW: raw_loop,
    LOOP: our_loop,
    WORKER: on_threads(),
    "DelayedConsumer, 8 workers": on_threads(8),
    "DelayedConsumer, 8 workers, async def": coroutines_of_threads,
    "AsyncDelayedConsumer": on_a_loop,
    "1 worker, an empty Middleware": on_threads(middleware=[Middleware()]),
    "1 worker, a RetryPolicy": on_threads(retry=RetryPolicy()),
}
GOALS = {
    LOOP: 0.68,
    "AsyncDelayedConsumer": 0.8,
    "1 worker, an empty Middleware": 0.95,
    "1 worker, a RetryPolicy": 0.95,
}
"""Of the raw client's loop, or of one worker."""


def fill(client: Any, plan: Plan, timers: int) -> None:
    """Send a backlog of timers that are due at once."""
    with DelayedProducer(client, plan) as producer:
        for _ in range(timers):
            producer.send_async(b"x" * 100, lambda *_: None)
        producer.flush()


def play(address: Address, name: str, timers: int) -> Pace:
    """One round, in this process."""
    with connected(address) as client:
        plan = provisioned(address, "handlers", retry="RetryPolicy" in name)
        fill(client, plan, timers)
        return WAYS[name](client, plan, timers)


def main(quick: bool = False) -> list[Result]:
    timers, rounds = (4_000, 1) if quick else (40_000, ROUNDS)
    with service() as broker:
        found = in_turns({name: partial(alone, play, Address.of(broker), name, timers) for name in WAYS}, rounds)
    raw, worker = found.pop(RAW), found.pop(WORKER)
    loop = compared("a loop of receive and acknowledge", LOOP, found.pop(LOOP), raw, goal=GOALS[LOOP])
    return [loop] + [
        compared("run", name, paces, worker, rival="one worker", goal=GOALS.get(name)) for name, paces in found.items()
    ]
