"""A client whose broker accepts the connection and then never answers, like a frozen broker."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

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
