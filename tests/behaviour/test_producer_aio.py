"""The asyncio producer: the same messages, without blocking its loop."""

from __future__ import annotations

import asyncio
import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.broker.due_topic import TIER_1D, make_plan, stored_entries, stored_messages
from timewheel.core import Plan, SystemClock
from timewheel.core.errors import BadDueTime, ClientMisuse, SendFailed, SendOutcomeUnknown, TopologyError
from timewheel.producers import AsyncDelayedProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from timewheel.hooks import Event
    from timewheel.testing import Broker, LocalPulsar

DELAYS = {"due": dt.timedelta(minutes=30), "tier": dt.timedelta(days=17)}


def test_many_sends_at_once_are_batched_and_the_loop_is_woken_for_many(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=2)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        woken = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def count(*arguments: Any, **options: Any) -> asyncio.Handle:
            nonlocal woken
            woken += 1
            return call_soon_threadsafe(*arguments, **options)

        loop.call_soon_threadsafe = count  # type: ignore[assignment, method-assign]
        async with AsyncDelayedProducer(pulsar_client, plan, max_pending=3_000) as producer:
            timers = await asyncio.gather(
                *(producer.send(b"x", timer_id=str(n), deliver_after=DELAYS["tier"]) for n in range(2_000))
            )
        assert [timer.id for timer in timers] == [str(n) for n in range(2_000)]
        return woken

    assert asyncio.run(main()) < 500
    assert sum(stored_entries(pulsar_broker, topic + TIER_1D, partition=n) for n in range(2)) < 200


async def test_never_more_pending_than_the_bound_while_the_loop_goes_on(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    async with AsyncDelayedProducer(client, plan, max_pending=8) as producer:
        await producer.send(b"opens the producer")
        mortal.pause()
        sends = [asyncio.create_task(producer.send(b"x", timer_id=str(n))) for n in range(20)]
        for _ in range(50):
            await asyncio.sleep(0.01)  # a loop that is blocked would not come round fifty times
            assert len(producer._pending) <= 8
        assert len(producer._pending) == 8
        assert not any(send.done() for send in sends)
        mortal.resume()
        timers = await asyncio.gather(*sends)
        assert [timer.id for timer in timers] == [str(n) for n in range(20)]
    assert stored_entries(mortal, topic) == 21


async def test_a_cancelled_send_gives_up_waiting_not_sending(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    async with AsyncDelayedProducer(client, plan, max_pending=2) as producer:
        await producer.send(b"opens the producer")
        mortal.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(b"x", timer_id="sub-42"), 0.3)
        assert len(producer._pending) == 1, "its outcome is still awaited"
        mortal.resume()
        await producer.flush()
        assert len(producer._pending) == 0
        # Its room is free again: twice as many as fit go through.
        await asyncio.gather(*(producer.send(b"x") for _ in range(4)))
    assert [m.properties()["tw-id"] for m in stored_messages(client, topic, 6)][1] == "sub-42"


async def test_cancelled_while_waiting_for_room_or_for_a_producer_nothing_is_sent_and_no_room_is_lost(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    async with AsyncDelayedProducer(client, plan, max_pending=1) as producer:
        mortal.pause()
        opening = asyncio.create_task(producer.send(b"opening"))
        waiting = asyncio.create_task(producer.send(b"waiting"))
        await asyncio.sleep(0.2)
        for send in (waiting, opening):
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
        assert len(producer._pending) == 0
        mortal.resume()
        assert (await producer.send(b"x")).message_id is not None
    assert [m.data() for m in stored_messages(client, topic, 1)] == [b"x"]
    assert stored_entries(mortal, topic) == 1


async def test_without_an_answer_the_outcome_is_unknown_and_close_says_how_many(
    mortal: LocalPulsar, topic: str
) -> None:
    plan = make_plan(mortal, topic)
    # A client of its own: it may still be closing the producer that a frozen broker did not let go.
    client = pulsar.Client(mortal.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    events: list[Event] = []
    producer = AsyncDelayedProducer(client, plan, hooks=(events.append,), send_timeout_millis=1_500)
    await producer.send(b"opens the producer")
    mortal.pause()
    with pytest.raises(SendOutcomeUnknown) as caught:
        await producer.send(b"x", timer_id="sub-42")
    assert caught.value.timer_id == "sub-42"

    sends = [asyncio.create_task(producer.send(b"x")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await producer.close(timeout_s=0.2) == 3
    assert await producer.close() == 0
    for outcome in await asyncio.gather(*sends, return_exceptions=True):
        assert isinstance(outcome, SendOutcomeUnknown)
    mortal.resume()
    with suppress(Exception):
        client.close()
    told = [event for event in events if event.name != "producer_close_failed"]
    assert [(event.name, event.fields) for event in told] == [
        ("producer_closed_with_unknown_outcomes", {"unknown_count": 3})
    ]


async def test_after_close_and_on_another_loop_nothing_is_sent(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    plan = make_plan(pulsar_broker, topic)
    producer = AsyncDelayedProducer(pulsar_client, plan)
    await producer.send(b"x")
    with ThreadPoolExecutor(1) as thread, pytest.raises(ClientMisuse, match="another event loop"):
        thread.submit(lambda: asyncio.run(_send_one(producer))).result()
    other = AsyncDelayedProducer(pulsar_client, plan)
    await other.send(b"x")
    await other.close()
    with pytest.raises(ClientMisuse, match="closed"):
        await other.send(b"x")
    assert stored_entries(pulsar_broker, topic) == 2


async def _send_one(producer: AsyncDelayedProducer) -> None:
    await producer.send(b"x")


async def test_refusals_and_missing_topics_are_told_to_the_caller(pulsar_client: Any, topic: str) -> None:
    async with AsyncDelayedProducer(
        pulsar_client, Plan(due_topic=topic, subscriptions=("billing",)), max_pending=1
    ) as producer:
        with pytest.raises(BadDueTime):
            await producer.send(b"x", deliver_at=-1)
        for _ in range(3):  # each gives its room back
            with pytest.raises(TopologyError):
                await producer.send(b"x")


async def test_one_failure_to_open_is_told_to_all_who_waited_for_it(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal, operation_timeout_seconds=3)
    client.get_topic_partitions(topic)  # connected, so that the operation's time-out is what fails
    async with AsyncDelayedProducer(client, plan) as producer:
        mortal.pause()
        began_ms = SystemClock().monotonic_ms()
        sends = (producer.send(b"x", timer_id=str(number)) for number in range(20))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert SystemClock().monotonic_ms() - began_ms < 50_000, "one time-out of 3 s for all, not 20 of them"
        # Nothing was handed over, so it is known that nothing is stored; each is told about its own timer.
        assert [type(outcome) for outcome in outcomes] == [SendFailed] * 20
        assert [getattr(outcome, "timer_id", None) for outcome in outcomes] == [str(n) for n in range(20)]
        mortal.resume()


@pytest.mark.real
async def test_a_full_pool_serves_more_partitions_than_it_holds(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=6)
    async with AsyncDelayedProducer(pulsar_client, plan, max_producers=2) as producer:
        await asyncio.gather(*(producer.send(b"x", deliver_after=DELAYS["due"]) for _ in range(30)))
        assert len(producer._pool) <= 2
    assert sum(stored_entries(pulsar_broker, topic, partition=partition) for partition in range(6)) == 30
