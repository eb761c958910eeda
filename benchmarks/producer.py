"""What does a send cost, next to the client's `send_async`?

The same broker, the same kind of topic, batching, payload of 200 bytes and number of properties (two of the user, two
of the envelope, which the raw client is given as well): into a tier that a relay holds (no delay, batched, LZ4), and
into a due topic (`deliver_at`, never batched).

Goals: at least the client's messages per second, by no more CPU of the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pulsar

from benchmarks import turns
from benchmarks.result import Result
from benchmarks.service import Address, Reachable, connected, now_ms, provisioned, service
from benchmarks.turns import Pace, Watch, alone, compared, in_turns
from timewheel.core import DAY_MS, Envelope, Plan, Tiered
from timewheel.core.ids import TimerIds
from timewheel.core.names import partition_topic
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer

SHOWN = turns.SHOWN
GOAL_RATIO, GOAL_CPU = 1.0, 1.0
DELAY_MS = {"tier": 17 * DAY_MS, "due": DAY_MS // 4}
PAYLOAD = bytes(range(200))
MAX_PENDING = 1_000
TIERED = Tiered(window_ms=DAY_MS // 2, tiers_ms=(DAY_MS // 2, DAY_MS, 5 * DAY_MS))


class Countdown:
    """Both callbacks: count, and say when all are there."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.missing = messages
        self.done = threading.Event()

    def raw(self, result: Any, _: Any) -> None:
        self._count(result if result.value else None)

    def ours(self, error: TimewheelError | None, _: Timer) -> None:
        self._count(error)

    def _count(self, failure: object) -> None:
        if failure is not None:
            print(f"a send failed: {failure}")
        self.missing -= 1
        if not self.missing:
            self.done.set()


Send = Callable[[int], None]  # sends one message with this delay in milliseconds
Way = Callable[[Countdown], Any]  # a context in which one can send


def raw_way(client: Any, plan: Plan, where: str) -> Way:
    topic = plan.due_topic + (".tw.tier-5d" if where == "tier" else "")
    options: dict[str, Any] = {"block_if_queue_full": True, "max_pending_messages": MAX_PENDING}
    if where == "tier":
        options |= {"batching_enabled": True, "compression_type": pulsar.CompressionType.LZ4}

    @contextmanager
    def opened(countdown: Countdown) -> Iterator[Send]:
        producer = client.create_producer(partition_topic(topic, 0), **options)
        callback = countdown.raw
        # As different from each other as ours are, since that decides how well a batch compresses; made beforehand.
        ids = TimerIds(os.urandom)
        envelopes = [
            Envelope(ids.new(now_ms()), now_ms() + DELAY_MS[where], now_ms()).properties()
            for _ in range(countdown.messages)
        ]

        def send(delay_ms: int) -> None:
            due_ms = time.time_ns() // 1_000_000 + delay_ms
            producer.send_async(
                PAYLOAD,
                callback,
                properties={"tenant": "acme", "kind": "renewal", **envelopes.pop()},
                deliver_at=due_ms if where == "due" else None,
            )

        yield send
        producer.close()

    return opened


def our_way(client: Any, plan: Plan) -> Way:
    @contextmanager
    def opened(countdown: Countdown) -> Iterator[Send]:
        callback = countdown.ours
        with DelayedProducer(client, plan, max_pending=MAX_PENDING) as producer:

            def send(delay_ms: int) -> None:
                due_ms = time.time_ns() // 1_000_000 + delay_ms
                producer.send_async(
                    PAYLOAD, callback, properties={"tenant": "acme", "kind": "renewal"}, deliver_at=due_ms
                )

            yield send

    return opened


def play(address: Address, plan: Plan, way: str, where: str, messages: int) -> Pace:
    """One round of a way, in this process."""
    countdown = Countdown(messages + 1)
    delay_ms = DELAY_MS[where]
    with connected(address) as client:
        opened = our_way(client, plan) if way == "ours" else raw_way(client, plan, where)
        with opened(countdown) as send:
            send(delay_ms)  # opens our producer: that is not what is measured
            while countdown.missing > messages:
                time.sleep(0.01)
            watch = Watch()
            for _ in range(messages):
                send(delay_ms)
            countdown.done.wait()
            return watch.pace(messages)


def compare(broker: Reachable, where: str, *, messages: int, pairs: int) -> Result:
    address = Address.of(broker)
    ways = {
        way: partial(alone, play, address, provisioned(broker, f"producer-{where}", TIERED), way, where, messages)
        for way in ("raw", "ours")
    }
    found = in_turns(ways, pairs)
    subject = "into a tier, batched" if where == "tier" else "into a due topic, deliver_at"
    return compared("send", subject, found["ours"], found["raw"], goal=GOAL_RATIO, cpu_goal=GOAL_CPU)


def main(quick: bool = False) -> list[Result]:
    messages, pairs = (4_000, 4) if quick else (20_000, 12)
    with service() as broker:
        return [compare(broker, where, messages=messages, pairs=pairs) for where in ("tier", "due")]
