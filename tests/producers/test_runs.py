"""Sends that are handed over together: one callback tells all outcomes, and each send keeps its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import _pulsar
import pytest

from tests.support.scripted_sends import DEADLINE_MS, PLAN, SOON, STORED, STORED_NOT, Client, Producer, R, Sending
from timewheel.client.producer_pool import ROUND_MS
from timewheel.core.errors import PayloadTooLarge, SendFailed, SendOutcomeUnknown
from timewheel.producers import AsyncDelayedProducer
from timewheel.producers.base_producer import Send
from timewheel.producers.dispatcher import BUSY_FROM, TOGETHER
from timewheel.testing import eventually

ALONE = BUSY_FROM - 1  # so many are handed over at once, each with a callback of its own, before the first run
LAST = ALONE + TOGETHER - 1


@pytest.fixture
def sending() -> Iterator[Sending]:
    """Sends of which the last `TOGETHER` are a run, and of which the others are stored."""
    found = Sending()
    found.send()
    (producer,) = found.client.producers
    for _ in range(LAST):
        found.send()
    assert len(producer.sent) == LAST + 1
    yield found
    found.close()


def place(number: int) -> Any:
    return _pulsar.MessageId(-1, 8, number, -1)


def answer(producer: Producer, numbers: range, results: dict[int, Any] | None = None) -> None:
    for number in numbers:
        result = (results or {}).get(number, R.Ok)
        producer.sent[number](result, STORED_NOT if result.value else place(number))


def outcomes(sending: Sending, count: int) -> list[str | None]:
    found = [sending.outcome() for _ in range(count)]
    return [None if error is None else type(error).__name__ for error in found]


def test_only_the_last_of_a_run_has_a_callback_in_python(sending: Sending) -> None:
    (producer,) = sending.client.producers
    heard = [isinstance(callback, Send) for callback in producer.sent]
    assert heard == [True] * ALONE + [False] * (TOGETHER - 1) + [True]


def test_the_last_of_a_run_tells_all_of_them_in_order_each_with_its_own_place(sending: Sending) -> None:
    (producer,) = sending.client.producers
    answer(producer, range(ALONE, LAST))
    sending.rounds(2)
    assert sending.outcomes.empty(), "the last one is pending"
    answer(producer, range(LAST, LAST + 1))
    assert outcomes(sending, TOGETHER) == [None] * TOGETHER
    assert [timer.message_id.entry_id() for timer in sending.timers] == list(range(ALONE, LAST + 1))
    assert sending.producer.counts.stored == TOGETHER


def test_one_that_the_broker_does_not_take_fails_alone(sending: Sending) -> None:
    (producer,) = sending.client.producers
    answer(producer, range(ALONE, LAST + 1), {ALONE + 7: R.MessageTooBig})
    told = outcomes(sending, TOGETHER)
    assert Counter(told) == {None: TOGETHER - 1, PayloadTooLarge.__name__: 1}
    assert told[7] is not None


def test_one_whose_producer_was_closed_is_asked_again_and_what_may_be_stored_never_counts_as_failed(
    sending: Sending,
) -> None:
    (producer,) = sending.client.producers
    answer(producer, range(ALONE, LAST + 1), dict.fromkeys((ALONE + 1, ALONE + 2), R.AlreadyClosed))
    assert outcomes(sending, TOGETHER - 2) == [None] * (TOGETHER - 2)
    (another,) = eventually(lambda: sending.client.producers[1:])
    sending.rounds(1)  # many sends are pending: these wait for others
    eventually(lambda: len(another.sent) == 2)
    another.sent[0](R.Ok, STORED)
    another.sent[1](R.NotAllowedError, STORED_NOT)
    assert sorted(outcomes(sending, 2), key=str) == [None, SendOutcomeUnknown.__name__]
    assert len({timer.id for timer in sending.timers}) == TOGETHER, "under the same ids"


def test_a_run_without_an_answer_ends_as_unknown_in_time(sending: Sending) -> None:
    sending.rounds(DEADLINE_MS // ROUND_MS + 1)
    assert outcomes(sending, LAST + 1) == [SendOutcomeUnknown.__name__] * (LAST + 1)
    (producer, *_) = sending.client.producers
    answer(producer, range(LAST + 1))
    assert sending.producer.counts.stored == 0, "late answers change nothing"


def test_where_the_client_refuses_the_last_on_the_spot_the_others_are_told_within_a_round() -> None:
    sending = Sending()
    sending.send()
    (producer,) = sending.client.producers
    producer.refuses[LAST] = R.MemoryBufferIsFull
    for _ in range(LAST):
        sending.send()
    assert outcomes(sending, 1) == [SendFailed.__name__]
    answer(producer, range(ALONE, LAST))
    assert sending.outcomes.empty()
    sending.rounds(1)
    assert outcomes(sending, TOGETHER - 1) == [None] * (TOGETHER - 1)
    sending.close()


def test_asyncio_sends_go_in_runs_too() -> None:
    client = Client()

    async def send() -> list[int]:
        producer = AsyncDelayedProducer(client, PLAN, hooks=())
        sends = [asyncio.ensure_future(producer.send(b"x", deliver_after=SOON)) for _ in range(LAST + 1)]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            None, eventually, lambda: client.producers and len(client.producers[0].sent) == LAST + 1
        )
        (sent,) = client.producers
        assert sum(isinstance(callback, Send) for callback in sent.sent) == ALONE + 1
        answer(sent, range(LAST + 1))
        timers = await asyncio.gather(*sends)
        await producer.close()
        return [timer.message_id.entry_id() for timer in timers]

    assert sorted(asyncio.run(send())) == list(range(LAST + 1))
