from __future__ import annotations

import threading

import pytest

from tests.support.manual_clock import LeapingClock
from timewheel.core import SystemClock
from timewheel.core.errors import ClientMisuse
from timewheel.producers.base_producer import Send
from timewheel.producers.dispatcher import InFlightLimiter
from timewheel.testing import eventually

CLOCK = SystemClock()


class Sent(Send):
    def __init__(self) -> None:
        self.batch = None


def entered(limiter: InFlightLimiter) -> Sent:
    sent = Sent()
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


def _newcomer_in_another_group(limiter: InFlightLimiter, other: Sent) -> Sent | None:
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
