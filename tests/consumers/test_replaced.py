"""A consumer of the client that stays away is replaced once a broker serves its topic, by a client that is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace
from typing import Any, TypeVar

import pulsar
import pytest

from tests.consumers.support import engine
from tests.consumers.test_receiver import NothingPublished
from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import LOST_AFTER_MS, Hooks
from timewheel.client.reopening import ATTEMPT_MS
from timewheel.consumers.message import InFlight
from timewheel.consumers.receiver import Receiver
from timewheel.consumers.source import Source, Subscribing
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Native, Plan
from timewheel.hooks import Event as Told
from timewheel.testing import eventually

T = TypeVar("T")
PLAN = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=Native(), partitions=2)


class Consumer:
    """A client's consumer: its messages come when a test says so, as does the loss of its connection."""

    def __init__(self) -> None:
        self.is_up = True
        self.is_closed = False
        self.coming: SimpleQueue[Any] = SimpleQueue()
        self.acknowledged: list[Any] = []
        self.on_acknowledge: Callable[[], None] = lambda: None

    def is_connected(self) -> bool:
        return self.is_up

    def receive(self) -> Any:
        message = self.coming.get()
        if message is None:
            raise pulsar.AlreadyClosed("receive")
        return message

    def acknowledge(self, message: Any) -> None:
        self.on_acknowledge()
        if self.is_closed:
            raise pulsar.AlreadyClosed("acknowledge")
        self.acknowledged.append(message)

    def close(self) -> None:
        self.is_closed = True
        self.coming.put(None)


class Client:
    """A client of brokers that serve its topics when a test says so."""

    def __init__(self) -> None:
        self._client = self
        self.is_served = False
        self.tried: list[str] = []
        self.opened: list[Consumer] = []
        self.on_subscribe: Callable[[], None] = lambda: None

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-{number}" for number in range(PLAN.partitions)]

    def subscribe(self, *_: Any, **__: Any) -> Consumer:
        self.on_subscribe()
        self.opened.append(Consumer())
        return self.opened[-1]

    def create_producer_async(self, topic: str, _: Any, on_opened: Callable[[Any, Any], None]) -> None:
        self.tried.append(topic)
        name = "Ok" if self.is_served else "Timeout"
        on_opened(SimpleNamespace(value=not self.is_served, name=name), SimpleNamespace(close_async=lambda _: None))


class Passing(ManualClock):
    """Lets time pass while a receiver waits in vain."""

    def get(self, queue: SimpleQueue[T], timeout_ms: int) -> T:
        if queue.empty():
            self.advance(max(timeout_ms, 1))
        return queue.get_nowait()


class World:
    """A receiver whose source has two partitions; only the first one loses its connection."""

    def __init__(self) -> None:
        self.clock = Passing()
        self.client = Client()
        self.events: list[Told] = []
        client: Any = self.client
        hooks = Hooks((self.events.append,))
        subscribing = Subscribing(
            client, PLAN, "s", consumer_type=pulsar.ConsumerType.Shared, schema=None, options={},
            clock=self.clock, hooks=hooks,
        )  # fmt: skip
        self.source = Source(subscribing, PLAN, None, self.clock, hooks)
        republisher: Any = NothingPublished()
        self.receiver = Receiver(
            self.source, engine(), republisher, pace=None, questions=None, sorts=False, redelivery_delay_ms=0,
            clock=self.clock, hooks=hooks,
        )  # fmt: skip
        self.source.start()
        self.partition = self.source.partitions[0]
        self.first: Any = self.partition.consumer

    def comes(self, consumer: Consumer, number: int, due_ms: int = 0) -> InFlight | None:
        """Let a message come; the timer that is then handed out, if any."""
        properties = Envelope(f"t{number}", due_ms, 0).properties()
        consumer.coming.put(client_message(properties, at=(1, number, -1)))
        before, handed = self.receiver.counts.received, []

        def is_received() -> bool:
            handed.append(self.receiver.next(0))
            return self.receiver.counts.received > before

        eventually(is_received, 10)
        return handed[-1]

    def away(self) -> None:
        """The first partition stays away until it is to be opened anew."""
        self.first.is_up = False
        self.client.is_served = True
        for _ in range(3):
            self.receiver.next(LOST_AFTER_MS)

    def replaced(self) -> Consumer:
        """The consumer in its place."""
        eventually(lambda: self.first.is_closed, 10)
        found: Any = self.partition.consumer
        assert found is self.client.opened[-1]
        return found


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.receiver.close()


def test_another_is_opened_once_a_broker_serves_the_topic_and_not_before(world: World) -> None:
    world.first.is_up = False
    for _ in range(5):
        world.receiver.next(LOST_AFTER_MS)
    assert {*world.client.tried} == {world.partition.topic}
    assert len(world.client.opened) == PLAN.partitions, "nothing is opened in vain"
    world.away()
    other = world.replaced()
    assert world.comes(other, 1) is not None
    world.receiver.next(2 * LOST_AFTER_MS)
    assert len(world.client.opened) == PLAN.partitions + 1
    assert world.receiver.counts.replaced == 1
    assert [event.name for event in world.events] == ["connection_lost", "consumer_replaced", "connection_back"]


def test_what_a_handler_has_is_acknowledged_on_the_other_and_what_waits_comes_again(world: World) -> None:
    begun = world.comes(world.first, 1)
    assert begun is not None
    assert world.receiver.begins(begun)
    due_ms = world.clock.now_ms() + 60_000
    assert world.comes(world.first, 2, due_ms) is None
    world.away()
    other = world.replaced()
    world.receiver.done(begun)
    assert (len(world.first.acknowledged), len(other.acknowledged)) == (0, 1)
    assert world.comes(other, 1) is None, "it is handled, and acknowledged once more"
    assert len(other.acknowledged) == 2
    assert world.comes(other, 2, due_ms) is None
    assert (world.receiver.counts.held, world.receiver.counts.let_go) == (1, 1)


def test_an_acknowledgement_that_meets_the_end_of_the_former_is_made_on_the_other(world: World) -> None:
    begun = world.comes(world.first, 1)
    assert begun is not None

    def replace() -> None:
        world.away()
        world.replaced()

    world.first.on_acknowledge = replace
    world.receiver.done(begun)
    assert len(world.client.opened[-1].acknowledged) == 1


def test_what_came_by_the_former_at_the_last_moment_comes_again(world: World) -> None:
    assert world.comes(world.first, 1, world.clock.now_ms() + 100) is None
    world.partition.replace(Consumer())  # type: ignore[arg-type]
    assert world.receiver.next(200) is None
    assert world.receiver.counts.let_go == 1


def test_the_former_may_be_closed_while_its_message_is_read(world: World) -> None:
    read = world.source._intake._read

    def close(message: Any, partition: Any, session: int | None = 0, /) -> Any:
        world.source._intake.close(world.first)
        return read(message, partition, session)

    world.source._intake._read = close
    assert world.comes(world.first, 1) is not None


def test_the_former_stays_if_it_is_back_before_the_other_is_open(world: World) -> None:
    def come_back() -> None:
        world.first.is_up = True

    world.client.on_subscribe = come_back
    world.away()
    eventually(lambda: world.client.opened[-1].is_closed, 10)
    assert (world.partition.consumer, world.first.is_closed) == (world.first, False)
    world.source._replace(world.partition)
    assert len(world.client.opened) == PLAN.partitions + 1, "a late attempt opens nothing"
    assert world.comes(world.first, 1) is not None


def test_an_opening_that_fails_is_tried_again(world: World) -> None:
    failures = iter([pulsar.Timeout("subscribe"), pulsar.TopicNotFound("subscribe")])

    def fail() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    world.client.on_subscribe = fail
    world.away()
    eventually(lambda: (world.receiver.next(ATTEMPT_MS), world.first.is_closed)[1], 10)
    assert world.comes(world.replaced(), 1) is not None


def test_an_opening_that_ends_after_the_close_is_closed_at_once(world: World) -> None:
    is_opening, may_end = Event(), Event()

    def wait() -> None:
        is_opening.set()
        assert may_end.wait(10)

    world.client.on_subscribe = wait
    world.away()
    assert is_opening.wait(10)
    world.receiver.close()
    may_end.set()
    eventually(lambda: len(world.client.opened) > PLAN.partitions and world.client.opened[-1].is_closed, 10)
    assert world.receiver.counts.replaced == 0
