"""Histories that are too short to show a topic as it is once it is full."""

import pytest

from timewheel.core import DAY_MS, HOUR_MS
from timewheel.core.history_span import describe_span, shows_day, shows_full


@pytest.mark.parametrize(
    ("span_ms", "warm_up_ms", "day", "full"),
    [
        (0, 0, False, False),  # a single send, or all at once: no rate at all
        (2_000, 27 * DAY_MS, False, False),
        (2 * HOUR_MS, HOUR_MS, False, True),
        (DAY_MS - HOUR_MS - 1, 1, False, True),
        (DAY_MS - HOUR_MS, 1, True, True),  # a day's sends: the first and the last lie some time within it
        (DAY_MS, DAY_MS + 1, True, False),
        (DAY_MS, DAY_MS, True, True),
        (21 * DAY_MS, 19 * DAY_MS, True, True),
    ],
)
def test_a_history_is_long_enough_from_a_day_and_its_delays_on(
    span_ms: int, warm_up_ms: int, day: bool, full: bool
) -> None:
    assert (shows_day(span_ms), shows_full(span_ms, warm_up_ms)) == (day, full)
    assert (describe_span(span_ms, warm_up_ms) == "") == (day and full)
