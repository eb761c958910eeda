"""Sends of a named producer while its broker is gone: why relays give theirs no send time-out."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.broker.due_topic import make_plan
from timewheel.core.names import partition_topic
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.testing import LocalPulsar

ANSWER_S = 60


class Sender:
    """Sends numbers by a named producer."""

    def __init__(self, client: Any, topic: str, timeout_ms: int) -> None:
        self._producer = client.create_producer(
            topic, producer_name="one", batching_enabled=False, send_timeout_millis=timeout_ms
        )
        self._answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()

    def send(self, number: int) -> None:
        self._producer.send_async(b"%d" % number, lambda *given: self._answers.put(given), sequence_id=number)

    def answer(self) -> tuple[Any, Any]:
        return self._answers.get(timeout=ANSWER_S)

    def await_connection(self) -> None:
        eventually(self._producer.is_connected, ANSWER_S)  # the client pauses between attempts for seconds

    def close(self) -> None:
        self._producer.close()


def stored(client: Any, topic: str) -> list[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(10_000).data()))
    return numbers


@pytest.mark.parametrize(
    ("timeout_ms", "found"), [pytest.param(1_000, [1, 4], marks=pytest.mark.short), (0, [1, 2, 3, 4])]
)
def test_after_a_send_time_out_later_messages_are_stored_and_the_numbers_of_the_earlier_ones_are_taken(
    mortal: LocalPulsar, connect: Connect, topic: str, timeout_ms: int, found: list[int]
) -> None:
    make_plan(mortal, topic)  # its due topic is deduplicated
    client, part = connect(mortal), partition_topic(topic, 0)
    sender = Sender(client, part, timeout_ms)
    sender.send(1)
    assert sender.answer()[0] == pulsar.Result.Ok
    mortal.kill()
    sender.send(2)
    sender.send(3)
    if timeout_ms:
        assert [sender.answer()[0] for _ in range(2)] == [pulsar.Result.Timeout] * 2
    sender.send(4)
    if timeout_ms:
        assert sender.answer()[0] == pulsar.Result.Timeout
        mortal.start()
        sender.await_connection()
        sender.send(4)
        assert sender.answer()[0] == pulsar.Result.Ok
    else:
        mortal.start()
        assert [sender.answer()[0] for _ in range(3)] == [pulsar.Result.Ok] * 3
    sender.close()
    again = Sender(client, part, timeout_ms)
    again.send(2)
    result, place = again.answer()
    assert (result, place.ledger_id()) == (pulsar.Result.Ok, -1), "dropped as seen before, though it may not be stored"
    assert stored(client, part) == found
