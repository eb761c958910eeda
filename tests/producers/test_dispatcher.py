from __future__ import annotations

import threading

from timewheel.hooks import Event
from timewheel.testing import eventually
from timewheel.wire.dispatcher import Dispatcher
from timewheel.wire.hooks import Hooks


def test_items_are_handled_in_order_on_one_other_thread() -> None:
    handled: list[tuple[int, bool]] = []
    dispatcher: Dispatcher[int] = Dispatcher(
        lambda items: handled.extend((item, dispatcher.is_current_thread()) for item in items),
        lambda: None,
        60,
        Hooks(()),
    )
    dispatcher.start()
    for item in range(1_000):
        (dispatcher.put_urgent if item % 3 else dispatcher.put)(item)
    assert dispatcher.stop(10)
    assert handled == [(item, True) for item in range(1_000)]
    assert not dispatcher.is_current_thread()


def test_a_failure_is_told_and_stops_nothing() -> None:
    events: list[Event] = []
    handled: list[int] = []

    def handle(items: list[int]) -> None:
        handled.extend(items)
        if 1 in items:
            raise RuntimeError("bad item")

    dispatcher: Dispatcher[int] = Dispatcher(handle, lambda: None, 60, Hooks((events.append,)))
    dispatcher.start()
    dispatcher.put(1)
    assert eventually(lambda: events)
    dispatcher.put(2)
    assert dispatcher.stop(10)
    assert handled == [1, 2]
    assert [(event.name, event.level) for event in events] == [("producer_dispatcher_failed", "error")]


def test_housekeeping_comes_round_whether_busy_or_not() -> None:
    rounds = threading.Semaphore(0)
    dispatcher: Dispatcher[int] = Dispatcher(lambda _: None, rounds.release, 0.02, Hooks(()))
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
    assert dispatcher.stop(10)


def test_what_is_urgent_does_not_wait_for_a_busy_queue_to_fill() -> None:
    handled = threading.Event()
    dispatcher: Dispatcher[bool] = Dispatcher(
        lambda urgent: handled.set() if any(urgent) else None, lambda: None, 60, Hooks(())
    )
    dispatcher.start()
    for _ in range(100):
        dispatcher.put(False)
        handled.clear()
        dispatcher.put_urgent(True)
        assert handled.wait(10)
    assert dispatcher.stop(10)
    assert eventually(lambda: not any(thread.name == "timewheel-producer" for thread in threading.enumerate()))
