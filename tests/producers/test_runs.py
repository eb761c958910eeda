"""Sends that are handed over together: one callback tells all outcomes, and each send keeps its own."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import _pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scripted_sends import DEADLINE_MS, PLAN, SOON, STORED, STORED_NOT, Client, Producer, R, Sending
from timewheel.client.producer_pool import ROUND_MS, PooledProducer
from timewheel.core import Cancel
from timewheel.core.errors import (
    CancelFailed,
    CancelOutcomeUnknown,
    PayloadTooLarge,
    SendFailed,
    SendOutcomeUnknown,
    TimewheelError,
)
from timewheel.producers import AsyncDelayedProducer, runs
from timewheel.producers.base_producer import Send
from timewheel.producers.dispatcher import BUSY_FROM
from timewheel.producers.prepare import Outgoing
from timewheel.producers.runs import MOST_BATCHED, TOGETHER, Place, Runs, places_between
from timewheel.testing import eventually

ALONE = BUSY_FROM  # so many are handed over at once, each with a callback of its own, before the first run
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


def test_a_cancel_of_a_run_without_an_answer_is_unknown_and_one_whose_producer_was_closed_is_asked_again() -> None:
    sending = Sending(replace(PLAN, cancel=Cancel()))
    told: dict[int, TimewheelError | None] = {}

    def keep(number: int, error: TimewheelError | None, _: object) -> None:
        told[number] = error

    for number in range(LAST + 1):
        sending.producer.cancel_async(f"timer-{number}", partial(keep, number))
    (producer,) = sending.client.producers
    results = {ALONE: R.Timeout, ALONE + 1: R.MessageTooBig, ALONE + 2: R.AlreadyClosed, ALONE + 3: R.AlreadyClosed}
    answer(producer, range(ALONE, LAST + 1), results)
    (another, *_) = eventually(lambda: sending.client.producers[1:])
    sending.rounds(1)
    eventually(lambda: len(another.sent) == 2)
    another.sent[0](R.Ok, STORED)
    another.sent[1](R.NotAllowedError, STORED_NOT)
    sending.rounds(2)
    eventually(lambda: len(told) == TOGETHER)
    kinds = Counter(type(error).__name__ for error in told.values())
    assert kinds == {"NoneType": TOGETHER - 3, CancelOutcomeUnknown.__name__: 2, CancelFailed.__name__: 1}
    assert isinstance(told[ALONE], CancelOutcomeUnknown)
    assert isinstance(told[ALONE + 1], CancelFailed)
    sending.close()


BATCHED_LAST = ALONE + MOST_BATCHED - 1
FAR = dt.timedelta(hours=1, minutes=30)  # held by a relay: batched


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sending]:
    """Sends into a tier of which the last `MOST_BATCHED` are a run."""
    monkeypatch.setattr(runs, "tells_entries", lambda _: True)
    found = Sending()
    for _ in range(LAST + 1):
        found.send(FAR)
    yield found
    found.close()


def entry(entry_id: int, size: int) -> list[Any]:
    """Return the ids that the client tells of a batch's messages."""
    return [message_id(ledger=9, entry_id=entry_id, index=index, size=size) for index in range(size)]


def message_id(*, ledger: int, entry_id: int, index: int, size: int) -> Any:
    """Return `MessageIdData` of PulsarApi.proto as the client reads it: each number is below 16,384."""
    fields = {1: ledger, 2: entry_id, 4: index, 6: size}
    data = bytes(byte for field, number in fields.items() for byte in (field << 3, number & 0x7F | 0x80, number >> 7))
    return _pulsar.MessageId.deserialize(data)


def test_the_client_is_asked_about_the_ends_of_a_batched_run_alone(batched: Sending) -> None:
    (producer,) = batched.client.producers
    heard = [callback is not None for callback in producer.sent[ALONE : BATCHED_LAST + 1]]
    assert heard == [True, *[False] * (MOST_BATCHED - 2), True]


@pytest.mark.parametrize("cut", [0, 1, 2, 20, MOST_BATCHED - 1])
def test_all_of_a_run_in_two_entries_are_stored_where_they_lie(batched: Sending, cut: int) -> None:
    ids = [*entry(1, 5 + cut)[5:], *entry(2, MOST_BATCHED - cut + 3)[: MOST_BATCHED - cut]]
    (producer,) = batched.client.producers
    producer.sent[ALONE](R.Ok, ids[0])
    producer.sent[BATCHED_LAST](R.Ok, ids[-1])
    assert outcomes(batched, MOST_BATCHED) == [None] * MOST_BATCHED
    told = [(timer.message_id.entry_id(), timer.message_id.batch_index()) for timer in batched.timers]
    assert told == [(one.entry_id(), one.batch_index()) for one in ids]


def test_what_may_lie_in_a_third_entry_is_sent_again_alone(batched: Sending) -> None:
    (producer,) = batched.client.producers
    producer.sent[ALONE](R.Ok, entry(1, 5)[0])
    producer.sent[BATCHED_LAST](R.Ok, entry(3, 5)[-1])
    assert outcomes(batched, 2) == [None, None]
    batched.rounds(1)
    eventually(lambda: len(producer.sent) == LAST + 1 + MOST_BATCHED - 2)


@pytest.mark.parametrize("unknown", ["first", "last", "both"])
def test_a_run_whose_end_is_unknown_is_unknown_but_for_what_is_stored(batched: Sending, unknown: str) -> None:
    (producer,) = batched.client.producers
    for end, number in (("first", ALONE), ("last", BATCHED_LAST)):
        lost = unknown in (end, "both")
        producer.sent[number](R.Timeout if lost else R.Ok, STORED_NOT if lost else entry(1, 20)[3])
    stored = 0 if unknown == "both" else 1
    told = outcomes(batched, MOST_BATCHED)
    assert Counter(told) == Counter({None: stored, SendOutcomeUnknown.__name__: MOST_BATCHED - stored})


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), data=st.data())
def test_places_follow_from_both_ends_just_if_these_lie_in_the_same_or_in_neighbouring_entries(
    sizes: list[int], data: st.DataObject
) -> None:
    places = [Place(1, number, index, size) for number, size in enumerate(sizes) for index in range(size)]
    at = data.draw(st.integers(0, len(places) - 1))
    to = data.draw(st.integers(at, len(places) - 1))
    found = places_between(places[at], places[to], to - at - 1) if to > at else []
    if places[to].entry - places[at].entry <= 1:
        assert found == [place[:3] for place in places[at + 1 : to]]
    else:
        assert found is None


def test_a_run_is_halved_after_one_that_was_cut_in_pieces_and_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "tells_entries", lambda _: True)
    split = Runs(1_000, 1_000, in_order=True)
    pooled: PooledProducer[tuple[str, int]] = PooledProducer(("tier", 0), None, lambda: None, None)
    outgoing = Outgoing("tier", 0, "relay", b"x", {}, None, None, None, 0, "id", 0, 0)

    def lengths(payload: bytes = b"x") -> list[int]:
        sends = [Send(outgoing._replace(payload=payload), lambda _: None, None) for _ in range(TOGETHER)]
        for send in sends:
            send.pooled = pooled
        return [len(run) for run in split.of(sends)]

    assert lengths() == [MOST_BATCHED] * (TOGETHER // MOST_BATCHED)
    assert lengths(bytes(300)) == [3] * (TOGETHER // 3) + [TOGETHER % 3], "no more bytes than a batch takes"
    for first, last in ((entry(1, 1)[0], entry(3, 1)[0]), (entry(1, 1)[0], entry(2, 2)[1])):
        run = [Send(outgoing, lambda _: None, None) for _ in range(3)]
        for send, message_id in zip(run, (first, None, last), strict=True):
            send.pooled = PooledProducer(("tier", 0), None, lambda: None, lambda *_: None)
            send.start_in_run(is_heard=send is run[0])
            if message_id is not None:
                (send.answer.setdefault if send is run[0] else send)(R.Ok, message_id)  # type: ignore[union-attr]
        split.tell(run[:2], run[2])
        assert lengths()[0] in (MOST_BATCHED // 2, MOST_BATCHED // 2 + 1)
    assert lengths()[0] == MOST_BATCHED // 2 + 1


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
        # How many wait when the producer is open is chance: all are one run then, or the first of them go alone.
        assert 2 <= sum(isinstance(callback, Send) for callback in sent.sent) <= ALONE + 1 < LAST
        answer(sent, range(LAST + 1))
        timers = await asyncio.gather(*sends)
        await producer.close()
        return [timer.message_id.entry_id() for timer in timers]

    assert sorted(asyncio.run(send())) == list(range(LAST + 1))
