"""A client whose broker answers every message with a result that the test chooses."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pulsar

from tests.support.silent_broker import SilentClient, SilentProducer


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
