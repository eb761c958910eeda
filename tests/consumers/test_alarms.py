"""Alarms of single messages: once a minute each, and none that was held back is lost."""

from __future__ import annotations

from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import Alarms, Hooks
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
