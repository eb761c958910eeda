"""Back-off: waits that grow to a bound, spread by a chance that is handed in; pauses by the clock."""

from __future__ import annotations

import threading

import pytest

from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.relay.driver.source import Handle
from timewheel.relay.machine.backoff import Backoff


class Always:
    """A chance that always draws the same."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        return self._number


def test_waits_double_up_to_the_longest() -> None:
    # 0.5 + 0.5 / 2: three quarters of 100, 200, 400, 800 and 1,000 twice.
    backoff = Backoff(100, 1_000, Always(0.5))
    assert [backoff.next_ms() for _ in range(6)] == [75, 150, 300, 600, 750, 750]


@pytest.mark.parametrize(("drawn", "wait_ms"), [(0.0, 50), (0.5, 75), (0.999_999, 99)])
def test_chance_takes_away_up_to_half_of_a_wait(drawn: float, wait_ms: int) -> None:
    assert Backoff(100, 1_000, Always(drawn)).next_ms() == wait_ms


def test_a_partition_that_fails_for_days_keeps_the_longest_wait() -> None:
    backoff = Backoff(100, 10_000, Always(0.0))
    waits_ms = [backoff.next_ms() for _ in range(100_000)]
    assert waits_ms[-1] == 5_000


def test_after_a_success_it_begins_with_the_first_wait_again() -> None:
    backoff = Backoff(100, 10_000, Always(0.0))
    assert [backoff.next_ms(), backoff.next_ms()] == [50, 100]
    backoff.reset()
    assert backoff.next_ms() == 50


def test_a_pause_lasts_by_the_clock_and_is_a_sign_of_life() -> None:
    clock = LeapingClock(1_000)
    handle = Handle(clock)
    handle.pause(10_000)
    assert clock.monotonic_ms() == 11_000
    assert handle.heartbeat_ms == 11_000


def test_a_stop_ends_a_pause_before_its_time() -> None:
    clock = ManualClock(1_000)
    handle = Handle(clock)
    pausing = threading.Thread(target=handle.pause, args=(10_000,))
    pausing.start()
    clock.await_wait(10_000)
    handle.stop(drain_ms=500)
    pausing.join(10)
    assert not pausing.is_alive()
    assert clock.monotonic_ms() == 1_000
    clock.advance(200)
    assert handle.drain_left_ms() == 300
