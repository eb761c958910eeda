"""The asyncio consumer on a real broker: what it hands out, what cancellation leaves, and how it ends."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.due_topic import SUBSCRIPTION, backlog, now_ms
from tests.broker.test_around import ends_what_it_has_begun
from tests.broker.test_cancel import SCHEMES, provisioned
from tests.broker.test_retry import left, retrying
from tests.support.threads import StartedThreads
from timewheel.consumers import AsyncDelayedConsumer, DelayedMessage, FixedBackoff, ParkTimer, RetryLater, RetryPolicy
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.inbox import MemoryInbox
from timewheel.core.errors import ClientMisuse
from timewheel.core.plan import Plan
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


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
def test_each_timer_comes_once_and_never_early(client: Any, pulsar_broker: Broker, topic: str, scheme: str) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, SCHEMES[scheme]))
    names = send(client, plan, 40, deliver_after=3 * SECOND)
    handled: Counter[str | None] = Counter()
    early_ms: list[int] = []

    async def handle(message: DelayedMessage) -> None:
        assert message.due_at is not None
        early_ms.append(round(message.due_at.timestamp() * 1_000) - now_ms())
        await asyncio.sleep(0.01)
        handled[message.timer_id] += 1

    async def play() -> None:
        async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
            await until(lambda: consumer.ready)
            running = asyncio.create_task(consumer.run(handle, concurrency=10, stops_on_signals=False))
            await until(lambda: consumer.counts.done == 40 and left(pulsar_broker, plan) == 0)
            consumer.stop()
            await running
        assert not consumer.ready

    asyncio.run(play())
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


def test_what_fails_is_tried_again_with_an_inbox_around_it(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    names = send(client, plan, 20)
    seen: Counter[tuple[str | None, int]] = Counter()

    async def handle(message: DelayedMessage) -> None:
        seen[message.timer_id, message.attempt] += 1
        if message.timer_id == "t0":
            raise ParkTimer("no")
        if message.attempt == 0:
            raise RetryLater

    async def play() -> None:
        policy = RetryPolicy(backoff=FixedBackoff(SECOND / 5))
        async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION, inbox=MemoryInbox(), retry=policy) as consumer:
            running = asyncio.create_task(consumer.run(handle, stops_on_signals=False))
            await until(lambda: consumer.counts.done == 19 and left(pulsar_broker, plan) == 0)
            assert (consumer.counts.parked, consumer.counts.retried) == (1, 19)
            consumer.stop()
            await running

    asyncio.run(play())
    assert seen == {**{(name, 0): 1 for name in names}, **{(name, 1): 1 for name in names[1:]}}


def test_a_run_that_is_cancelled_strands_nothing(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    send(client, plan, 30)
    begun: Counter[str | None] = Counter()
    done: Counter[str | None] = Counter()

    async def handle(message: DelayedMessage) -> None:
        begun[message.timer_id] += 1
        await asyncio.sleep(0.05)
        done[message.timer_id] += 1

    async def play() -> None:
        async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION, **QUICK) as consumer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.12):
                        await consumer.run(handle, concurrency=4, stops_on_signals=False)
            running = asyncio.create_task(consumer.run(handle, stops_on_signals=False))
            await until(lambda: left(pulsar_broker, plan) == 0)
            consumer.stop()
            await running

    asyncio.run(play())
    assert set(done.values()) == {1}
    assert len(done) == 30
    assert begun.total() > 30, "some were cancelled at work, and came again"


def test_threads_do_not_grow_with_what_is_handled(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    send(client, plan, 300)
    started, most = StartedThreads(), 0

    async def handle(_: DelayedMessage) -> None:
        nonlocal most
        most = max(most, len(started.names()))
        await asyncio.sleep(0.2)

    async def play() -> None:
        async with AsyncDelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=300, stops_on_signals=False))
            await until(lambda: consumer.counts.done == 300)
            consumer.stop()
            await running

    asyncio.run(play())
    assert most == 1
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


def test_a_service_that_is_told_to_end_ends_what_it_has_begun(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path
) -> None:
    send(client, plan, 20)
    ends_what_it_has_begun(pulsar_broker, plan, tmp_path, SERVICE, signal.SIGTERM)
