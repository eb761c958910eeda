"""A Failover subscription and its relays without any broker: deliveries, and the relays that believe their beginning.

The dispatcher works like Pulsar's `PersistentDispatcherSingleActiveConsumer`: after a change of the active consumer it
goes back to the first unacknowledged message a second later. Until then it ignores requests to redeliver, and new
permits of the active consumer fetch the messages behind the last read. A relay that has spent its queue on an encrypted
batch subscribes anew (broker-facts: encrypted-batches, false-beginning). Everything is drawn from one seeded generator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from timewheel.client.positions import Position
from timewheel.relay.machine.order import Beginning, Sign

FAILOVER_DELAY_MS = 1_000
QUEUE = 4
SEALED = 900  # messages in an encrypted batch, which the client counts as one
SILENCE_MS = 2_000


@dataclass(slots=True, eq=False)
class Consumer:
    """A consumer of the subscription; ``permits`` is the broker's figure."""

    name: str
    permits: int = QUEUE
    received: deque[int] = field(default_factory=deque)
    counted: int = 0


class Dispatcher:
    """The broker's part, by the number of messages in each entry."""

    def __init__(self, sizes: list[int], rng: random.Random) -> None:
        self.sizes = sizes
        self.now_ms = 0
        self.acknowledged = 0
        self._rng = rng
        self._consumers: list[Consumer] = []
        self._active: Consumer | None = None
        self._served: Consumer | None = None
        self._next = 0
        self._goes_back_ms: int | None = None

    def join(self, name: str) -> Consumer:
        consumer = Consumer(name)
        self._consumers.append(consumer)
        self._choose()
        self.flow(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._choose()

    def _choose(self) -> None:
        first = min(self._consumers, key=lambda consumer: consumer.name, default=None)
        if first is self._active:
            return
        self._active, self._served = first, None
        if self._goes_back_ms is None:
            self._goes_back_ms = self.now_ms + FAILOVER_DELAY_MS
        if self._rng.random() < 0.05:  # a read for the last consumer was under way
            self._go_back()

    def _go_back(self) -> None:
        self._next, self._served = self.acknowledged, self._active

    def flow(self, consumer: Consumer) -> None:
        """Take new permits; those of a consumer that is not active begin no read."""
        if consumer is self._active:
            self._served = consumer

    def redeliver(self, consumer: Consumer) -> None:
        if consumer is self._active and self._goes_back_ms is None:
            self._go_back()

    def pass_time(self) -> None:
        self.now_ms += self._rng.choice([1, 5, 20, 50])
        if self._goes_back_ms is not None and self.now_ms >= self._goes_back_ms:
            self._goes_back_ms = None
            self._go_back()
        consumer = self._served
        while consumer is not None and consumer.permits > 0:
            self._next = max(self._next, self.acknowledged)
            if self._next == len(self.sizes) or self._rng.random() < 0.3:
                return
            consumer.received.append(self._next)
            consumer.permits -= self.sizes[self._next]
            self._next += 1


class ModelRelay:
    """A relay: it subscribes, makes sure of its beginning, sends on in order, and acknowledges cumulatively.

    The order of names decides who is active; a control's beginning believes too early.
    """

    def __init__(self, world: FailoverWorld, name: str, beginning: Callable[[], Beginning]) -> None:
        self._world = world
        self._rng = world.rng
        self._name = name
        self._make = beginning
        self._carried = beginning()
        self._confirmed: int | None = None
        self._consumer: Consumer | None = None
        self._joins_ms = self._rng.randrange(3_000)
        self._received_ms = 0

    def step(self) -> None:
        broker = self._world.broker
        if self._consumer is None:
            if broker.now_ms >= self._joins_ms:
                self._begin()
            return
        while self._in_flight and self._rng.random() < 0.3:
            entry = self._in_flight.popleft()
            self._world.store(entry)
            self._confirmed = entry
            broker.acknowledged = max(broker.acknowledged, entry + 1)
            if broker.sizes[entry] == SEALED and self._is_spent:
                self._end()
                return
        if self._consumer.received and len(self._in_flight) < QUEUE:
            self._receive(self._consumer)
        elif not self._in_flight and broker.now_ms - self._received_ms > SILENCE_MS:
            self._received_ms = broker.now_ms
            self._ask(self._consumer)

    @property
    def _is_spent(self) -> bool:
        return 2 * self._uncounted >= QUEUE

    def _begin(self) -> None:
        self._consumer = self._world.broker.join(self._name)
        self._beginning = self._carried if self._confirmed is None else None
        self._expected = 0 if self._confirmed is None else self._confirmed + 1
        self._in_flight: deque[int] = deque()
        self._uncounted = 0
        self._received_ms = self._world.broker.now_ms

    def _end(self, *, at_hole: bool = False) -> None:
        assert self._consumer is not None
        self._world.broker.leave(self._consumer)
        self._consumer = None
        self._carried.outlives()
        if self._beginning is None:
            self._carried = self._make()
        if at_hole:
            self._confirmed = None
        self._joins_ms = self._world.broker.now_ms + self._rng.choice([5, 20, 100, 300])

    def _ask(self, consumer: Consumer) -> None:
        if self._beginning is not None:
            self._beginning.asked(self._world.broker.now_ms)
        if self._is_spent:
            self._end()
        else:
            self._world.broker.redeliver(consumer)

    def _receive(self, consumer: Consumer) -> None:
        broker, entry = self._world.broker, consumer.received.popleft()
        self._received_ms = broker.now_ms
        self._uncounted += broker.sizes[entry] - 1
        consumer.counted += 1
        if 2 * consumer.counted >= QUEUE:
            consumer.permits += consumer.counted
            consumer.counted = 0
            broker.flow(consumer)
        if self._beginning is not None:
            sign = self._beginning.see(Position(7, entry, -1), broker.now_ms)
            if sign is Sign.ASK:
                self._ask(consumer)
                return
            if sign is Sign.WAIT:
                return
            self._beginning = None
            self._expected = entry
        if entry == self._expected:
            self._in_flight.append(entry)
            self._expected += 1
        elif entry > self._expected:
            self._end(at_hole=True)


class FailoverWorld:
    """Entries on their way through one subscription with some relays; three of ten are encrypted batches.

    Attributes:
        lost: Entries that are acknowledged, and stored nowhere.
        repeated: Entries that are stored twice, encrypted batches not counted: their letters go without numbers.
        is_stuck: True if the relays came to no end.
    """

    def __init__(
        self, seed: int, *, relays: int, entries: int = 12, beginning: Callable[[], Beginning] = Beginning
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.broker = Dispatcher([SEALED if rng.random() < 0.3 else 1 for _ in range(entries)], rng)
        self._stored = [0] * entries
        self._mark = -1
        team = [ModelRelay(self, chr(ord("a") + number), beginning) for number in range(relays)]
        for _ in range(20_000):
            self.broker.pass_time()
            rng.choice(team).step()
            if self.broker.acknowledged == entries:
                break
        self.is_stuck = self.broker.acknowledged < entries
        self.lost = sum(not count for count in self._stored[: self.broker.acknowledged])
        single = zip(self._stored, self.broker.sizes, strict=True)
        self.repeated = sum(count > 1 for count, size in single if size == 1)

    def store(self, entry: int) -> None:
        """As a destination with deduplication, which takes no number below the highest; a dead letter has no number."""
        if self.broker.sizes[entry] == SEALED:
            self._stored[entry] += 1
        elif entry > self._mark:
            self._mark = entry
            self._stored[entry] += 1
