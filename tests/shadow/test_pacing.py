"""What is answered at once is asked for each time; what takes long, seldom, and never less than twice a minute."""

from __future__ import annotations

import pytest

from timewheel.shadow.machine.pacing import AT_LEAST_MS, Pace

NOW_MS = 7_000


def answered_after(took_ms: int) -> Pace:
    pace = Pace()
    pace.answered(NOW_MS - took_ms, NOW_MS)
    return pace


def test_at_first_it_is_asked() -> None:
    assert Pace().is_due(0)


@pytest.mark.parametrize(
    ("took_ms", "again_after_ms"),
    [(0, 0), (5, 0), (50, 0), (51, 1_020), (200, 4_000), (1_000, 20_000), (1_500, 30_000), (60_000, AT_LEAST_MS)],
)
def test_it_is_asked_again_after_twenty_times_what_the_answer_took(took_ms: int, again_after_ms: int) -> None:
    pace = answered_after(took_ms)
    assert pace.is_due(NOW_MS + again_after_ms)
    assert again_after_ms == 0 or not pace.is_due(NOW_MS + again_after_ms - 1)


def test_where_no_answer_came_it_is_asked_at_once() -> None:
    pace = answered_after(5_000)
    assert not pace.is_due(NOW_MS)
    pace.hurry()
    assert pace.is_due(NOW_MS)
