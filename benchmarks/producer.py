"""What does a send cost, next to the client's `send_async`?

The same broker, the same kind of topic, batching, payload of 200 bytes and number of properties (two of the user, two
of the envelope, which the raw client is given as well): into a tier that a relay holds (no delay, batched, LZ4), and
into a due topic (`deliver_at`, never batched). Raw and ours take turns in one run, either first in every other round;
each pair of neighbours gives one ratio, and the median of all is what counts.

Goals: at least 0.9 of the messages per second, and at most 10 us more of the process's CPU per message.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pulsar

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, provisioned, service
from timewheel.core import DAY_MS, Envelope, Plan, Tiered
from timewheel.core.ids import TimerIds
from timewheel.core.names import partition_topic
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import Broker

SHOWN = frozenset(("ours, msg/s", "ratio", "more CPU, us"))
GOAL_RATIO = 0.9
GOAL_MORE_CPU_US = 10.0
DELAY_MS = {"tier": 17 * DAY_MS, "due": DAY_MS // 4}
PAYLOAD = bytes(range(200))
MAX_PENDING = 1_000
TIERED = Tiered(window_ms=DAY_MS // 2, tiers_ms=(DAY_MS // 2, DAY_MS, 5 * DAY_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One round: messages per second, and CPU time of the whole process per message."""

    per_s: float
    cpu_us: float


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


def raw_way(client: Any, topic: str, where: str) -> Way:
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


def pace(way: Way, delay_ms: int, messages: int) -> Pace:
    countdown = Countdown(messages + 1)
    with way(countdown) as send:
        send(delay_ms)  # opens our producer: that is not what is measured
        while countdown.missing > messages:
            time.sleep(0.01)
        began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        for _ in range(messages):
            send(delay_ms)
        countdown.done.wait()
        took_ns, took_cpu_ns = time.monotonic_ns() - began_ns, time.process_time_ns() - began_cpu_ns
    return Pace(per_s=messages / took_ns * 1e9, cpu_us=took_cpu_ns / 1_000 / messages)


def compare(client: Any, broker: Broker, where: str, *, messages: int, pairs: int) -> Result:
    plan = provisioned(broker, f"producer-{where}", TIERED)
    raw_plan = provisioned(broker, f"producer-{where}-raw", TIERED)
    raw_topic = raw_plan.due_topic + (".tw.tier-5d" if where == "tier" else "")
    raw, ours = raw_way(client, raw_topic, where), our_way(client, plan)
    found: list[tuple[Pace, Pace]] = []
    for turn in range(pairs):
        ways = (ours, raw) if turn % 2 else (raw, ours)
        took = {way: pace(way, DELAY_MS[where], messages) for way in ways}
        found.append((took[raw], took[ours]))
    ratio = statistics.median(ours.per_s / raw.per_s for raw, ours in found)
    more_cpu_us = statistics.median(ours.cpu_us - raw.cpu_us for raw, ours in found)
    return Result(
        question="a send against the client's own",
        subject="into a tier, batched" if where == "tier" else "into a due topic, deliver_at",
        figures={
            "raw, msg/s": int(statistics.median(raw.per_s for raw, _ in found)),
            "ours, msg/s": int(statistics.median(ours.per_s for _, ours in found)),
            "ratio": ratio,
            "raw CPU, us": statistics.median(raw.cpu_us for raw, _ in found),
            "ours CPU, us": statistics.median(ours.cpu_us for _, ours in found),
            "more CPU, us": more_cpu_us,
            "pairs": pairs,
        },
        goal=f"ratio at least {GOAL_RATIO}, at most {GOAL_MORE_CPU_US:.0f} us more",
        met=ratio >= GOAL_RATIO and more_cpu_us <= GOAL_MORE_CPU_US,
    )


def main(quick: bool = False) -> list[Result]:
    messages, pairs = (4_000, 4) if quick else (20_000, 12)
    with service() as broker, connected(broker) as client:
        return [compare(client, broker, where, messages=messages, pairs=pairs) for where in ("tier", "due")]
