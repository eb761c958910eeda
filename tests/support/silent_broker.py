"""A client whose broker accepts the connection and never answers, as if frozen, or answers as a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import pulsar

from timewheel.core.names import partition_topic


class SilentClient:
    """Opens producers that accept every message and never report a result.

    Args:
        closes: Whether the producers close at once; else a close waits until `release`.
    """

    def __init__(self, *, closes: bool) -> None:
        self._released = threading.Event()
        self.closing: list[str] = []
        self.was_sent_to = threading.Event()
        if closes:
            self.release()

    def release(self) -> None:
        """Let every close end."""
        self._released.set()

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [partition_topic(topic, 0)]

    def create_producer(self, topic: str, **_: Any) -> SilentProducer:
        return SilentProducer(self, topic)

    def subscribe(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("this stands in for a client that only sends")

    create_reader = subscribe

    def closed(self, topic: str) -> None:
        self.closing.append(topic)
        self._released.wait()


class SilentProducer:
    def __init__(self, client: SilentClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    def send_async(self, *_: Any, **__: Any) -> None:
        self._client.was_sent_to.set()

    def is_connected(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: no message waits for a batch to fill."""

    def close(self) -> None:
        self._client.closed(self._topic)


class AnsweringClient(SilentClient):
    """Opens producers that report the same result for each message.

    Args:
        result: A `pulsar.Result`.

    Attributes:
        sent: The properties of each message, in order.
    """

    def __init__(self, result: Any = pulsar.Result.Ok) -> None:
        super().__init__(closes=True)
        self.result = result
        self.sent: list[Mapping[str, str]] = []

    def create_producer(self, topic: str, **_: Any) -> AnsweringProducer:
        return AnsweringProducer(self, topic)


class AnsweringProducer(SilentProducer):
    _client: AnsweringClient

    def send_async(self, _: Any, callback: Any, *, properties: Mapping[str, str], **__: Any) -> None:
        self._client.sent.append(properties)
        # Never from inside the call: the client itself calls back there when it refuses a message.
        answer = (self._client.result, pulsar.MessageId(3, 7, 11, -1))
        threading.Thread(target=callback, args=answer, name="test-answer").start()
