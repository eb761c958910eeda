"""Native gaps by day: what is kept of each day sums up to what a brute force counts, at every moment that is kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.summary.survey import FINEST_STEP_MS, DailyGaps

Integers = NDArray[np.int64]
sends = st.lists(st.tuples(st.integers(0, 3 * DAY_MS), st.integers(0, 2 * DAY_MS)), min_size=0, max_size=60).map(
    lambda found: np.array(sorted(found), np.int64).reshape(-1, 2)
)


def by_definition(due_ms: Integers, at_ms: int) -> int:
    """Pairs of neighbours of which only the later one is acknowledged."""
    return sum(after <= at_ms < before for before, after in pairwise(due_ms.tolist()))


@given(sends, st.integers(0, 6), st.integers(0, 5 * DAY_MS))
def test_the_days_together_count_what_there_is(sent: Integers, doublings: int, at_ms: int) -> None:
    publish_ms, due_ms = sent[:, 0], sent[:, 0] + sent[:, 1]
    step_ms = FINEST_STEP_MS << doublings
    found = DailyGaps.of_sends(publish_ms, due_ms, step_ms)
    moment_ms = at_ms // step_ms * step_ms
    assert int(found.at(np.array([at_ms]))[0]) == by_definition(due_ms, moment_ms)
    days = [found.of_day(day) for day in np.unique(found.day).tolist()]
    again = DailyGaps.merged(days)
    for name in ("day", "moment", "change"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


@given(sends, st.integers(0, 4), st.integers(0, 4))
def test_fewer_moments_are_those_that_would_have_been_counted(sent: Integers, fine: int, coarser: int) -> None:
    publish_ms, due_ms = sent[:, 0], sent[:, 0] + sent[:, 1]
    step_ms = FINEST_STEP_MS << (fine + coarser)
    found = DailyGaps.of_sends(publish_ms, due_ms, FINEST_STEP_MS << fine).coarsened(step_ms)
    straight = DailyGaps.of_sends(publish_ms, due_ms, step_ms)
    assert (found.change != 0).all()
    for name in ("day", "moment", "change"):
        np.testing.assert_array_equal(getattr(found, name), getattr(straight, name))


def test_only_longer_steps_are_among_the_shorter() -> None:
    with pytest.raises(ValueError, match="2000 ms apart are not among those 4000"):
        DailyGaps.none(4_000).coarsened(2_000)
