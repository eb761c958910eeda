"""Events about alarms and lost connections: once a minute each, and none that was held back is lost."""

from __future__ import annotations

from typing import Any

from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.client.hooks import LOST_AFTER_MS, Alarms, ConnectionWatch, Hooks
from timewheel.core.clock import pause
from timewheel.core.durations import MINUTE_MS
from timewheel.events import TimerParked, TimerTooNew
from timewheel.hooks import Alarm, Event


def parked(reason: str) -> TimerParked:
    return TimerParked(topic="t", reason=reason)


def test_all_that_happened_is_counted_in_the_end() -> None:
    said: list[Event] = []
    clock = ManualClock()
    alarms = Alarms(Hooks((said.append,)), clock)

    def shown() -> list[tuple[str, int]]:
        return [(str(one.fields.get("reason", "")), one.count) for one in said if isinstance(one, Alarm)]

    for number in range(4):
        alarms.raised(parked(f"{number}"))
    alarms.flush()
    assert shown() == [("0", 1)]

    clock.advance(MINUTE_MS)
    alarms.flush()
    assert shown() == [("0", 1), ("3", 3)], "its minute is over, and no other came"

    alarms.raised(parked("4"))
    alarms.raised(TimerTooNew(topic="t", error="e"))
    alarms.raised(parked("5"))
    alarms.flush(at_end=True)
    alarms.flush(at_end=True)
    assert shown() == [("0", 1), ("3", 3), ("", 1), ("5", 2)]
    assert sum(one.count for one in said if isinstance(one, TimerParked)) == 6


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
