"""What a consumer is given of good and of odd messages, and whether each good one came once and in its time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pulsar

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS, Stage
from tests.broker.shadow_stage import ShadowStage
from timewheel.broker.protocol.entries import Entry
from timewheel.consumers import DelayedConsumer
from timewheel.core.clock import SystemClock
from timewheel.shadow.machine.cursors import Acked, stretches_of
from timewheel.shadow.stored_entries import entries_in
from timewheel.testing import eventually

GOOD = "good-"  # how the payload of a good message begins
TICK_MS = 1_050  # so much before its time a broker may hand out what it delays itself


class Handled:
    """What one consumer was given."""

    def __init__(self, due_ms: int, *, least_late_ms: int = 0) -> None:
        self._due_ms = due_ms
        self._least_late_ms = least_late_ms
        self.good: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self._late_ms: dict[str, int] = {}

    @classmethod
    def by(cls, stage: Stage, due_ms: int, stack: ExitStack) -> Handled:
        """Those of a consumer with the SDK, which is closed with the stack."""
        handled = cls(due_ms)
        consumer = DelayedConsumer(stage.client, stage.plan, BUSINESS, relay=False, hooks=(stage.events,))
        thread = threading.Thread(target=consumer.run, args=(handled.add,), daemon=True)
        thread.start()
        stack.callback(consumer.close)
        stack.callback(thread.join)
        stack.callback(consumer.stop)
        return handled

    @classmethod
    def plainly_by(cls, stage: Stage, due_ms: int, stack: ExitStack, **options: Any) -> Handled:
        """Those of a plain consumer of the due topic, which is closed with the stack."""
        handled = cls(due_ms, least_late_ms=-TICK_MS)
        shared = pulsar.ConsumerType.Shared
        consumer = stage.client.subscribe(stage.plan.due_topic, BUSINESS, consumer_type=shared, **options)
        ends = threading.Event()

        def run() -> None:
            while not ends.is_set():
                try:
                    message = consumer.receive(200)
                except pulsar.Timeout:
                    continue
                handled.add(message)
                consumer.acknowledge(message)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        stack.callback(consumer.close)
        stack.callback(thread.join)
        stack.callback(ends.set)
        return handled

    def add(self, message: Any) -> None:
        """Handle one."""
        payload = message.data()
        if payload.startswith(GOOD.encode()):
            name = payload.decode()
            self._late_ms.setdefault(name, now_ms() - self._due_ms)
            self.good[name] += 1
            return
        try:
            properties = message.properties()
        except UnicodeDecodeError:
            properties = {}
        self.odd[known_by(payload, properties)] += 1

    def await_good(self, wanted: Iterable[str], patience_s: float) -> dict[str, object]:
        """Wait for all of these; they came once each, and none early.

        Returns:
            Figures for the page of evidence.
        """
        names = set(wanted)

        def all_came() -> bool:
            assert sorted(names.difference(self.good)) == []
            return True

        eventually(all_came, patience_s + (self._due_ms - now_ms()) / 1_000, poll=0.2)
        assert [name for name, times in self.good.items() if times > 1] == []
        assert min(self._late_ms.values()) >= self._least_late_ms
        return {"good ones": len(names), "lost": 0, "twice": 0, "early": 0, "latest ms": max(self._late_ms.values())}


def known_by(payload: bytes, properties: Mapping[str, str]) -> str:
    """The name of an odd message: of a batch's, without its number."""
    if (name := properties.get("odd")) is None:
        text = payload.partition(b"\n")[0].decode(errors="replace")
        name = text.removeprefix("odd ") if text.startswith("odd ") else properties.get("tw-id", text)
    return name.partition(" #")[0]


def unacknowledged(stage: ShadowStage, topic: str, subscription: str) -> Iterator[Entry]:
    """The entries of a topic's first partition that are not acknowledged."""
    part = stage.names.part(topic, 0)
    stats = stage.admin.topics.internal_stats(part)
    cursor = stats.cursors[subscription]
    acked = Acked.of(cursor)
    for stretch in stretches_of(stats.ledgers, cursor.mark_delete, 1 << 62):
        for entries in entries_in(stage.dialer, part, stretch, SystemClock(), keep_payload=True):
            yield from (entry for entry in entries if entry.position not in acked)
