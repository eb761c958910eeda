"""What do more relay processes bring?

Timers wait in a tier of 1, 8 and 64 partitions, all with the same release time. Relays of 1, 2 and 4 processes
(`timewheel relay run --processes`) are ready before it, and from then on move them to the next tier, in groups. As many
processes of the raw client, with a thread for each partition, batch in the same way: what the broker can take. Told is
how many a second until the last is acknowledged, and who took how many cores meanwhile. A process works on one core;
a partition is moved by one process. What more of them bring depends on how many cores the broker leaves them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil
import pulsar

from benchmarks.relay import BATCHING
from benchmarks.result import Result
from benchmarks.service import Address, connected, cpu_s, now_ms, provisioned, running_relays, service
from timewheel.broker.admin import AdminClient
from timewheel.core import DAY_MS, Envelope, Plan, Tiered
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_topic
from timewheel.core.topology import topology
from timewheel.relay.driver.session import RELAY_HELD_ENTRIES
from timewheel.testing import Broker, LocalPulsar, eventually

SHOWN = frozenset(("timers/s", "of one process", "of raw"))
TIERS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
TIMERS, QUICK_TIMERS = 192_000, 8_000
PARTITIONS, QUICK_PARTITIONS = (1, 8, 64), (1, 2)
PROCESSES, QUICK_PROCESSES = (1, 2, 4), (1, 2)
PAYLOAD = bytes(200)
READY_MS = 40_000  # time to fill the tier and to start the relays
TIMEOUT_MS = 300_000
ACK_EVERY = 100


def fill(client: Any, topic: str, timers: int, release_ms: int) -> None:
    """Put timers into a partition that leave it for the next tier at ``release_ms``."""
    producer = client.create_producer(topic, batching_enabled=True, max_pending_messages=0)
    entered_ms = release_ms - max(TIERS.tiers_ms)
    for number in range(timers):
        properties = Envelope(f"t{number}", release_ms + 3 * DAY_MS, entered_ms).properties()
        producer.send_async(PAYLOAD, lambda *_: None, properties=properties)
    producer.flush()
    producer.close()


def forward(address: Address, tier: str, destination: str, partitions: Sequence[int], count: int, from_ms: int) -> None:
    """Forward so many messages of each partition from ``from_ms`` on, by the raw client on a thread for each."""
    with connected(address) as client, ThreadPoolExecutor(len(partitions)) as pool:

        def drain(partition: int) -> None:
            consumer = client.subscribe(
                partition_topic(tier, partition), RELAY_SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Failover,
                initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=RELAY_HELD_ENTRIES,
            )  # fmt: skip
            producer = client.create_producer(
                partition_topic(destination, partition), block_if_queue_full=True, **BATCHING
            )
            time.sleep(max(from_ms - now_ms(), 0) / 1000)
            for left in reversed(range(count)):
                message = consumer.receive(TIMEOUT_MS)
                producer.send_async(message.data(), lambda *_: None, properties=message.properties())
                if not left:
                    producer.flush()
                if not left % ACK_EVERY:
                    consumer.acknowledge_cumulative(message)

        list(pool.map(drain, partitions))


@contextmanager
def raw_loops(broker: Broker, plan: Plan, processes: int, count: int, from_ms: int) -> Iterator[list[psutil.Process]]:
    partitions = plan.partitions
    tiers = sorted(topology(plan, now_ms()).holding, key=lambda topic: topic.step.stay_ms)
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(
            target=forward,
            args=(
                Address.of(broker),
                tiers[-1].name,
                tiers[0].name,
                range(first, partitions, processes),
                count,
                from_ms,
            ),
        )
        for first in range(min(processes, partitions))
    ]
    for child in children:
        child.start()
    try:
        yield [psutil.Process(child.pid) for child in children]
    finally:
        for child in children:
            child.terminate()
            child.join()


def play(
    broker: Broker, client: Any, admin: AdminClient, plan: Plan, processes: int, timers: int, *, raw: bool
) -> dict[str, float]:
    """Drain a tier; the rate, and who took how many cores for it."""
    tier = max(topology(plan, now_ms()).holding, key=lambda topic: topic.step.stay_ms).name
    count = timers // plan.partitions
    release_ms = now_ms() + READY_MS
    for partition in range(plan.partitions):
        fill(client, partition_topic(tier, partition), count, release_ms)
    brokers = [psutil.Process(broker.pid)] if isinstance(broker, LocalPulsar) and broker.pid else []

    def backlog() -> int:
        total = admin.topics.partitioned_stats(tier).total
        return total.subscriptions[RELAY_SUBSCRIPTION].backlog

    opened = (
        raw_loops(broker, plan, processes, count, release_ms)
        if raw
        else running_relays(broker, plan, "--processes", str(processes))
    )
    with opened as movers:
        if now_ms() >= release_ms:
            raise RuntimeError("they were ready too late: this machine needs a longer READY_MS")
        time.sleep((release_ms - now_ms()) / 1000)
        movers_s, brokers_s = cpu_s(movers), cpu_s(brokers)
        eventually(lambda: backlog() == 0, TIMEOUT_MS / 1000, poll=0.1)
        took_s = (now_ms() - release_ms) / 1000
        return {
            "timers/s": timers / took_s,
            "cores": (cpu_s(movers) - movers_s) / took_s,
            "cores of the broker": (cpu_s(brokers) - brokers_s) / took_s,
        }


def main(quick: bool = False) -> list[Result]:
    timers, found = QUICK_TIMERS if quick else TIMERS, []
    with service() as broker, connected(broker) as client, AdminClient(broker.admin_url) as admin:
        for partitions in QUICK_PARTITIONS if quick else PARTITIONS:
            one = 0.0
            for processes in QUICK_PROCESSES if quick else PROCESSES:
                figures, raw = (
                    play(
                        broker,
                        client,
                        admin,
                        provisioned(broker, "processes", TIERS, partitions=partitions, max_delay_ms=60 * DAY_MS),
                        processes,
                        timers,
                        raw=is_raw,
                    )
                    for is_raw in (False, True)
                )
                one = one or figures["timers/s"]
                figures |= {
                    "of one process": figures["timers/s"] / one,
                    "of raw": figures["timers/s"] / raw["timers/s"],
                    **{f"{name} with raw": value for name, value in raw.items()},
                }
                subject = f"{partitions} partitions, {processes} processes"
                found.append(Result(question="processes", subject=subject, figures=figures))
    return found
