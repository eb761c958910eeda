"""A message that waits between the client and the engine while its connection is lost, by a client that is made up."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from tests.consumers.support import engine
from tests.consumers.test_receiver import NothingPublished
from tests.support.client_messages import client_message
from timewheel.client.hooks import Hooks
from timewheel.consumers.message import arrival_of
from timewheel.consumers.receiver import Receiver
from timewheel.consumers.source import Intake, Partition
from timewheel.core.clock import SystemClock
from timewheel.testing import eventually


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

    def negative_acknowledge(self, message: Any) -> None:
        del message
        self.given_back += 1


class Under:
    """A receiver with one partition."""

    def __init__(self) -> None:
        clock, hooks = SystemClock(), Hooks(())
        self.client = Client()
        consumer: Any = self.client
        self.partition = Partition("due-partition-0", consumer, clock, hooks, lambda _: None)
        self.partitions = (self.partition,)
        self.intake = Intake(clock, arrival_of)
        self.receive = self.intake.receive
        self.intake.add(self.partition)
        source: Any = self
        republisher: Any = NothingPublished()
        self.receiver = Receiver(
            source, engine(), republisher, pace=None, questions=None, sorts=False, redelivery_delay_ms=0,
            clock=clock, hooks=hooks,
        )  # fmt: skip

    def comes(self) -> None:
        self.client.coming.put(client_message())
        eventually(lambda: not self.intake._queue.empty(), 10)

    def goes(self) -> None:
        self.client.is_up = False

    def is_seen(self) -> None:
        self.partition.is_lost()

    def is_back(self) -> None:
        self.client.is_up = True


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


def test_a_loss_that_a_worker_sees_while_a_message_is_on_its_way_to_the_engine_is_not_overlooked() -> None:
    under = Under()
    under.comes()

    def receive(timeout_ms: int) -> Any:
        arrival = under.intake.receive(timeout_ms)
        for step in (Under.goes, Under.is_seen, Under.is_back):
            step(under)
        return arrival

    under.receive = receive
    assert under.receiver.next(20) is None
    assert under.client.given_back == 1
