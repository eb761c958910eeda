"""How many entries does a timer cost?

A thousand timers a second go through tiers of 20 s, 4 s and 2 s (the 5 d, 1 d and 12 h of the usual plan, scaled), with
even delays of up to 60 s and a relay that waits 1 s for hops to go together. The broker's own counters tell how many
entries that wrote in all topics. The planner is given the send and due times alone. A send of a busy producer is
batched too, which the planner leaves out: what sends wrote is taken off both. Batches wait for 10 ms, the client's
default, and then for 25 ms.

Goals: at most 1.10 entries a timer where batches wait for 25 ms, and the planner within 5 % of the entries of hops.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, provisioned, service
from timewheel.broker.admin import AdminClient
from timewheel.core import BrokerProfile, Envelope, Hold, Plan, Router, Tiered
from timewheel.core.names import partition_topic
from timewheel.core.topology import topology
from timewheel.relay import Relay
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.summary.cells import Cells
from timewheel.testing import Broker, eventually

RATE, SECONDS, QUICK_SECONDS = 1_000, 60, 10
LONGEST_MS = 60_000
TIERS = Tiered(window_ms=2_000, tiers_ms=(2_000, 4_000, 20_000))
GUARD_MS = 10_000
GOAL_PER_TIMER, GOAL_OFF = 1.10, 0.05
DEFAULT_MS, LONGER_MS = 10, 25  # the producers' `batching_max_publish_delay_ms`
PAYLOAD = bytes(range(200))
TIMEOUT_S = 120.0


class Sender:
    """Sends timers as producers do, and counts the entries that they came to stand in."""

    def __init__(self, client: Any, plan: Plan, wait_ms: int) -> None:
        self._client = client
        self._wait_ms = wait_ms
        self._router = Router(plan)
        self._producers: dict[str, Any] = {}
        self._stored = threading.Semaphore(0)
        self.entries: set[tuple[int, int]] = set()
        self.sent_ms: list[int] = []
        self.due_ms: list[int] = []

    def send(self, due_ms: int) -> None:
        at_ms = now_ms()
        route = self._router.route(due_ms, at_ms)
        if route.topic not in self._producers:
            self._producers[route.topic] = self._client.create_producer(
                partition_topic(route.topic, 0),
                # As the SDK does it. In one producer delayed messages would overtake those that wait for their batch,
                # and these would be dropped as seen before (broker-facts: delayed-never-batched).
                batching_enabled=isinstance(route, Hold),
                batching_max_publish_delay_ms=self._wait_ms,
                block_if_queue_full=True,
            )
        self._producers[route.topic].send_async(
            PAYLOAD,
            self._on_stored,
            properties=Envelope(f"{len(self.sent_ms):032x}", due_ms, at_ms).properties(),
            deliver_at=route.deliver_at_ms or None,
        )
        self.sent_ms.append(at_ms)
        self.due_ms.append(max(due_ms, at_ms))

    def _on_stored(self, _result: Any, message_id: Any) -> None:
        self.entries.add((message_id.ledger_id(), message_id.entry_id()))
        self._stored.release()

    def close(self) -> None:
        for _ in self.sent_ms:
            self._stored.acquire()
        for producer in self._producers.values():
            producer.close()


def play(client: Any, plan: Plan, seconds: int, wait_ms: int) -> Sender:
    """The traffic, until the last timer is in the due topic."""
    delays = np.random.default_rng(7).integers(0, LONGEST_MS, RATE * seconds)
    sender = Sender(client, plan, wait_ms)
    with Relay(client, plan) as relay:
        # A relay that begins makes sure of where its topics begin, which takes seconds: longer than this plan's guard.
        for tier_ms in TIERS.tiers_ms:
            sender.send(now_ms() + tier_ms + GUARD_MS + 500)
        eventually(lambda: relay.status().total("forwarded") >= len(TIERS.tiers_ms), TIMEOUT_S, poll=0.2)
        began_s = time.monotonic()
        for number, delay_ms in enumerate(delays.tolist()):
            behind_s = began_s + number / RATE - time.monotonic()
            if behind_s > 0.005:
                time.sleep(behind_s)
            sender.send(now_ms() + delay_ms)
        sender.close()
        last_ms = max(sender.due_ms)

        def is_through() -> bool:
            return now_ms() > last_ms and not any(one.in_flight for one in relay.status().partitions)

        eventually(is_through, TIMEOUT_S, poll=0.2)
        if late := relay.status().total("late"):
            raise RuntimeError(f"{late} hops were late: another lane was measured")
    return sender


def compare(broker: Broker, seconds: int, wait_ms: int) -> list[Result]:
    with connected(broker) as client, AdminClient(broker.admin_url) as admin:
        plan = provisioned(broker, "entries", TIERS, guard_ms=GUARD_MS, max_delay_ms=2 * LONGEST_MS)
        sender = play(client, plan, seconds, wait_ms)
        written = sum(
            admin.topics.internal_stats(partition_topic(topic.name, 0)).entries_added
            for topic in topology(plan, now_ms()).topics
        )
    timers, sends = len(sender.sent_ms), len(sender.entries)
    cells = Cells.of_timers(np.array(sender.sent_ms), np.array(sender.due_ms), np.full(timers, len(PAYLOAD)))
    told = evaluate(plan, cells, BrokerProfile.named("4.0")).written_entries - timers
    hops, per_timer = written - sends, written / timers
    off = told / hops - 1
    has_goal = wait_ms == LONGER_MS
    return [
        Result(
            question="entries",
            subject=f"{timers:,} timers, {RATE:,} a second, batches of {wait_ms} ms",
            figures={"of sends": sends / timers, "of hops": hops / timers, "a timer": per_timer},
            goal=f"at most {GOAL_PER_TIMER} a timer" if has_goal else "",
            met=per_timer <= GOAL_PER_TIMER if has_goal else None,
        ),
        Result(
            question="entries",
            subject=f"the planner, beside batches of {wait_ms} ms",
            figures={"of hops": told / timers, "off": off},
            goal=f"within {GOAL_OFF:.0%} of the broker's count",
            met=abs(off) <= GOAL_OFF,
        ),
    ]


def main(quick: bool = False) -> list[Result]:
    seconds = QUICK_SECONDS if quick else SECONDS
    with service() as broker:
        return [row for wait_ms in (DEFAULT_MS, LONGER_MS) for row in compare(broker, seconds, wait_ms)]
