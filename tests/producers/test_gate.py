from __future__ import annotations

import threading

import pytest

from tests.support.manual_clock import LeapingClock
from timewheel.core import SystemClock
from timewheel.core.errors import ClientMisuse
from timewheel.producers.sending.gate import Gate, Group
from timewheel.testing import eventually

CLOCK = SystemClock()


class Sent:
    def __init__(self) -> None:
        self.group: Group | None = None


def entered(gate: Gate) -> Sent:
    sent = Sent()
    gate.enter(sent)
    return sent


def test_never_more_inside_than_the_limit() -> None:
    gate = Gate(3, lambda: True)
    most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal most
        for _ in range(200):
            sent = entered(gate)
            with lock:
                most = max(most, gate.inside)
            gate.leave(sent)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert gate.inside == 0


def test_who_waits_goes_on_when_half_is_free() -> None:
    gate = Gate(4, lambda: True)
    inside = [entered(gate) for _ in range(4)]
    waiting = threading.Thread(target=entered, args=(gate,))
    waiting.start()
    gate.leave(inside[0])
    waiting.join(0.05)
    assert waiting.is_alive(), "one place of four is free: it waits for two, so that one wake-up serves many"
    gate.leave(inside[1])
    waiting.join(10)
    assert not waiting.is_alive()
    assert gate.inside == 3


def test_a_limit_of_one_works() -> None:
    gate = Gate(1, lambda: True)
    first = entered(gate)
    waiting = threading.Thread(target=entered, args=(gate,))
    waiting.start()
    gate.leave(first)
    waiting.join(10)
    assert gate.inside == 1


def test_the_thread_that_makes_room_does_not_wait_for_it() -> None:
    gate = Gate(1, lambda: False)
    entered(gate)
    entered(gate)
    assert gate.inside == 2


def test_leaving_twice_counts_once() -> None:
    gate = Gate(2, lambda: True)
    entered(gate)
    sent = entered(gate)
    gate.leave(sent)
    gate.leave(sent)
    assert gate.inside == 1


def test_closing_refuses_those_who_come_and_those_who_wait() -> None:
    gate = Gate(1, lambda: True)
    entered(gate)
    refused: list[ClientMisuse] = []

    def wait() -> None:
        try:
            entered(gate)
        except ClientMisuse as error:
            refused.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    gate.close()
    waiting.join(10)
    assert len(refused) == 1
    with pytest.raises(ClientMisuse, match="closed"):
        entered(gate)
    assert gate.inside == 1


def test_drain_waits_for_those_inside_and_not_for_later_ones() -> None:
    gate = Gate(10, lambda: True)
    earlier = entered(gate)
    drained: list[bool] = []
    drainer = threading.Thread(target=lambda: drained.append(gate.drain(CLOCK, 10_000)))
    drainer.start()
    # A drain begins by giving newcomers a group of their own.
    later = eventually(lambda: _newcomer_in_another_group(gate, earlier))
    assert drained == []
    gate.leave(earlier)
    drainer.join(10)
    assert drained == [True]
    assert later.group is not None, "and it is still inside"
    assert later.group.inside == 1


def _newcomer_in_another_group(gate: Gate, other: Sent) -> Sent | None:
    sent = entered(gate)
    if sent.group is not other.group:
        return sent
    gate.leave(sent)
    return None


def test_drain_gives_up_at_its_deadline() -> None:
    clock = LeapingClock()
    gate = Gate(2, lambda: True)
    assert gate.drain(clock, 0)
    sent = entered(gate)
    assert not gate.drain(clock, 20_000)
    assert clock.waits_ms == [20_000]
    gate.leave(sent)
    assert gate.drain(clock, 20_000)
    assert clock.waits_ms == [20_000], "nobody is inside: nothing is waited for"
