from __future__ import annotations

import threading
from queue import SimpleQueue

from tests.support.manual_clock import ManualClock
from tests.support.threads import StartedThreads
from timewheel.client.hooks import Hooks
from timewheel.core import SystemClock
from timewheel.hooks import Event
from timewheel.producers.dispatcher import BUSY_MS, LINGER_MS, Dispatcher
from timewheel.testing import eventually

CLOCK = SystemClock()
MINUTE_MS = 60_000


def test_items_are_handled_in_order_on_one_other_thread() -> None:
    handled: list[tuple[int, bool]] = []
    dispatcher: Dispatcher[int] = Dispatcher(
        lambda items: handled.extend((item, dispatcher.is_current_thread()) for item in items),
        lambda: None,
        MINUTE_MS,
        CLOCK,
        Hooks(()),
    )
    dispatcher.start()
    for item in range(1_000):
        (dispatcher.put_urgent if item % 3 else dispatcher.put)(item)
    assert dispatcher.stop(10_000)
    assert handled == [(item, True) for item in range(1_000)]
    assert not dispatcher.is_current_thread()


def test_a_failure_is_told_and_stops_nothing() -> None:
    events: list[Event] = []
    handled: list[int] = []

    def handle(items: list[int]) -> None:
        handled.extend(items)
        if 1 in items:
            raise RuntimeError("bad item")

    dispatcher: Dispatcher[int] = Dispatcher(handle, lambda: None, MINUTE_MS, CLOCK, Hooks((events.append,)))
    dispatcher.start()
    dispatcher.put(1)
    assert eventually(lambda: events)
    dispatcher.put(2)
    assert dispatcher.stop(10_000)
    assert handled == [1, 2]
    assert [(event.name, event.level) for event in events] == [("producer_dispatcher_failed", "error")]


def test_housekeeping_comes_round_whether_busy_or_not() -> None:
    rounds = threading.Semaphore(0)
    dispatcher: Dispatcher[int] = Dispatcher(lambda _: None, rounds.release, 20, CLOCK, Hooks(()))
    dispatcher.start()
    for _ in range(3):
        assert rounds.acquire(timeout=10)
    done = threading.Event()

    def keep_busy() -> None:
        while not done.is_set():
            dispatcher.put(0)
            done.wait(0.0005)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    for _ in range(3):
        assert rounds.acquire(timeout=10)
    done.set()
    busy.join()
    assert dispatcher.stop(10_000)


def test_what_is_urgent_does_not_wait_for_a_busy_queue_to_fill() -> None:
    started, handled = StartedThreads(), threading.Event()
    dispatcher: Dispatcher[bool] = Dispatcher(
        lambda urgent: handled.set() if any(urgent) else None, lambda: None, MINUTE_MS, CLOCK, Hooks(())
    )
    dispatcher.start()
    for _ in range(100):
        dispatcher.put(False)
        handled.clear()
        dispatcher.put_urgent(True)
        assert handled.wait(10)
    assert dispatcher.stop(10_000)
    assert started.names() == []


def test_housekeeping_comes_round_by_the_clock() -> None:
    rounds = threading.Semaphore(0)
    clock = ManualClock()
    dispatcher: Dispatcher[int] = Dispatcher(lambda _: None, rounds.release, MINUTE_MS, clock, Hooks(()))
    dispatcher.start()
    for _ in range(3):
        clock.await_wait(MINUTE_MS)
        clock.advance(MINUTE_MS - 1)
        clock.await_wait(1)
        assert not rounds.acquire(blocking=False)
        clock.advance(1)
        assert rounds.acquire(timeout=10)
    assert dispatcher.stop(0) or dispatcher.stop(MINUTE_MS)


def test_a_busy_queue_is_left_to_fill_for_the_clocks_linger() -> None:
    clock = ManualClock()
    batches: SimpleQueue[list[int]] = SimpleQueue()
    dispatcher: Dispatcher[int] = Dispatcher(batches.put, lambda: None, MINUTE_MS, clock, Hooks(()))
    dispatcher.start()
    clock.await_wait(MINUTE_MS)
    clock.advance(BUSY_MS)  # calm until now: what comes first is handled at once, and nothing is waited for
    dispatcher.put(0)
    assert batches.get(timeout=10) == [0]
    clock.await_wait(MINUTE_MS - BUSY_MS)
    dispatcher.put(1)  # and this comes right behind it
    assert batches.get(timeout=10) == [1]
    clock.await_wait(LINGER_MS)
    dispatcher.put(2)
    dispatcher.put(3)
    clock.advance(LINGER_MS - 1)
    clock.await_wait(1)
    assert batches.empty()
    clock.advance(1)
    assert batches.get(timeout=10) == [2, 3]
    assert dispatcher.stop(MINUTE_MS)


def test_what_is_urgent_ends_a_linger_before_its_time() -> None:
    clock = ManualClock()
    batches: SimpleQueue[list[int]] = SimpleQueue()
    dispatcher: Dispatcher[int] = Dispatcher(batches.put, lambda: None, MINUTE_MS, clock, Hooks(()))
    dispatcher.put(0)
    dispatcher.start()
    clock.await_wait(LINGER_MS)
    dispatcher.put(1)
    dispatcher.put_urgent(2)
    assert [batches.get(timeout=10) for _ in range(2)] == [[0], [1, 2]]
    assert dispatcher.stop(MINUTE_MS)


def test_a_stop_waits_for_a_callback_that_hangs_as_long_as_it_is_told() -> None:
    clock = ManualClock()
    begun, may_end = threading.Event(), threading.Event()

    def hang(_: list[int]) -> None:
        begun.set()
        may_end.wait()

    dispatcher: Dispatcher[int] = Dispatcher(hang, lambda: None, MINUTE_MS, clock, Hooks(()))
    dispatcher.put(0)
    dispatcher.start()
    assert begun.wait(10)
    ended: list[bool] = []
    stopping = threading.Thread(target=lambda: ended.append(dispatcher.stop(1_000)))
    stopping.start()
    clock.await_wait(1_000)
    clock.advance(1_000)
    stopping.join(10)
    assert ended == [False]
    may_end.set()
    assert dispatcher.stop(MINUTE_MS)
