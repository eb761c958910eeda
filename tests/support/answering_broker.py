"""A client whose broker answers every message with a result that the test chooses."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import pulsar

from timewheel.core.names import partition_topic


class AnsweringClient:
    """Opens producers that report the same result for each message.

    Args:
        result: A `pulsar.Result`.

    Attributes:
        sent: The properties of each message, in order.
    """

    def __init__(self, result: Any = pulsar.Result.Ok) -> None:
        self.result = result
        self.sent: list[Mapping[str, str]] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [partition_topic(topic, 0)]

    def create_producer(self, *_: Any, **__: Any) -> AnsweringProducer:
        return AnsweringProducer(self)

    def subscribe(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("this stands in for a client that only sends")

    create_reader = subscribe


class AnsweringProducer:
    def __init__(self, client: AnsweringClient) -> None:
        self._client = client

    def send_async(self, _: Any, callback: Any, *, properties: Mapping[str, str], **__: Any) -> None:
        self._client.sent.append(properties)
        # Never from inside the call: the client itself calls back there when it refuses a message.
        answer = (self._client.result, pulsar.MessageId(3, 7, 11, -1))
        threading.Thread(target=callback, args=answer, name="test-answer").start()

    def flush(self) -> None:
        """Do nothing: no message waits for a batch to fill."""

    def close(self) -> None:
        """Do nothing: no connection is open."""
