"""A client whose producers give the results that a test gives, and a producer on it whose clock stands still."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import _pulsar

from tests.support.manual_clock import LOOK_S, ManualClock
from tests.support.plans import plan_of
from timewheel.client.producer_pool import ROUND_MS, SLACK_MS
from timewheel.core import Plan, Tiered
from timewheel.core.durations import HOUR_MS
from timewheel.core.errors import TimewheelError
from timewheel.core.names import partition_topic
from timewheel.hooks import Event
from timewheel.producers import DelayedProducer, Timer
from timewheel.producers.dispatcher import LINGER_MS
from timewheel.producers.pool import SEND_TIMEOUT_MS
from timewheel.testing import eventually

PLAN = plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)))
SOON = dt.timedelta(minutes=1)
R = _pulsar.Result
DEADLINE_MS = SEND_TIMEOUT_MS + SLACK_MS
STORED = _pulsar.MessageId(-1, 7, 1, -1)
STORED_NOT = _pulsar.MessageId(-1, -1, -1, -1)


class Producer:
    """A producer of a client, whose results the test gives."""

    def __init__(self) -> None:
        self.sent: list[Callable[[Any, Any], None]] = []
        self.refuses: dict[int, Any] = {}  # result on the spot, by the number of the message
        self.connected = True
        self.closes = 0

    def send_async(self, _content: Any, callback: Callable[[Any, Any], None], **_: Any) -> None:
        number = len(self.sent)
        self.sent.append(callback)
        if number in self.refuses:
            callback(self.refuses[number], STORED_NOT)

    def is_connected(self) -> bool:
        return self.connected

    def flush(self) -> None:
        """Wait for a broker that never answers, as the client does."""
        SimpleQueue[None]().get()

    def close(self) -> None:
        self.closes += 1


class Client:
    """A client that opens producers at once; while it hangs, when the test lets it."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.hangs = False
        self.opening: list[SimpleQueue[Exception | None]] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [partition_topic(topic, 0)]

    def create_producer(self, topic: str, *_: Any, **__: Any) -> Producer:  # noqa: ARG002 - the client's name of it
        if self.hangs:
            ended: SimpleQueue[Exception | None] = SimpleQueue()
            self.opening.append(ended)
            if (error := ended.get()) is not None:
                raise error
        self.producers.append(Producer())
        return self.producers[-1]

    def subscribe(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this stands in for a client that only sends")

    create_reader = subscribe


class Sending:
    """A producer whose clock stands still, with the outcomes of its sends."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.client, self.clock = Client(), ManualClock()
        self.events: list[Event] = []
        self.outcomes: SimpleQueue[TimewheelError | None] = SimpleQueue()
        self.timers: list[Timer] = []  # in the order of the outcomes
        self.producer = DelayedProducer(self.client, plan, clock=self.clock, hooks=(self.events.append,))

    def send(self, deliver_after: dt.timedelta = SOON) -> None:
        self.producer.send_async(b"x", self._ended, deliver_after=deliver_after)

    def outcome(self) -> TimewheelError | None:
        eventually(lambda: not self.outcomes.empty() or (self._until_next_round() is None and None), poll=LOOK_S)
        return self.outcomes.get()

    def replaced(self) -> None:
        eventually(lambda: self.producer.counts.replaced)

    def has_tried(self, attempts: int) -> bool:
        return len(self.client.opening) == attempts

    def rounds(self, count: int) -> None:
        now = self.producer._pool.round
        for number in range(now + 1, now + count + 1):
            self.clock.advance(eventually(self._until_next_round, poll=LOOK_S))
            eventually(partial(self._is_in_round, number), poll=LOOK_S)

    def _is_in_round(self, number: int) -> bool:
        return self.producer._pool.round == number

    def _until_next_round(self) -> int | None:
        left_ms = [left_ms for left_ms in self.clock.left_ms if left_ms <= ROUND_MS]  # others wait for an opening
        if left_ms != [LINGER_MS]:
            return max(left_ms, default=None)
        self.clock.advance(LINGER_MS)
        return None

    def _ended(self, error: TimewheelError | None, timer: Timer) -> None:
        self.timers.append(timer)
        self.outcomes.put(error)

    def close(self) -> None:
        """End the producer without a wait for what has no outcome."""
        self.producer._limiter.drain(self.clock, 0)
        self.producer._dispatcher.stop(0)
