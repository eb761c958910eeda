"""Producers of the client that send nothing any more: each send ends in time, and the next has another producer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.leaping_loop import LeapingLoop
from tests.support.scripted_sends import DEADLINE_MS, PLAN, SOON, STORED, Client, R, Sending
from timewheel.client.producer_pool import AGAIN_ROUNDS, AWAY_ROUNDS, ROUND_MS
from timewheel.core.errors import SendFailed, SendOutcomeUnknown
from timewheel.producers import AsyncDelayedProducer
from timewheel.testing import eventually


@pytest.fixture
def sending() -> Iterator[Sending]:
    found = Sending()
    yield found
    found.close()


def test_a_send_without_a_result_ends_as_unknown_and_its_late_result_changes_nothing(sending: Sending) -> None:
    sending.send()
    sending.rounds(DEADLINE_MS // ROUND_MS)
    assert sending.outcomes.empty(), "the client's own time and the slack have not passed"
    sending.rounds(1)
    assert isinstance(sending.outcome(), SendOutcomeUnknown)
    assert (sending.producer.counts.unknown, sending.producer.counts.pending) == (1, 0)
    silent = sending.client.producers[0]
    sending.replaced()
    silent.sent[0](R.Ok, STORED)
    sending.send()
    sending.client.producers[1].sent[0](R.Ok, STORED)
    assert sending.outcome() is None
    assert sending.producer.counts.stored == 1, "the first send had ended"
    sending.rounds(1)
    eventually(lambda: silent.closes)
    assert [(event.name, event.fields["reason"]) for event in sending.events] == [("producer_replaced", "Timeout")]


def test_sends_that_follow_have_their_own_time(sending: Sending) -> None:
    sending.send()
    sending.rounds(20)
    sending.send()
    sending.rounds(DEADLINE_MS // ROUND_MS - 20 + 1)
    assert isinstance(sending.outcome(), SendOutcomeUnknown)
    assert sending.outcomes.empty()
    sending.rounds(20)
    assert isinstance(sending.outcome(), SendOutcomeUnknown)


@pytest.mark.parametrize(("result", "replaced"), [(R.Timeout, True), (R.ConnectError, True), (R.MessageTooBig, False)])
def test_after_a_send_that_failed_but_not_by_its_message_another_producer_sends(
    sending: Sending, result: Any, replaced: bool
) -> None:
    sending.send()
    sending.client.producers[0].sent[0](result, None)
    assert sending.outcome() is not None
    if replaced:
        sending.replaced()
    sending.send()
    sending.client.producers[-1].sent[-1](R.Ok, STORED)
    assert sending.outcome() is None
    assert len(sending.client.producers) == 1 + replaced == 1 + sending.producer.counts.replaced


def test_a_producer_that_failed_is_used_until_another_is_open_which_is_tried_again_and_again(sending: Sending) -> None:
    sending.send()
    (failed,) = sending.client.producers
    sending.client.hangs = True
    failed.sent[0](R.Timeout, None)
    assert isinstance(sending.outcome(), SendOutcomeUnknown)
    for attempts in (1, 2, 3):
        eventually(partial(sending.has_tried, attempts))
        sending.send()
        failed.sent[-1](R.Timeout, None)
        assert isinstance(sending.outcome(), SendOutcomeUnknown)
        sending.rounds(AGAIN_ROUNDS)
    sending.client.opening[1].put(None)
    sending.replaced()
    sending.send()
    second = sending.client.producers[1]
    second.sent[0](R.Ok, STORED)
    assert sending.outcome() is None
    for opening in sending.client.opening:
        opening.put(None)
    eventually(lambda: sum(producer.closes for producer in sending.client.producers) == len(sending.client.opening) - 1)
    assert not second.closes, "the attempts that came later are closed"


def test_a_send_ends_in_time_while_its_producer_does_not_open(sending: Sending) -> None:
    sending.client.hangs = True
    failures: SimpleQueue[Exception] = SimpleQueue()

    def send() -> None:
        try:
            sending.send()
        except SendFailed as error:
            failures.put(error)

    thread = threading.Thread(target=send)
    thread.start()
    sending.clock.await_wait(DEADLINE_MS)
    sending.rounds(2)
    assert failures.empty()
    sending.clock.advance(DEADLINE_MS)
    thread.join(10)
    assert "no producer could be opened within 35 s" in str(failures.get_nowait())
    assert sending.producer.counts.failed == 1
    sending.client.opening[0].put(None)  # it is of use later
    eventually(lambda: len(sending.producer._pool) == 1)
    sending.send()
    sending.client.producers[0].sent[0](R.Ok, STORED)
    assert sending.outcome() is None


def test_an_attempt_that_succeeds_late_serves_those_who_wait_for_a_later_one(sending: Sending) -> None:
    pool, client = sending.producer._pool, sending.client
    client.hangs = True
    key = ("persistent://acme/crm/one", 0)
    first = pool.open(key, partial(client.create_producer, "one"))
    eventually(partial(sending.has_tried, 1))
    sending.rounds(AGAIN_ROUNDS)
    eventually(partial(sending.has_tried, 2))
    client.opening[0].put(TimeoutError("the first attempt"))
    assert str(first.result(10)) == "the first attempt"
    second = pool.open(key, partial(client.create_producer, "one"))
    eventually(partial(sending.has_tried, 3))
    client.opening[1].put(None)
    assert second.result(10) is None
    client.opening[2].put(None)
    eventually(lambda: [producer.closes for producer in client.producers] == [0, 1])
    assert sending.producer.counts.replaced == 0


def test_a_producer_without_a_connection_is_replaced_while_its_sends_wait_for_it(sending: Sending) -> None:
    sending.send()
    (away,) = sending.client.producers
    away.connected = False
    sending.rounds(AWAY_ROUNDS - 1)
    away.connected = True
    sending.rounds(1)
    away.connected = False
    sending.rounds(AWAY_ROUNDS - 1)
    sending.send()
    assert len(sending.client.producers) == 1, "it was never away for long"
    sending.rounds(1)
    sending.replaced()
    sending.send()
    assert not away.closes
    for callback in away.sent:
        callback(R.Ok, STORED)
    assert [sending.outcome(), sending.outcome()] == [None, None]
    sending.rounds(1)
    eventually(lambda: away.closes)
    sending.client.producers[1].sent[0](R.Ok, STORED)
    assert sending.outcome() is None


def test_an_idle_producer_without_a_connection_is_closed(sending: Sending) -> None:
    sending.send()
    (away,) = sending.client.producers
    away.sent[0](R.Ok, STORED)
    assert sending.outcome() is None
    away.connected = False
    sending.rounds(AWAY_ROUNDS)
    eventually(lambda: away.closes)
    sending.send()
    sending.client.producers[1].sent[0](R.Ok, STORED)
    assert sending.outcome() is None


def test_a_flush_lasts_no_longer_than_its_sends(sending: Sending) -> None:
    sending.send()
    sending.client.producers[0].sent[0](R.Ok, STORED)
    sending.producer.flush()
    assert sending.outcome() is None


def test_an_asyncio_send_ends_as_well() -> None:
    client = Client()

    async def send() -> float:
        loop = asyncio.get_running_loop()
        producer, began_s = AsyncDelayedProducer(client, PLAN, hooks=()), loop.time()
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(b"x", deliver_after=SOON)
        took_s = loop.time() - began_s
        again = asyncio.create_task(producer.send(b"x", deliver_after=SOON))
        await loop.run_in_executor(None, eventually, lambda: len([p for p in client.producers for _ in p.sent]) == 2)
        client.producers[-1].sent[-1](R.Ok, STORED)
        assert (await again).message_id is not None
        await producer.close()
        return took_s

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        took_s = runner.run(send())
    assert DEADLINE_MS / 1000 <= took_s <= DEADLINE_MS / 1000 + 2
