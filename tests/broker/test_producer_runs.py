"""Sends in runs on a real broker: each timer lies where its sender was told, however the client cuts its batches."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.test_producer import DELAYS, Outcomes
from tests.broker.due_topic import TIER_1D, make_plan, timers_by_place
from timewheel.client.positions import Position
from timewheel.producers import AsyncDelayedProducer, DelayedProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timewheel.producers import Timer
    from timewheel.testing import Broker

COUNT = 3_000


def assert_each_lies_where_it_was_told(timers: Sequence[Timer], found: dict[Position, str], *, copies: int) -> None:
    told = {Position.of(timer.message_id): timer.id for timer in timers}
    assert len({timer.id for timer in timers}) == COUNT
    assert {place: found.get(place) for place in told} == told
    assert len(found) - COUNT <= copies


PATIENT: dict[str, Any] = {"batching_max_publish_delay_ms": 2_000}
"""However crowded the machine is, no batch's time is over while a run is handed over, and none is sent again."""


# No batch is cut within a run; by the number of its messages; by its bytes; by its time, while threads disturb each
# other, and with hardly any time, so that many runs are in more than two entries and are sent again.
@pytest.mark.parametrize("where", ["tier", "due"])
@pytest.mark.parametrize(
    ("options", "payload", "threads", "copies"),
    [
        pytest.param(PATIENT, 20, 1, 0, id="plain"),
        pytest.param({**PATIENT, "batching_max_messages": 7}, 20, 1, 0, id="by number"),
        pytest.param(PATIENT, 5_000, 1, 0, id="by bytes"),
        pytest.param({}, 20, 8, COUNT // 2, id="threads"),
        pytest.param({"batching_max_publish_delay_ms": 1}, 20, 8, 2 * COUNT, id="by time"),
    ],
)
def test_each_timer_lies_where_its_sender_was_told(
    pulsar_broker: Broker,
    pulsar_client: Any,
    topic: str,
    where: str,
    options: dict[str, Any],
    payload: int,
    threads: int,
    copies: int,
) -> None:
    plan, outcomes = make_plan(pulsar_broker, topic), Outcomes()
    with DelayedProducer(pulsar_client, plan, **options) as producer:

        def send() -> None:
            for _ in range(COUNT // threads):
                producer.send_async(bytes(payload), outcomes, deliver_after=DELAYS[where])

        senders = [threading.Thread(target=send) for _ in range(threads)]
        for sender in senders:
            sender.start()
        outcomes.wait_for(COUNT)
        assert producer.counts.stored == COUNT

    assert outcomes.errors == []
    found = timers_by_place(pulsar_client, topic + (TIER_1D if where == "tier" else ""))
    assert_each_lies_where_it_was_told(outcomes.timers, found, copies=copies if where == "tier" else 0)


def test_asyncio_timers_lie_where_their_sender_was_told(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    plan = make_plan(pulsar_broker, topic)

    async def send_all() -> list[Timer]:
        async with AsyncDelayedProducer(pulsar_client, plan, **PATIENT) as producer:
            sends = (producer.send(b"x", deliver_after=DELAYS["tier"]) for _ in range(COUNT))
            return await asyncio.gather(*sends)

    assert_each_lies_where_it_was_told(
        asyncio.run(send_all()), timers_by_place(pulsar_client, topic + TIER_1D), copies=0
    )
