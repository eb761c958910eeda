"""Handlers on an event loop, what stands around handlers, and how services end, on a real broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_cancel import SCHEMES, plan_on, provisioned
from tests.behaviour.test_retry import left, retrying
from tests.broker.due_topic import SUBSCRIPTION, Handled, backlog, make_topic, now_ms, running
from tests.support.processes import StartedThreads
from timewheel.consumers import (
    AsyncDelayedConsumer,
    DelayedConsumer,
    DelayedMessage,
    FixedBackoff,
    Middleware,
    ParkTimer,
    Postpone,
    RetryLater,
    RetryPolicy,
    SkipTimer,
)
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.inbox import MemoryInbox, SqliteInbox
from timewheel.core.errors import ClientMisuse
from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

WAIT_S = 60
SECOND = dt.timedelta(seconds=1)
QUICK: dict[str, Any] = {"negative_ack_redelivery_delay_ms": 200}


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, retrying(topic))


def send(client: Any, plan: Plan, count: int, **options: Any) -> list[str]:
    names = [f"t{number}" for number in range(count)]
    with DelayedProducer(client, plan) as producer:
        for name in names:
            producer.send(b"x", timer_id=name, **options)
    return names


async def until(reached: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, reached, WAIT_S)


@pytest.mark.parametrize("scheme", ["tiered", "calendar"])
async def test_each_timer_comes_once_and_never_early(
    client: Any, pulsar_broker: Broker, topic: str, scheme: str
) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, SCHEMES[scheme]))
    names = send(client, plan, 40, deliver_after=3 * SECOND)
    handled: Counter[str | None] = Counter()
    early_ms: list[int] = []

    async def handle(message: DelayedMessage) -> None:
        assert message.due_at is not None
        early_ms.append(round(message.due_at.timestamp() * 1_000) - now_ms())
        await asyncio.sleep(0.01)
        handled[message.timer_id] += 1

    async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
        await until(lambda: consumer.ready)
        running = asyncio.create_task(consumer.run(handle, concurrency=10, stops_on_signals=False))
        await until(lambda: consumer.counts.done == 40 and left(pulsar_broker, plan) == 0)
        consumer.stop()
        await running
    assert not consumer.ready
    assert handled == dict.fromkeys(names, 1)
    assert max(early_ms) <= 0


def test_async_for_and_answers_by_hand(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    send(client, plan, 4)

    async def play() -> list[tuple[str | None, int]]:
        seen: list[tuple[str | None, int]] = []
        async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION, **QUICK) as consumer:
            async for message in consumer:
                seen.append((message.timer_id, message.attempt))
                if message.timer_id == "t1" and message.redelivery_count() == 0:
                    await consumer.negative_acknowledge(message)
                elif message.timer_id == "t2" and message.attempt == 0:
                    await consumer.retry(message, SECOND / 10)
                elif message.timer_id == "t3":
                    await consumer.park(message, "enough")
                else:
                    await consumer.acknowledge(message)
                if len(seen) == 6:
                    break
            await until(lambda: left(pulsar_broker, plan) == 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await consumer.receive()
            with pytest.raises(ReceiveTimeout, match="no timer was due within 200 ms"):
                await consumer.receive(SECOND / 5)
            with DelayedProducer(client, plan) as producer:
                producer.send(b"x", timer_id="one more")
            assert (await consumer.receive()).timer_id == "one more"
            consumer.stop()
            with pytest.raises(ClientMisuse, match="stopped"):
                await consumer.receive()
        with pytest.raises(ClientMisuse, match="closed"):
            await consumer.receive()
        return seen

    seen = Counter(asyncio.run(play()))
    assert seen == {("t0", 0): 1, ("t1", 0): 2, ("t2", 0): 1, ("t2", 1): 1, ("t3", 0): 1}


async def test_what_fails_is_tried_again_with_an_inbox_around_it(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    names = send(client, plan, 20)
    seen: Counter[tuple[str | None, int]] = Counter()

    async def handle(message: DelayedMessage) -> None:
        seen[message.timer_id, message.attempt] += 1
        if message.timer_id == "t0":
            raise ParkTimer("no")
        if message.attempt == 0:
            raise RetryLater

    policy = RetryPolicy(backoff=FixedBackoff(SECOND / 5))
    async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION, inbox=MemoryInbox(), retry=policy) as consumer:
        running = asyncio.create_task(consumer.run(handle, stops_on_signals=False))
        await until(lambda: consumer.counts.done == 19 and left(pulsar_broker, plan) == 0)
        assert (consumer.counts.parked, consumer.counts.retried) == (1, 19)
        consumer.stop()
        await running
    assert seen == {**{(name, 0): 1 for name in names}, **{(name, 1): 1 for name in names[1:]}}


async def test_a_run_that_is_cancelled_strands_nothing(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    send(client, plan, 30)
    begun: Counter[str | None] = Counter()
    done: Counter[str | None] = Counter()

    async def handle(message: DelayedMessage) -> None:
        begun[message.timer_id] += 1
        await asyncio.sleep(0.05)
        done[message.timer_id] += 1

    async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION, **QUICK) as consumer:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.12):
                    await consumer.run(handle, concurrency=4, stops_on_signals=False)
        running = asyncio.create_task(consumer.run(handle, stops_on_signals=False))
        await until(lambda: left(pulsar_broker, plan) == 0)
        consumer.stop()
        await running
    assert set(done.values()) == {1}
    assert len(done) == 30
    assert begun.total() > 30, "some were cancelled at work, and came again"


async def test_threads_do_not_grow_with_what_is_handled(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    send(client, plan, 300)
    started, most = StartedThreads(), 0

    async def handle(_: DelayedMessage) -> None:
        nonlocal most
        most = max(most, len(started.names()))
        await asyncio.sleep(0.2)

    async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=300, stops_on_signals=False))
        await until(lambda: consumer.counts.done == 300)
        consumer.stop()
        await running
    assert most == 2
    assert backlog(pulsar_broker, plan.due_topic) == 0


def test_a_consumer_belongs_to_one_loop_and_takes_coroutines(client: Any, plan: Plan) -> None:
    async def play() -> AsyncDelayedConsumer:
        consumer = await AsyncDelayedConsumer(client, plan, SUBSCRIPTION).start()
        with pytest.raises(SubscribeRefused, match="async def"):
            await consumer.run(lambda _: asyncio.sleep(0))
        return consumer

    consumer = asyncio.run(play())
    with pytest.raises(ClientMisuse, match="another event loop"):
        asyncio.run(consumer.start())
    asyncio.run(consumer.close())


SERVICE = """
import asyncio, signal, sys
import pulsar
from timewheel.consumers import AsyncDelayedConsumer
from timewheel.core import Plan

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

async def handle(message):
    print("begun", flush=True)
    await asyncio.sleep(1)
    print("done", flush=True)

async def main():
    async with AsyncDelayedConsumer(client, Plan.load(sys.argv[2]), "billing") as consumer:
        await consumer.run(handle, concurrency=1)

asyncio.run(main())
client.close()
print("left", flush=True)
"""


@pytest.mark.real
def test_a_service_that_is_told_to_end_ends_what_it_has_begun(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path
) -> None:
    send(client, plan, 20)
    ends_what_it_has_begun(pulsar_broker, plan, tmp_path, SERVICE, signal.SIGTERM)


@pytest.fixture
def raw_plan(pulsar_broker: Broker, topic: str) -> Plan:
    make_topic(pulsar_broker, topic, partitions=2, subscriptions=(SUBSCRIPTION,))
    return Plan(due_topic=topic, subscriptions=(SUBSCRIPTION,), partitions=2)


def send_each(client: Any, plan: Plan, *names: str, keys: tuple[str, ...] = ("a",)) -> None:
    """Each as often as there are keys: with another key it may lie in another partition."""
    with DelayedProducer(client, plan) as producer:
        for name in names:
            for key in keys:
                producer.send(b"x", timer_id=name, partition_key=key)


def test_a_timer_whose_copies_reach_two_replicas_is_handled_by_one(
    client: Any, pulsar_broker: Broker, raw_plan: Plan, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(40)]
    send_each(client, raw_plan, *names, keys=("a", "b", "c"))
    handled = Handled()
    inboxes = [SqliteInbox(tmp_path / "inbox.sqlite3", synchronous="normal") for _ in range(2)]
    one, two = (
        DelayedConsumer(client, raw_plan, SUBSCRIPTION, inbox=inbox, receiver_queue_size=1) for inbox in inboxes
    )
    with running(one, handled, workers=2), running(two, handled, workers=2):
        eventually(lambda: backlog(pulsar_broker, raw_plan.due_topic) == 0, WAIT_S)
        assert one.counts.done + two.counts.done == 40
    for inbox in inboxes:
        inbox.close()
    assert handled.times == Counter(names)


class Tenants(Middleware):
    """Stands around each handler, and notes; skips one tenant."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def before(self, message: DelayedMessage) -> None:
        self.notes.append(f"before {message.timer_id}")
        if message.properties().get("tenant") == "gone":
            raise SkipTimer("the tenant is gone")

    def after(self, message: DelayedMessage) -> None:
        self.notes.append(f"after {message.timer_id}")

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        self.notes.append(f"failed {message.timer_id} {type(error).__name__}")


def test_a_handler_may_put_a_timer_off_and_what_stands_around_it_may_skip_one(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    raw_plan = provisioned(pulsar_broker, plan_on(topic))  # with cancels: what is put off is asked about again
    middleware, at_ms = Tenants(), []

    def handle(_: DelayedMessage) -> None:
        at_ms.append(now_ms())
        if len(at_ms) == 1:
            raise Postpone(dt.timedelta(seconds=1))

    with DelayedProducer(client, raw_plan) as producer:
        producer.send(b"x", timer_id="skipped", properties={"tenant": "gone"})
        producer.send(b"x", timer_id="put off")
    consumer = DelayedConsumer(client, raw_plan, SUBSCRIPTION, middleware=[middleware])
    with running(consumer, handle):
        eventually(lambda: backlog(pulsar_broker, raw_plan.due_topic) == 0, WAIT_S)
        counts = consumer.counts
    assert len(at_ms) == 2
    assert at_ms[1] - at_ms[0] >= 1_000
    assert (counts.skipped, counts.postponed, counts.done, counts.failed) == (1, 1, 1, 0)
    assert sorted(middleware.notes) == sorted(
        ["before skipped", "before put off", "failed put off Postpone", "before put off", "after put off"]
    )


THREADED_SERVICE = """
import signal, sys, time
import pulsar
from timewheel.consumers import DelayedConsumer
from timewheel.core import Plan

# Whoever starts the tests in the background of a shell has SIGINT ignored, and what it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

def handle(message):
    print("begun", flush=True)
    time.sleep(1)
    print("done", flush=True)

with DelayedConsumer(client, Plan.load(sys.argv[2]), "billing") as consumer:
    consumer.run(handle, workers=1)
client.close()
print("left", flush=True)
"""


def ends_what_it_has_begun(broker: Broker, plan: Plan, folder: Path, script: str, number: signal.Signals) -> None:
    """A service that is at the first of 20 timers is sent a signal."""
    save_plan(plan, folder / "plan.toml")
    command = [sys.executable, "-c", script, broker.service_url, str(folder / "plan.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        watchdog = threading.Timer(WAIT_S, service.kill)
        watchdog.start()
        assert service.stdout is not None
        assert service.stdout.readline() == "begun\n"
        service.send_signal(number)
        rest = service.stdout.read().split()
        watchdog.cancel()
    assert service.returncode == 0
    assert rest[-1] == "left"
    handled = rest.count("done")
    assert rest.count("begun") == handled - 1
    assert handled < 20
    # What was handled is acknowledged, and nothing else.
    eventually(lambda: backlog(broker, plan.due_topic) == 20 - handled, WAIT_S)


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_on_threads_that_is_told_to_end_ends_what_it_has_begun(
    client: Any, pulsar_broker: Broker, raw_plan: Plan, tmp_path: Path, number: signal.Signals
) -> None:
    send_each(client, raw_plan, *(f"t{number}" for number in range(20)))
    ends_what_it_has_begun(pulsar_broker, raw_plan, tmp_path, THREADED_SERVICE, number)
