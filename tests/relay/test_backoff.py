"""Pauses: between attempts, before a silent broker is asked, and between probes of a slot."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.client.positions import Position
from timewheel.relay.driver.source import Handle
from timewheel.relay.machine.backoff import ASK_LONGEST_MS, PROBE_LONGEST_MS, Backoff, Emptiness, Silence, is_proven
from timewheel.relay.machine.order import Spot


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


def test_a_partition_that_fails_for_days_keeps_the_longest_wait_until_a_success() -> None:
    backoff = Backoff(100, 10_000, Always(0.0))
    waits_ms = [backoff.next_ms() for _ in range(100_000)]
    assert (waits_ms[:2], waits_ms[-1]) == ([50, 100], 5_000)
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


def asked_at(silence: Silence, from_ms: int, to_ms: int) -> list[int]:
    """Told every tenth of a second that nothing has come."""
    return [now_ms for now_ms in range(from_ms, to_ms, 100) if silence.is_too_long(now_ms)]


def test_a_clock_that_is_set_back_makes_no_silence_of_hours() -> None:
    silence = Silence(random.Random(7))
    asked_at(silence, 3_600_000, 3_700_000)
    assert asked_at(silence, 0, 2 * ASK_LONGEST_MS)


def test_what_comes_breaks_the_silence() -> None:
    silence = Silence(random.Random(7))
    asked_at(silence, 0, 600_000)
    silence.broken()
    at_ms = asked_at(silence, 600_000, 610_000)
    assert at_ms[0] <= 602_100


@pytest.mark.parametrize(
    ("last", "confirmed", "proven"),
    [
        (Position(-1, -1, -1), None, True),
        (Position(7, -1, -1), None, True),  # a ledger was opened, and nothing written
        (Position(7, 3, -1), None, False),
        (Position(7, 3, -1), Position(7, 2, -1), False),
        (Position(7, 3, -1), Position(7, 3, -1), True),
        (Position(7, 3, -1), Position(9, 0, -1), True),
    ],
)
def test_only_a_last_position_that_is_confirmed_proves_it(
    last: Position, confirmed: Position | None, *, proven: bool
) -> None:
    assert is_proven(last, None if confirmed is None else Spot(confirmed, 0)) == proven


def probed_at(emptiness: Emptiness, from_ms: int, to_ms: int) -> list[int]:
    """Asked every tenth of a second; each probe is stored at once, and goes to another relay."""
    found = []
    for now_ms in range(from_ms, to_ms, 100):
        if emptiness.take_probe(now_ms):
            found.append(now_ms)
            assert not emptiness.take_probe(now_ms), "one at a time"
            emptiness.probed()
    return found


def test_probes_are_put_at_once_and_then_rarer_and_rarer() -> None:
    at_ms = probed_at(Emptiness(random.Random(7)), 0, 120_000)
    assert at_ms[0] == 0
    pauses = [later - sooner for sooner, later in pairwise(at_ms)]
    assert all(PROBE_LONGEST_MS / 2 <= pause <= PROBE_LONGEST_MS + 100 for pause in pauses[4:])


def test_a_clock_that_is_set_back_holds_no_probe_back() -> None:
    emptiness = Emptiness(random.Random(7))
    probed_at(emptiness, 3_600_000, 3_700_000)
    assert probed_at(emptiness, 0, 1_000) == [0]
