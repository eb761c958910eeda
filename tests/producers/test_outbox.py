from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from timewheel.core import SystemClock
from timewheel.producers.base_producer import Send
from timewheel.producers.dispatcher import BUSY_FROM, MAX_WAIT_MS, TOGETHER, HandoffQueue

CLOCK = SystemClock()


class Sent(Send):
    """Stands for one send."""

    def __init__(self, name: int, started: list[int], error: BaseException | None = None) -> None:
        self.name = name
        self._started = started
        self.error = error

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        self._started.append(self.name)


def unexpected(send: Any, error: Exception) -> None:
    raise AssertionError(send.name) from error


def test_while_the_client_is_not_busy_each_is_handed_over_at_once() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(lambda: BUSY_FROM - 1, unexpected, CLOCK)
    for name in range(3):
        handoff_queue.put(Sent(name, started))
        assert started[-1] == name


def test_while_it_is_busy_they_are_handed_over_together_in_order() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(lambda: BUSY_FROM, unexpected, CLOCK)
    for name in range(TOGETHER - 1):
        handoff_queue.put(Sent(name, started))
    assert started == []
    handoff_queue.put(Sent(TOGETHER - 1, started))
    assert started == list(range(TOGETHER))


def test_when_the_client_has_less_to_do_what_waits_is_handed_over() -> None:
    started: list[int] = []
    under_way = BUSY_FROM
    handoff_queue = HandoffQueue(lambda: under_way, unexpected, CLOCK)
    handoff_queue.put(Sent(0, started))
    assert started == []
    under_way -= 1
    handoff_queue.some_ended()
    assert started == [0]


def test_two_threads_do_not_overtake_each_other() -> None:
    started: list[int] = []
    is_starting, may_go_on = threading.Event(), threading.Event()

    class Slow(Sent):
        def start(self) -> None:
            is_starting.set()
            assert may_go_on.wait(10)
            super().start()

    handoff_queue = HandoffQueue(lambda: 0, unexpected, CLOCK)
    slow = threading.Thread(target=handoff_queue.put, args=(Slow(0, started),))
    slow.start()
    assert is_starting.wait(10)
    handoff_queue.put(Sent(1, started))
    handoff_queue.some_ended()
    assert started == [], "the first is not handed over yet"
    may_go_on.set()
    slow.join()
    assert started == [0, 1]


def test_nothing_waits_long_while_the_broker_answers() -> None:
    started: list[int] = []
    clock = ManualClock()
    handoff_queue = HandoffQueue(lambda: BUSY_FROM, unexpected, clock)
    handoff_queue.put(Sent(0, started))
    clock.advance(1)
    handoff_queue.put(Sent(1, started))  # the first of those that wait counts
    clock.advance(MAX_WAIT_MS - 1)
    handoff_queue.some_ended()
    assert started == []
    clock.advance(1)
    handoff_queue.some_ended()
    assert started == [0, 1]


def test_what_the_client_refuses_is_told_and_the_others_go_on() -> None:
    started: list[int] = []
    refused: list[tuple[int, str]] = []

    def take(send: Any, error: Exception) -> None:
        refused.append((send.name, str(error)))

    handoff_queue = HandoffQueue(lambda: BUSY_FROM, take, CLOCK)
    handoff_queue.put(Sent(0, started, ValueError("no")))
    handoff_queue.put(Sent(1, started))
    handoff_queue.hand_over()
    assert (started, refused) == ([1], [(0, "no")])


def test_an_interrupt_loses_none() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(lambda: BUSY_FROM, unexpected, CLOCK)
    interrupted = Sent(0, started, KeyboardInterrupt())
    handoff_queue.put(interrupted)
    handoff_queue.put(Sent(1, started))
    with pytest.raises(KeyboardInterrupt):
        handoff_queue.hand_over()
    interrupted.error = None
    handoff_queue.hand_over()
    assert started == [0, 1]


def test_many_threads_hand_over_every_message_once() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(lambda: BUSY_FROM, unexpected, CLOCK)

    def work(first: int) -> None:
        for name in range(first, first + 5_000):
            handoff_queue.put(Sent(name, started))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 20_000, 5_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handoff_queue.hand_over()
    assert sorted(started) == list(range(20_000))
