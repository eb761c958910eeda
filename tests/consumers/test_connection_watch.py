"""When a lost connection is told, and when it is back."""

from __future__ import annotations

from typing import Any

from tests.support.manual_clock import LeapingClock
from timewheel.client.hooks import LOST_AFTER_MS, ConnectionWatch, Hooks
from timewheel.core.clock import pause


def test_a_connection_that_stays_away_is_told_once_and_its_return_too() -> None:
    clock, told = LeapingClock(), list[Any]()
    watch = ConnectionWatch("t-0", clock, Hooks((told.append,)))
    for _ in range(3):
        watch.inspect(is_connected=False)
        pause(clock, LOST_AFTER_MS)
        watch.inspect(is_connected=False)
        watch.inspect(is_connected=False)
        pause(clock, 250)
        watch.inspect(is_connected=True)
        watch.inspect(is_connected=True)
    assert [event.name for event in told] == ["connection_lost", "connection_back"] * 3
    assert told[1].away_ms == LOST_AFTER_MS + 250


def test_one_that_is_back_soon_is_not_told() -> None:
    clock, told = LeapingClock(), list[Any]()
    watch = ConnectionWatch("t-0", clock, Hooks((told.append,)))
    for _ in range(10):
        watch.inspect(is_connected=False)
        pause(clock, LOST_AFTER_MS - 1)
        watch.inspect(is_connected=False)
        watch.inspect(is_connected=True)
    assert told == []
