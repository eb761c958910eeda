"""Clocks: the machine's and the tests' own keep one contract, and what is made of a clock's waits keeps to them."""

from __future__ import annotations

import random
import threading
from queue import Empty, SimpleQueue

import pytest

from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.core.clock import Clock, SystemClock, pause, wait_until
from timewheel.core.rng import system_random

CLOCKS = pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
LONG_MS = 60_000


@CLOCKS
@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_wait_without_time_ends_at_once_and_says_that_the_time_passed(clock: Clock, timeout_ms: int) -> None:
    condition = threading.Condition()
    waiting = threading.Event()
    with condition:
        assert not clock.wait(condition, timeout_ms)
    with pytest.raises(Empty):
        clock.get(SimpleQueue[int](), timeout_ms)
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    assert not clock.join(thread, timeout_ms)
    waiting.set()
    thread.join()


@CLOCKS
def test_a_notice_ends_a_wait_before_its_time(clock: Clock) -> None:
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify_all()

    with condition:
        threading.Thread(target=notify).start()
        assert clock.wait(condition, LONG_MS)


@CLOCKS
def test_an_item_ends_a_get_before_its_time(clock: Clock) -> None:
    queue: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=queue.put, args=("item",)).start()
    assert clock.get(queue, LONG_MS) == "item"


@CLOCKS
def test_an_item_that_is_there_is_got_without_any_time(clock: Clock) -> None:
    queue: SimpleQueue[str] = SimpleQueue()
    queue.put("item")
    assert clock.get(queue, 0) == "item"


@CLOCKS
def test_the_end_of_a_thread_ends_a_join_before_its_time(clock: Clock) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    assert clock.join(thread, LONG_MS)


def test_the_machines_waits_last_as_long_as_they_say() -> None:
    clock, condition, ended = SystemClock(), threading.Condition(), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    began_ms = clock.monotonic_ms()
    with condition:
        clock.wait(condition, 20)
    with pytest.raises(Empty):
        clock.get(SimpleQueue[int](), 20)
    clock.join(thread, 20)
    pause(clock, 20)
    # 1 ms: readings are whole milliseconds, cut off.
    assert clock.monotonic_ms() - began_ms >= 4 * 20 - 1
    ended.set()
    thread.join()


def test_a_pause_lets_all_of_its_time_pass_and_none_more() -> None:
    clock = LeapingClock(1_000)
    pause(clock, 250)
    assert clock.now_ms() == 1_250
    pause(clock, 0)
    assert clock.waits_ms == [250]


def test_waiting_for_what_is_reached_takes_no_time() -> None:
    clock, condition = LeapingClock(), threading.Condition()
    with condition:
        assert wait_until(clock, condition, lambda: True, 5)
    assert clock.waits_ms == []


def test_waiting_for_what_is_never_reached_ends_with_the_time() -> None:
    clock, condition = LeapingClock(1_000), threading.Condition()
    with condition:
        assert not wait_until(clock, condition, lambda: False, 5)
    assert clock.now_ms() == 1_005


def test_a_notice_of_something_else_does_not_lengthen_the_wait() -> None:
    class Noisy(LeapingClock):
        def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
            super().wait(condition, min(timeout_ms, 2))
            return True

    clock, condition = Noisy(1_000), threading.Condition()
    with condition:
        assert not wait_until(clock, condition, lambda: False, 5)
    # Woken after 2, 4 and 5 ms: each time only what is left is waited for.
    assert (clock.waits_ms, clock.now_ms()) == ([2, 2, 1], 1_005)


def test_chance_is_from_0_to_below_1_and_a_seed_draws_alike() -> None:
    rng = system_random()
    drawn = [rng.random() for _ in range(100)]
    assert len(set(drawn)) == 100
    assert all(0 <= number < 1 for number in drawn)
    assert random.Random(7).random() == random.Random(7).random()
