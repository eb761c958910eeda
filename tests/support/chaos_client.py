"""The client of a process that chaos tests kill: it records every hop and every business acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.chaos_ledger import Ledger, now_ms
from tests.support.through import Through
from timewheel.client.positions import Position
from timewheel.core.envelope import ID_PROPERTY, Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION


class WatchedClient(Through):
    """A client that records business acknowledgements, and can hold back sends."""

    def __init__(
        self,
        inner: Any,
        *,
        ledger: Ledger,
        subscription: str,
        stalled: str | None,
        trace: Path | None,
        acknowledged: Callable[[Any], None],
    ) -> None:
        super().__init__(inner)
        self._subscription = subscription
        self._stalled_in = stalled
        self._ledger = ledger
        self._acknowledged = acknowledged
        self._trace = None if trace is None else _Trace(trace)

    def subscribe(self, topic: Any, subscription_name: str, **options: Any) -> Any:
        consumer = self._inner.subscribe(topic, subscription_name, **options)
        if self._trace is not None and subscription_name == RELAY_SUBSCRIPTION:
            return _TracedConsumer(consumer, topic, self._trace)
        return _Consumer(consumer, self._acknowledged) if subscription_name == self._subscription else consumer

    def create_producer(self, topic: str, **options: Any) -> Any:
        name = options.get("producer_name", "")
        producer = _Producer(self._inner.create_producer(topic, **options), name, self._ledger)
        if self._trace is not None:
            return _TracedProducer(producer, topic, name, self._trace)
        return _Stalled(producer) if self._stalled_in is not None and self._stalled_in in topic else producer


class _Consumer(Through):
    def __init__(self, inner: Any, acknowledged: Callable[[Any], None]) -> None:
        super().__init__(inner)
        self._acknowledged = acknowledged

    def acknowledge(self, message: Any) -> None:
        self._inner.acknowledge(message)
        self._acknowledged(message)


class _Producer(Through):
    """Records every hop before it is sent."""

    def __init__(self, inner: Any, name: str, ledger: Ledger) -> None:
        super().__init__(inner)
        self._name = name
        self._ledger = ledger

    def send_async(self, content: Any, callback: Any, **options: Any) -> None:
        envelope = Envelope.read(options["properties"])
        if envelope is not None:
            sequence_id = options.get("sequence_id") or 0
            self._ledger.hop(envelope.timer_id, envelope.hops, self._name if sequence_id else "", sequence_id)
        self._inner.send_async(content, callback, **options)


class _Stalled(Through):
    def send_async(self, *_: Any, **__: Any) -> None:
        """Accept a message and never send it: the process dies before the topic is back."""


class _Trace:
    """Records each operation of a relay on every message, to find out how a timer went missing."""

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
