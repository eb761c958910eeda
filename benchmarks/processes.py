"""What do more relay processes bring?

Timers wait in a tier of eight partitions, all with the same release time. Relays of 1, 2 and 4 processes
(`timewheel relay run --processes`) are ready before it, and from then on move them to the next tier, in groups. Told is
how many a second until the last is acknowledged, and who took how much of a core meanwhile. One process works on one
core; what more of them bring depends on how many cores the broker leaves them.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import psutil

from benchmarks.result import Result
from benchmarks.service import connected, cpu_s, now_ms, provisioned, running_relays, service
from timewheel.broker.admin import AdminClient
from timewheel.core import DAY_MS, Envelope, Tiered
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_topic
from timewheel.core.topology import topology
from timewheel.testing import Broker, LocalPulsar, eventually

SHOWN = frozenset(("timers/s", "of one process"))
TIERS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
PARTITIONS = 8
TIMERS, QUICK_TIMERS = 400_000, 8_000
PROCESSES, QUICK_PROCESSES = (1, 2, 4), (1, 2)
PAYLOAD = bytes(200)
READY_MS = 40_000  # time to fill the tier and to start the relays
TIMEOUT_S = 300.0


class Cpu(NamedTuple):
    """CPU seconds of the relays and of the broker."""

    relays_s: float
    broker_s: float


def fill(client: Any, topic: str, timers: int, release_ms: int) -> None:
    """Put timers into a partition that leave it for the next tier at ``release_ms``."""
    producer = client.create_producer(topic, batching_enabled=True, max_pending_messages=0)
    entered_ms = release_ms - max(TIERS.tiers_ms)
    for number in range(timers):
        properties = Envelope(f"t{number}", release_ms + 3 * DAY_MS, entered_ms).properties()
        producer.send_async(PAYLOAD, lambda *_: None, properties=properties)
    producer.flush()
    producer.close()


def play(broker: Broker, client: Any, admin: AdminClient, processes: int, timers: int) -> tuple[float, Cpu]:
    plan = provisioned(broker, f"processes-{processes}", TIERS, partitions=PARTITIONS, max_delay_ms=60 * DAY_MS)
    tier = max(topology(plan, now_ms()).holding, key=lambda topic: topic.step.stay_ms).name
    release_ms = now_ms() + READY_MS
    for partition in range(PARTITIONS):
        fill(client, partition_topic(tier, partition), timers // PARTITIONS, release_ms)
    brokers = [psutil.Process(broker.pid)] if isinstance(broker, LocalPulsar) and broker.pid else []

    def backlog() -> int:
        total = admin.topics.partitioned_stats(tier).total
        return total.subscriptions[RELAY_SUBSCRIPTION].backlog

    with running_relays(broker, plan, "--processes", str(processes)) as relays:
        if now_ms() >= release_ms:
            raise RuntimeError("the relays were ready too late: this machine needs a longer READY_MS")
        time.sleep((release_ms - now_ms()) / 1000)
        before = Cpu(cpu_s(relays), cpu_s(brokers))
        eventually(lambda: backlog() == 0, TIMEOUT_S, poll=0.1)
        took_s = (now_ms() - release_ms) / 1000
        return took_s, Cpu(cpu_s(relays) - before.relays_s, cpu_s(brokers) - before.broker_s)


def main(quick: bool = False) -> list[Result]:
    timers, found = QUICK_TIMERS if quick else TIMERS, []
    one_s = 0.0
    with service() as broker, connected(broker) as client, AdminClient(broker.admin_url) as admin:
        for processes in QUICK_PROCESSES if quick else PROCESSES:
            took_s, cpu = play(broker, client, admin, processes, timers)
            one_s = one_s or took_s
            figures = {
                "timers/s": timers / took_s,
                "of one process": one_s / took_s,
                "cores of the relays": cpu.relays_s / took_s,
                "cores of the broker": cpu.broker_s / took_s,
            }
            found.append(Result(question="processes", subject=f"{processes}", figures=figures))
    return found
