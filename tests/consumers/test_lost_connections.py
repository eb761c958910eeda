"""A message that waits between the client and the engine while its connection is lost, by a client that is made up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.consumers.support import engine
from tests.consumers.test_receiver import NothingPublished
from tests.support.client_messages import client_message
from timewheel.client.hooks import Hooks
from timewheel.consumers import aio
from timewheel.consumers.aio import Feed
from timewheel.consumers.consumer import QUEUED_PER_WORKER, Run
from timewheel.consumers.message import DelayedMessage, InFlight, arrival_of
from timewheel.consumers.receiver import LOOK_MS, Receiver
from timewheel.consumers.source import Intake, Partition
from timewheel.core.clock import SystemClock
from timewheel.testing import eventually

T = TypeVar("T")


class Client:
    """A client's consumer: its messages come when a test says so, as does the loss of its connection."""

    def __init__(self) -> None:
        self.is_up = True
        self.coming: SimpleQueue[Any] = SimpleQueue()
        self.given_back = 0

    def is_connected(self) -> bool:
        return self.is_up

    def receive(self) -> Any:
        return self.coming.get()

    def acknowledge(self, message: Any) -> None:
        """Take it."""

    def negative_acknowledge(self, message: Any) -> None:
        del message
        self.given_back += 1


class Recording(SystemClock):
    """Keeps how long each wait for a message was to take at most."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []

    def get(self, queue: SimpleQueue[T], timeout_ms: int) -> T:
        self.waits_ms.append(timeout_ms)
        return super().get(queue, timeout_ms)


class Under:
    """A receiver with one partition."""

    def __init__(self) -> None:
        self.clock = clock = Recording()
        hooks = Hooks(())
        self.client = Client()
        consumer: Any = self.client
        self.partition = Partition("due-partition-0", consumer, clock, hooks, lambda _: None)
        self.partitions = (self.partition,)
        self.replaced = 0
        self.intake = Intake(clock, arrival_of)
        self.receive = self.intake.receive
        self.intake.add(self.partition)
        source: Any = self
        republisher: Any = NothingPublished()
        self.receiver = Receiver(
            source, engine(), republisher, pace=None, questions=None, sorts=False, redelivery_delay_ms=0,
            clock=clock, hooks=hooks,
        )  # fmt: skip

    def comes(self, entry: int = 0) -> None:
        self.client.coming.put(client_message(at=(1, entry, -1)))
        eventually(lambda: not self.intake._queue.empty(), 10)

    def goes(self) -> None:
        self.client.is_up = False

    def is_seen(self) -> None:
        self.partition.is_lost()

    def is_back(self) -> None:
        self.client.is_up = True

    def is_replaced(self) -> None:
        self.partition.replace(self.partition.consumer)


HANDED, GIVEN_BACK, DROPPED = "handed", "given back", "dropped"


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ([Under.comes], HANDED),
        ([Under.goes, Under.is_seen, Under.is_back, Under.comes], HANDED),
        ([Under.comes, Under.goes], DROPPED),
        ([Under.comes, Under.goes, Under.is_seen], DROPPED),
        ([Under.goes, Under.comes, Under.is_back], DROPPED),
        ([Under.goes, Under.is_seen, Under.comes, Under.is_back], DROPPED),
        # It may as well have come on the new connection, and then the broker sends it again only if asked to.
        ([Under.comes, Under.goes, Under.is_seen, Under.is_back], GIVEN_BACK),
    ],
)
def test_a_message_of_a_lost_connection_is_not_handed_out_and_none_is_forgotten_that_the_broker_keeps_here(
    steps: list[Callable[[Under], None]], end: str
) -> None:
    under = Under()
    for step in steps:
        step(under)
    timer = under.receiver.next(20)
    given_back = {0: DROPPED, 1: GIVEN_BACK}[under.client.given_back]
    assert (HANDED if timer else given_back) == end
    assert (under.partition.quiet_since_ms() is None) == (end == HANDED)


@pytest.mark.parametrize("steps", [[Under.goes, Under.is_seen, Under.is_back], [Under.is_replaced]])
def test_a_loss_that_a_worker_sees_while_a_message_is_on_its_way_to_the_engine_is_not_overlooked(
    steps: list[Callable[[Under], None]],
) -> None:
    under = Under()
    under.comes()

    def receive(timeout_ms: int) -> Any:
        arrival = under.intake.receive(timeout_ms)
        for step in steps:
            step(under)
        return arrival

    under.receive = receive
    assert under.receiver.next(20) is None
    assert under.client.given_back == 1


def test_a_timer_that_waits_for_its_handler_is_looked_after_as_one_that_is_held() -> None:
    under = Under()
    under.comes()
    assert under.receiver.next(20) is not None
    del under.clock.waits_ms[:]
    assert under.receiver.next(3 * LOOK_MS) is None
    assert max(under.clock.waits_ms) <= LOOK_MS


def by_workers(under: Under, ended: threading.Event, handled: list[DelayedMessage]) -> threading.Thread:
    """Run with one worker, which is busy until the end."""

    def handle(message: DelayedMessage) -> None:
        handled.append(message)
        ended.wait()

    def taken(timer: InFlight) -> DelayedMessage | None:
        return DelayedMessage(timer, 0) if under.receiver.begins(timer) else None

    outcomes: Any = SimpleNamespace(returned=under.receiver.done, given_back=lambda _: None)
    run = Run(
        under.receiver, taken=taken, middlewares=None, outcomes=outcomes, clock=under.clock, hooks=Hooks(()),
        is_stopping=ended.is_set, stop=ended.set,
    )  # fmt: skip
    return threading.Thread(target=run.until_stopped, args=(handle, 1, 1_000))


def by_a_loop(under: Under, ended: threading.Event, handled: list[DelayedMessage]) -> threading.Thread:
    """Feed a loop that takes nothing."""
    del handled
    with closing(asyncio.new_event_loop()) as loop:
        feed = Feed(under.receiver, loop, under.clock, ended.is_set)
    feed._call = lambda: None  # type: ignore[method-assign]  # it need not wake up
    return feed._thread


@pytest.mark.parametrize("by", [by_workers, by_a_loop])
def test_a_loss_is_seen_while_no_more_timers_can_be_taken(by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "MAX_WAITING", 1)
    under, ended, handled = Under(), threading.Event(), list[DelayedMessage]()
    thread = by(under, ended, handled)
    thread.start()
    for entry in range(QUEUED_PER_WORKER + 2):
        under.client.coming.put(client_message(at=(1, entry, -1)))
    eventually(lambda: under.receiver.counts.handed == (1 if by is by_a_loop else QUEUED_PER_WORKER + 2), 10)
    under.goes()
    eventually(lambda: under.receiver.counts.let_go > 0, 10)
    under.is_back()
    ended.set()
    thread.join()
    assert len(handled) == (by is by_workers), "no handler begins with what another replica may have"
