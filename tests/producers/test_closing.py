"""Closing over a broker that answers nothing: how long it takes, by the clock that was handed in."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from functools import partial

import pytest

from tests.support.leaping_loop import LeapingLoop
from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of
from tests.support.silent_broker import SilentClient
from timewheel.client.hooks import Hooks
from timewheel.client.producer_pool import ProducerPool
from timewheel.core import Tiered
from timewheel.hooks import Event
from timewheel.producers import AsyncDelayedProducer, DelayedProducer
from timewheel.producers.pool import sender_of
from timewheel.testing import eventually

PLAN = plan_of(Tiered(window_ms=3_600_000, tiers_ms=(3_600_000,)))
SOON = dt.timedelta(minutes=1)


def test_a_pool_waits_for_all_its_producers_together_and_no_longer_than_it_is_told() -> None:
    client, clock = SilentClient(closes=False), ManualClock()
    pool: ProducerPool[str] = ProducerPool(
        max_producers=10,
        send_timeout_ms=30_000,
        idle_ms=60_000,
        name_of=str,
        sender_of=sender_of,
        clock=clock,
        hooks=Hooks(()),
    )
    for name in ("one", "two", "three"):
        assert pool.open(name, partial(client.create_producer, name)).result() is None
    closing = threading.Thread(target=pool.close_all, args=(1_000,))
    closing.start()
    clock.await_wait(1_000)
    assert eventually(lambda: len(client.closing) == 3), "all close at the same time, not one after the other"
    clock.advance(999)
    clock.await_wait(1)
    assert closing.is_alive()
    clock.advance(1)
    closing.join(10)
    assert not closing.is_alive()
    client.release()


def test_a_producer_waits_for_outcomes_as_long_as_it_is_told_and_a_grace() -> None:
    client, clock = SilentClient(closes=False), ManualClock()
    events: list[Event] = []
    producer = DelayedProducer(client, PLAN, clock=clock, hooks=(events.append,))
    producer.send_async(b"x", lambda _error, _timer: None, deliver_after=SOON)
    unknown: list[int] = []
    closing = threading.Thread(target=lambda: unknown.append(producer.close(timeout_s=20)))
    closing.start()
    clock.await_wait(20_000)  # for outcomes
    clock.advance(20_000)
    clock.await_wait(1_000)  # for the client's producers to close
    clock.advance(1_000)
    clock.await_wait(1_000)  # for the outcomes that their closing gives
    clock.advance(1_000)
    closing.join(10)
    assert unknown == [1]
    assert [(event.name, event.fields["unknown_count"]) for event in events] == [
        ("producer_closed_with_unknown_outcomes", 1)
    ]
    client.release()


def test_an_asyncio_producer_waits_by_its_event_loops_clock() -> None:
    client = SilentClient(closes=True)

    async def close() -> tuple[int, float]:
        producer = AsyncDelayedProducer(client, PLAN, hooks=())
        sending = asyncio.create_task(producer.send(b"x", deliver_after=SOON))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, client.was_sent_to.wait, 10)
        began_s = loop.time()
        unknown_count = await producer.close(timeout_s=20)
        took_s = loop.time() - began_s
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        return unknown_count, took_s

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        unknown_count, took_s = runner.run(close())
    assert unknown_count == 1
    # 20 s for outcomes, then a grace of 1 s for those that closing the client's producers gives.
    assert took_s == pytest.approx(21)
