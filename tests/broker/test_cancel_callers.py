"""Who cancels and moves timers may crash in between, and may not be alone: what is left is the same everywhere."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.broker.due_topic import SUBSCRIPTION, now_ms, running
from tests.broker.test_cancel import TIERED, WAIT_S, nothing_is_left, plan_on, provisioned
from tests.support.checkout import ROOT
from tests.support.reschedule_worker import NEW, arguments
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.cancel_policy import Cancel
from timewheel.core.cancellations import Answer
from timewheel.core.clock import SystemClock
from timewheel.core.durations import SECOND_MS
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan, Ring, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.producers import DelayedProducer
from timewheel.provision import FormerTopics, ensure
from timewheel.testing import Broker, eventually

AHEAD_MS = 700
IDS = [f"meeting-{number}" for number in range(20)]
TIMES_EACH = 5
LATER = dt.timedelta(seconds=6)


class Ahead(SystemClock):
    """Of a machine whose clock is fast."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_MS


@pytest.mark.short
def test_of_two_callers_whose_clocks_differ_one_wins_and_it_is_the_same_everywhere(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    subscriptions = (SUBSCRIPTION, "audit")
    wanted = plan_on(topic, TIERED, subscriptions=subscriptions, cancel=Cancel(skew_ms=SECOND_MS))
    plan = provisioned(pulsar_broker, wanted)
    handed: dict[str, defaultdict[str, Counter[int]]] = {name: defaultdict(Counter) for name in subscriptions}
    lock = threading.Lock()

    def handle(subscription: str, message: DelayedMessage) -> None:
        assert message.timer_id is not None
        assert message.generation is not None
        with lock:
            handed[subscription][message.timer_id][message.generation] += 1

    generations: defaultdict[str, set[int]] = defaultdict(set)

    def call(clock: SystemClock) -> None:
        with DelayedProducer(client, plan, clock=clock) as producer:
            for _ in range(TIMES_EACH):
                for timer_id in IDS:
                    timer = producer.send(b"x", deliver_after=LATER, timer_id=timer_id, replace=True)
                    with lock:
                        generations[timer_id].add(timer.generation)

    callers = [threading.Thread(target=call, args=(clock,)) for clock in (SystemClock(), Ahead())]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    with ExitStack() as stack:
        for subscription in subscriptions:
            for _ in range(2):  # replicas
                consumer = DelayedConsumer(client, plan, subscription)
                stack.enter_context(running(consumer, partial(handle, subscription)))
        for subscription in subscriptions:
            eventually(lambda: len(handed[subscription]) == len(IDS), WAIT_S)  # noqa: B023 - called before the next
            eventually(partial(nothing_is_left, pulsar_broker, plan, subscription), WAIT_S)
    assert all(len(generations[timer_id]) == 2 * TIMES_EACH for timer_id in IDS)
    winners = {timer_id: Counter([max(generations[timer_id])]) for timer_id in IDS}
    assert handed == {SUBSCRIPTION: winners, "audit": winners}


@pytest.mark.short
def test_cancels_hold_through_a_change_of_the_plan(client: Any, pulsar_broker: Broker, topic: str) -> None:
    """Some are made under the plan before, some under the one after; timers of the one before wait in its tiers."""
    before = provisioned(pulsar_broker, plan_on(topic, TIERED))
    ring = Wheel(rings=(Ring(slot_ms=2 * SECOND_MS, slots=32, headstart_ms=100),))
    handed: list[str | None] = []
    with DelayedProducer(client, before) as producer:
        timers = [
            producer.send(b"x", deliver_after=dt.timedelta(seconds=40), timer_id=f"t{n}", group="g" if n > 7 else None)
            for n in range(10)
        ]
        answers = [producer.cancel(timer).answer for timer in timers[:3]]
    after = replace(before, scheme=ring, revision=2)
    with AdminClient(pulsar_broker.admin_url) as admin:
        ensure(admin, after, now_ms=now_ms(), ignore_former_topics=True)
        with DelayedProducer(client, after) as producer:
            answers += [producer.cancel(timer).answer for timer in timers[3:6]]
            producer.cancel_group("g")
            moved = producer.reschedule(timers[6], b"x", deliver_after=dt.timedelta(seconds=45))
        consumer = DelayedConsumer(client, after, SUBSCRIPTION, former_topics=FormerTopics(admin, after))
        with running(consumer, lambda message: handed.append(message.timer_id)):
            eventually(lambda: now_ms() > moved.due_ms and nothing_is_left(pulsar_broker, after), WAIT_S)
            eventually(lambda: not any(waits(admin, one) for one in (before, after)), WAIT_S)
    assert answers == [Answer.CERTAIN] * 6
    assert sorted(map(str, handed)) == ["t6", "t7"]


def waits(admin: AdminClient, plan: Plan) -> int:
    """Entries in a plan's holding topics."""
    stats = [admin.topics.partitioned_stats(held.name) for held in topology(plan, now_ms()).holding]
    return sum(one.total.subscriptions[RELAY_SUBSCRIPTION].backlog for one in stats)


@pytest.mark.parametrize(
    "repeats", [pytest.param(False, id="left so", marks=pytest.mark.short), pytest.param(True, id="moved once more")]
)
def test_killed_between_the_new_timer_and_the_cut_off_of_the_old_both_live_until_it_is_done_again(
    client: Any, pulsar_broker: Broker, topic: str, tmp_path: Path, repeats: bool
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, TIERED))
    save_plan(plan, tmp_path / "plan.toml")
    handed: list[bytes] = []
    with DelayedProducer(client, plan) as producer:
        older = producer.send(b"old", deliver_at=now_ms() + 15 * SECOND_MS, timer_id="moved")
        command = arguments(pulsar_broker.service_url, str(tmp_path / "plan.toml"), older, older.due_ms + SECOND_MS)
        killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if repeats:
            again = producer.reschedule(older, b"again", deliver_at=older.due_ms)
            assert again.superseded is not None
            assert again.superseded.answer is Answer.CERTAIN
    wanted = {b"again"} if repeats else {b"old", NEW}
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), lambda message: handed.append(message.data())):
        eventually(lambda: wanted <= set(handed), WAIT_S)
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert sorted(handed) == sorted(wanted)
