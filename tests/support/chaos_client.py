"""The client of a process that chaos tests kill: it records every hop and every business acknowledgement."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.chaos_ledger import now_ms
from tests.support.through import Through, ThroughClient
from timewheel.client.positions import Position
from timewheel.core.envelope import ID_PROPERTY
from timewheel.core.names import RELAY_SUBSCRIPTION


class Stalled(Through):
    def send_async(self, *_: Any, **__: Any) -> None:
        """Accept a message and never send it: the process dies before the topic is back."""


def traced(client: Any, path: Path) -> ThroughClient:
    """Record each operation of a relay on every message, to find out how a timer went missing."""
    trace = _Trace(path)
    return ThroughClient(
        client,
        consumer=lambda made, topic, subscription: (
            _TracedConsumer(made, topic, trace) if subscription == RELAY_SUBSCRIPTION else made
        ),
        producer=lambda made, topic, name: _TracedProducer(made, topic, name, trace),
    )


class _Trace:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, what: str, topic: str, *words: object) -> None:
        line = f"{now_ms()} {os.getpid()} {what} {topic.rsplit('/', 1)[1]} {' '.join(map(str, words))}\n"
        os.write(self._fd, line.encode())


class _TracedConsumer(Through):
    def __init__(self, inner: Any, topic: str, trace: _Trace) -> None:
        super().__init__(inner)
        self._topic, self._trace = topic, trace
        trace("subscribed", topic)

    def receive(self, timeout_millis: int | None = None) -> Any:
        message = self._inner.receive(timeout_millis)
        self._trace("received", self._topic, *Position.of(message.message_id()), message.properties()[ID_PROPERTY])
        return message

    def acknowledge_cumulative(self, message: Any) -> None:
        self._inner.acknowledge_cumulative(message)
        self._trace("acknowledged", self._topic, *Position.of(message))

    def close(self) -> None:
        self._trace("closing", self._topic)
        self._inner.close()


class _TracedProducer(Through):
    def __init__(self, inner: Any, topic: str, name: str, trace: _Trace) -> None:
        super().__init__(inner)
        self._topic, self._name, self._trace = topic, name, trace
        trace("opened", topic, name)

    def send_async(self, content: Any, callback: Any, **options: Any) -> None:
        sequence_id = options.get("sequence_id") or 0
        words = sequence_id >> 32, sequence_id >> 12 & 0xFFFFF, (sequence_id & 0xFFF) - 1
        timer_id = options["properties"][ID_PROPERTY]

        def told(result: Any, message_id: Any) -> None:
            position = Position.of(message_id) if not result.value else ""
            self._trace("stored", self._topic, *words, timer_id, result.name, position)
            callback(result, message_id)

        self._trace("sent", self._topic, *words, timer_id, self._name)
        self._inner.send_async(content, told, **options)

    def close(self) -> None:
        self._trace("closes", self._topic, self._name)
        self._inner.close()
