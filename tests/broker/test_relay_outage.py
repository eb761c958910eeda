"""Relays and consumers do not prolong the outage of a broker: they go on soon after another one serves the topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, Handled, Sender, now_ms, running
from tests.broker.relay_stage import Stage, plan_of
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.core.steps import steps
from timewheel.testing import LocalCluster, eventually
from timewheel.testing.plugin import MakeLocalCluster

pytestmark = pytest.mark.short

SESSION_TIMEOUT_S = 14.0
"""By itself the client tries 12 s and 24 s after it lost a connection; another broker serves the topics in between."""
BACK_WITHIN_S = 5.0
STAY_MS = 60_000
HOP_EVERY_MS = 200  # more often than a relay closes its idle producers
TIMERS = 300
VICTIM, SURVIVOR = "broker-2", "broker-1"


def topics_of(plan: Plan) -> tuple[str, str]:
    """The partition of the plan's only tier, and that of its due topic."""
    (tier,) = (Names(plan).of_step(step)[0] for step in steps(plan) if step.kind == "tier")
    return partition_topic(tier, 0), partition_topic(plan.due_topic, 0)


def plans(cluster: LocalCluster) -> Iterator[tuple[Plan, tuple[str, str]]]:
    """Plans with the bundles of their topics."""
    while True:
        plan = plan_of(Tiered(window_ms=STAY_MS, tiers_ms=(STAY_MS,)), max_delay_ms=3 * STAY_MS)
        tier, due = topics_of(plan)
        yield plan, (cluster.bundle(tier), cluster.bundle(due))


class Hopping:
    """A relay with a hop every `HOP_EVERY_MS`, from one topic to another."""

    def __init__(self, stage: Stage, client: object) -> None:
        self.tier, self.due = topics_of(stage.plan)
        self.stage = stage
        self._relay = stage.relay(client=client)
        begin_ms = now_ms()
        for number in range(TIMERS):
            release_ms = begin_ms + number * HOP_EVERY_MS
            stage.put(stage.tiers[0], Envelope(f"t{number}", release_ms + STAY_MS // 2, release_ms - STAY_MS))
        stage.flush()

    @property
    def hops(self) -> int:
        return self._relay.status().total("forwarded") + self._relay.status().total("late")


class Deliveries:
    """A consumer of a plan's due topic with a timer every `HOP_EVERY_MS`; the handler of the first one takes long."""

    def __init__(self, stack: ExitStack, client: Any, plan: Plan) -> None:
        self.handled = Handled()
        self.consumer = DelayedConsumer(client, plan, SUBSCRIPTION, relay=False)
        self._may_end = threading.Event()
        sender, begin_ms = Sender(client, plan), now_ms()
        for number in range(TIMERS):
            sender.send(f"own-{number}", begin_ms + number * HOP_EVERY_MS)
        sender.flush()
        stack.enter_context(running(self.consumer, self._handle))
        stack.callback(self.end_first)

    def end_first(self) -> None:
        self._may_end.set()

    def _handle(self, message: DelayedMessage) -> None:
        if message.timer_id == "own-0":
            self._may_end.wait()
        if str(message.timer_id).startswith("own"):  # hops come here, too
            self.handled(message)


def test_hops_and_deliveries_go_on_soon_after_another_broker_serves_the_topics_of_a_killed_broker(
    make_local_cluster: MakeLocalCluster, connect: Connect
) -> None:
    cluster = make_local_cluster(brokers=2, bookies=1, session_timeout_s=SESSION_TIMEOUT_S)
    found = plans(cluster)
    one, (lost, kept) = next((plan, bundles) for plan, bundles in found if len(set(bundles)) == 2)
    other = next(plan for plan, bundles in found if bundles == (kept, lost))
    with ExitStack() as stack:
        clients = [connect(cluster, operation_timeout_seconds=10) for _ in range(2)]
        from_lost, to_lost = (
            Hopping(stack.enter_context(Stage(cluster, plan)), client)
            for plan, client in zip((one, other), clients, strict=True)
        )
        cluster.move(from_lost.tier, to=VICTIM)
        cluster.move(from_lost.due, to=SURVIVOR)
        assert cluster.owner(to_lost.due) == VICTIM
        lost_topic = Deliveries(stack, connect(cluster), other)
        before = to_lost.hops
        eventually(lambda: to_lost.hops > before + 5)
        eventually(lambda: len(lost_topic.handled.times) > 5)

        cluster.kill(VICTIM)
        killed_s = time.monotonic()
        eventually(lambda: cluster.owner(to_lost.due) == SURVIVOR, 60)
        served_s, stalled_at, silent_at = time.monotonic(), to_lost.hops, len(lost_topic.handled.times)
        after_s: dict[str, float] = {}

        def all_go_on() -> bool:
            going_on = {"hops": to_lost.hops > stalled_at + 1, "deliveries": len(lost_topic.handled.times) > silent_at}
            now_s = time.monotonic() - served_s
            after_s.update((name, now_s) for name, goes_on in going_on.items() if goes_on and name not in after_s)
            return len(after_s) == len(going_on)

        eventually(all_go_on, 60)
        eventually(lambda: from_lost.stage.events.named("connection_back"), 60)
        (back,) = from_lost.stage.events.named("connection_back")
        after_s["source"] = back.away_ms / 1_000 - (served_s - killed_s)  # type: ignore[attr-defined]
        lost_topic.end_first()
        eventually(lambda: len(lost_topic.handled.times) == TIMERS, 60)
    assert max(after_s.values()) < BACK_WITHIN_S, f"{after_s}, served {served_s - killed_s:.1f} s after the kill"
    assert {*lost_topic.handled.times.values()} == {1}, "the one whose handler ran meanwhile, too"
    assert lost_topic.consumer.counts.replaced == 1
