"""The limit of sends, their common handover, and the thread that concludes them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.manual_clock import LeapingClock, ManualClock
from tests.support.processes import StartedThreads
from timewheel.client.hooks import Hooks
from timewheel.client.producer_pool import PooledProducer
from timewheel.core import SystemClock
from timewheel.core.errors import ClientMisuse
from timewheel.hooks import Event
from timewheel.producers.base_producer import Send
from timewheel.producers.dispatcher import (
    BUSY_FROM,
    BUSY_MS,
    LINGER_MS,
    MAX_WAIT_MS,
    Dispatcher,
    HandoffQueue,
    InFlightLimiter,
)
from timewheel.producers.prepare import Outgoing
from timewheel.producers.runs import TOGETHER, Runs
from timewheel.testing import eventually

CLOCK = SystemClock()


class Entered(Send):
    def __init__(self) -> None:
        self.batch = None


def entered(limiter: InFlightLimiter) -> Entered:
    sent = Entered()
    limiter.enter(sent)
    return sent


def test_never_more_inside_than_the_limit() -> None:
    limiter = InFlightLimiter(3, lambda: True)
    most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal most
        for _ in range(200):
            sent = entered(limiter)
            with lock:
                most = max(most, limiter.inside)
            limiter.leave(sent)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert limiter.inside == 0


def test_who_waits_goes_on_when_half_is_free() -> None:
    limiter = InFlightLimiter(4, lambda: True)
    inside = [entered(limiter) for _ in range(4)]
    waiting = threading.Thread(target=entered, args=(limiter,))
    waiting.start()
    limiter.leave(inside[0])
    waiting.join(0.05)
    assert waiting.is_alive(), "one place of four is free: it waits for two, so that one wake-up serves many"
    limiter.leave(inside[1])
    waiting.join(10)
    assert not waiting.is_alive()
    assert limiter.inside == 3


def test_a_limit_of_one_works() -> None:
    limiter = InFlightLimiter(1, lambda: True)
    first = entered(limiter)
    waiting = threading.Thread(target=entered, args=(limiter,))
    waiting.start()
    limiter.leave(first)
    waiting.join(10)
    assert limiter.inside == 1


def test_the_thread_that_makes_room_does_not_wait_for_it() -> None:
    limiter = InFlightLimiter(1, lambda: False)
    entered(limiter)
    entered(limiter)
    assert limiter.inside == 2


def test_leaving_twice_counts_once() -> None:
    limiter = InFlightLimiter(2, lambda: True)
    entered(limiter)
    sent = entered(limiter)
    limiter.leave(sent)
    limiter.leave(sent)
    assert limiter.inside == 1


def test_closing_refuses_those_who_come_and_those_who_wait() -> None:
    limiter = InFlightLimiter(1, lambda: True)
    entered(limiter)
    refused: list[ClientMisuse] = []

    def wait() -> None:
        try:
            entered(limiter)
        except ClientMisuse as error:
            refused.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    limiter.close()
    waiting.join(10)
    assert len(refused) == 1
    with pytest.raises(ClientMisuse, match="closed"):
        entered(limiter)
    assert limiter.inside == 1


def test_drain_waits_for_those_inside_and_not_for_later_ones() -> None:
    limiter = InFlightLimiter(10, lambda: True)
    earlier = entered(limiter)
    drained: list[bool] = []
    drainer = threading.Thread(target=lambda: drained.append(limiter.drain(CLOCK, 10_000)))
    drainer.start()
    # A drain begins by giving newcomers a batch of their own.
    later = eventually(lambda: _newcomer_in_another_group(limiter, earlier))
    assert drained == []
    limiter.leave(earlier)
    drainer.join(10)
    assert drained == [True]
    assert later.batch is not None, "and it is still inside"
    assert later.batch.inside == 1


def _newcomer_in_another_group(limiter: InFlightLimiter, other: Entered) -> Entered | None:
    sent = entered(limiter)
    if sent.batch is not other.batch:
        return sent
    limiter.leave(sent)
    return None


def test_drain_gives_up_at_its_deadline() -> None:
    clock = LeapingClock()
    limiter = InFlightLimiter(2, lambda: True)
    assert limiter.drain(clock, 0)
    sent = entered(limiter)
    assert not limiter.drain(clock, 20_000)
    assert clock.waits_ms == [20_000]
    limiter.leave(sent)
    assert limiter.drain(clock, 20_000)
    assert clock.waits_ms == [20_000], "nobody is inside: nothing is waited for"


CLOCK = SystemClock()


BUSY = BUSY_FROM + 1_000_000
RUNS = Runs(1_000, 128 * 1024, in_order=True)
OUTGOING = Outgoing("topic", 0, "due", b"x", {}, None, None, None, 0, "id", 0, 0)
POOLED: PooledProducer[Any] = PooledProducer(("topic", 0), None, lambda: None, None)


class Sent(Send):
    """Stands for one send."""

    def __init__(self, name: int, started: list[int], error: BaseException | None = None) -> None:
        self.name = name
        self.pooled = POOLED
        self.outgoing = OUTGOING
        self._started = started
        self.error = error

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        self._started.append(self.name)

    def start_in_run(self, **_: bool) -> None:
        self.start()


def unexpected(send: Any, error: Exception) -> None:
    raise AssertionError(send.name) from error


def test_while_the_client_is_not_busy_each_is_handed_over_at_once() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(RUNS, lambda: BUSY_FROM - 1, unexpected, CLOCK)
    for name in range(3):
        handoff_queue.put(Sent(name, started))
        assert started[-1] == name


def test_while_it_is_busy_they_are_handed_over_together_in_order() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(RUNS, lambda: BUSY, unexpected, CLOCK)
    for name in range(TOGETHER - 1):
        handoff_queue.put(Sent(name, started))
    assert started == []
    handoff_queue.put(Sent(TOGETHER - 1, started))
    assert started == list(range(TOGETHER))


def test_when_the_client_has_less_to_do_what_waits_is_handed_over() -> None:
    started: list[int] = []
    under_way = BUSY_FROM + 1  # it and those with the client
    handoff_queue = HandoffQueue(RUNS, lambda: under_way, unexpected, CLOCK)
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

    handoff_queue = HandoffQueue(RUNS, lambda: 0, unexpected, CLOCK)
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
    handoff_queue = HandoffQueue(RUNS, lambda: BUSY, unexpected, clock)
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

    handoff_queue = HandoffQueue(RUNS, lambda: BUSY, take, CLOCK)
    handoff_queue.put(Sent(0, started, ValueError("no")))
    handoff_queue.put(Sent(1, started))
    handoff_queue.hand_over()
    assert (started, refused) == ([1], [(0, "no")])


def test_an_interrupt_loses_none() -> None:
    started: list[int] = []
    handoff_queue = HandoffQueue(RUNS, lambda: BUSY, unexpected, CLOCK)
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
    handoff_queue = HandoffQueue(RUNS, lambda: BUSY, unexpected, CLOCK)

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
