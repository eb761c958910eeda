"""What does a relay take before its timers are due?

A process of its own (`timewheel relay run`) reads three tiers of 100 partitions, and in each of these 300 a head waits
with a few thousand behind it. Then nothing happens for half a minute.

Goals: 1 % of a core for every 100 that it reads, and no more memory than its budget and 100 MB. It has a thread for
each that it reads: they wait in the client, and what they cost is what is measured here.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.result import Result
from benchmarks.service import connected, cpu_s, now_ms, provisioned, running_relays, service
from timewheel.core import DAY_MS, Envelope, Tiered
from timewheel.core.names import partition_topic
from timewheel.core.topology import topology

SHOWN = frozenset(("% for every 100", "MB"))
TIERS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS, 20 * DAY_MS))
PARTITIONS, QUICK_PARTITIONS = 100, 4
IDLE_S, QUICK_IDLE_S = 30.0, 3.0
ENTRIES, GROUP = 4, 1_000
PAYLOAD = bytes(200)
BUDGET_MB = 512
GOAL_CPU = 1.0
GOAL_OVER_MB = 100


def fill(client: Any, topic: str) -> None:
    """Put entries of a thousand timers each into a partition; none is due within the run."""
    producer = client.create_producer(
        topic,
        batching_max_messages=GROUP,
        batching_max_allowed_size_in_bytes=1 << 22,
        batching_max_publish_delay_ms=60_000,
    )
    at_ms = now_ms()
    for number in range(ENTRIES * GROUP):
        properties = Envelope(f"t{number}", at_ms + 30 * DAY_MS, at_ms).properties()
        producer.send_async(PAYLOAD, lambda *_: None, properties=properties)
    producer.flush()
    producer.close()


def at_rest(process: psutil.Process, idle_s: float) -> float:
    """Share of a core, in percent, once what it received at its start is worked off."""

    def inspect() -> float:
        before_s, began_s = cpu_s([process]), time.monotonic()
        time.sleep(idle_s)
        return (cpu_s([process]) - before_s) / (time.monotonic() - began_s) * 100

    shares = [inspect(), inspect()]
    while shares[-1] < 0.8 * shares[-2]:
        shares.append(inspect())
    return shares[-1]


def main(quick: bool = False) -> list[Result]:
    with service() as broker, connected(broker) as client:
        plan = provisioned(
            broker, "holding", TIERS, partitions=QUICK_PARTITIONS if quick else PARTITIONS, max_delay_ms=60 * DAY_MS
        )
        read = [
            partition_topic(topic.name, number)
            for topic in topology(plan, now_ms()).holding
            for number in range(plan.partitions)
        ]
        for topic in read:
            fill(client, topic)
        with running_relays(broker, plan, "--memory-mb", str(BUDGET_MB)) as (process,):
            share = at_rest(process, QUICK_IDLE_S if quick else IDLE_S)
            rss_mb = process.memory_info().rss / (1 << 20)
            threads = process.num_threads()
    per_100 = share * 100 / len(read)
    return [
        Result(
            question="holding",
            subject=f"CPU, {len(read)} partition topics",
            figures={"% of a core": share, "% for every 100": per_100, "threads": threads},
            goal=f"at most {GOAL_CPU:.0f} % for every 100",
            met=per_100 <= GOAL_CPU,
        ),
        Result(
            question="holding",
            subject=f"memory, {len(read) * ENTRIES * GROUP:,} timers behind the heads",
            figures={"MB": rss_mb},
            goal=f"at most {BUDGET_MB} MB and {GOAL_OVER_MB}",
            met=rss_mb <= BUDGET_MB + GOAL_OVER_MB,
        ),
    ]
