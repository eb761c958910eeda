"""Growth over checks, the date that it leads to, and the log that it is read from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plan_samples import NOW_MS, TOPIC
from timewheel.inspect.errors import LogUnreadable
from timewheel.spark_planner.choice.constraints import Room
from timewheel.spark_planner.extrapolation import Trend
from timewheel.watch.outlook import (
    LEAST_CHECKS,
    WEEK_MS,
    CheckLine,
    Growth,
    append_check,
    growth_of,
    outlook_of,
    read_checks,
)

DAY_MS = WEEK_MS // 7


def figures(
    weekly: float, *, checks: int = 6, every_ms: int = WEEK_MS, first: float = 100.0
) -> list[tuple[int, float]]:
    return [(NOW_MS + n * every_ms, first * (1 + weekly) ** (n * every_ms / WEEK_MS)) for n in range(checks)]


@given(st.floats(0.005, 1.0), st.integers(LEAST_CHECKS, 60), st.integers(WEEK_MS // 3, 4 * WEEK_MS))
def test_steady_growth_is_found_and_dates_are_where_it_leads(weekly: float, checks: int, every_ms: int) -> None:
    seen = figures(weekly, checks=checks, every_ms=every_ms)
    found = growth_of(seen)

    assert found is not None
    assert found.weekly == pytest.approx(weekly, rel=1e-3)
    reached_ms = found.reached_ms(2.0)
    if reached_ms is not None:
        assert found.times_after(reached_ms - seen[-1][0]) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize(
    "seen",
    [
        [],
        figures(0.1, checks=LEAST_CHECKS - 1),
        figures(0.1, checks=20, every_ms=DAY_MS // 4),  # five days: of a week nothing is known
        [(at_ms, 0.0) for at_ms, _ in figures(0.1)],
    ],
)
def test_of_too_little_nothing_is_said(seen: list[tuple[int, float]]) -> None:
    assert growth_of(seen) is None


@pytest.mark.parametrize(
    "logs",
    [
        [0, 0, 0, 0, 0, 0],
        [0.5, 0.4, 0.3, 0.2, 0.1, 0],  # it shrinks
        [0, 0.3, -0.3, 0.3, -0.2, 0.1],  # ups and downs
        [0, 0.001, 0.002, 0.003, 0.004, 0.005],  # 5 % in a year
    ],
)
def test_what_may_be_chance_is_no_growth(logs: list[float]) -> None:
    found = growth_of([(NOW_MS + n * WEEK_MS, math.exp(log)) for n, log in enumerate(logs)])

    assert found is not None
    assert found.weekly == 0
    assert found.reached_ms(1.5) is None
    assert found.reached_ms(0.9) == found.at_ms


ROOMS = (
    Room(limit="80% of the broker's gap limit in a partition", times=2.0, timers_per_day=2.0),
    Room(limit="10 s of silence after an unload", times=3.0, timers_per_day=3.0),
)
DOUBLING = Growth(weekly=1.0, weeks=5, checks=6, at_ms=NOW_MS)
FOURFOLD = Growth(weekly=3.0, weeks=5, checks=6, at_ms=NOW_MS)
FLAT = Growth(weekly=0.0, weeks=5, checks=6, at_ms=NOW_MS)
TREND = Trend(weeks=4, first_timers=1, last_timers=8, weekly_growth=1.0, end_ms=0)


@pytest.mark.parametrize(
    ("volume", "gaps", "trend", "weeks", "basis"),
    [
        (DOUBLING, None, None, 1, "the sends of earlier checks"),
        (DOUBLING, FOURFOLD, None, 0.5, "the gaps that earlier checks predicted"),
        (FLAT, FOURFOLD, None, 0.5, "the gaps that earlier checks predicted"),  # delays become longer
        (None, None, TREND, 1, "the statistic"),
        (FLAT, None, TREND, None, ""),  # checks know better than an old statistic
        (None, None, None, None, ""),
    ],
)
def test_the_limit_that_is_reached_first(
    volume: Growth | None, gaps: Growth | None, trend: Trend | None, weeks: float | None, basis: str
) -> None:
    found = outlook_of(ROOMS, volume, gaps, trend, NOW_MS, 2 * WEEK_MS)

    if weeks is None:
        assert found.reached is None
        assert not found.is_soon
        assert found.times == 1
    else:
        assert found.reached is not None
        assert (found.reached.at_ms, found.reached.basis) == (NOW_MS + round(weeks * WEEK_MS), basis)
        assert found.reached.limit == ROOMS[0].limit
        assert found.is_soon
        assert found.times == pytest.approx(16 if gaps else 4)


LINE = CheckLine(
    at_ms=NOW_MS, due_topic=TOPIC, revision=3, per_second=12.5, delays_ms=(1, 2, 3, 4, 5, 6), predicted=99.5,
    counted=100, worst=60, peak=None, gap_limit=10_000, pending=7.0, level="fine",
)  # fmt: skip


def test_a_log_gives_back_what_was_written_by_due_topic_in_order(tmp_path: Path) -> None:
    log = tmp_path / "checks.jsonl"
    assert read_checks(log, TOPIC) == ()
    earlier = replace(LINE, at_ms=NOW_MS - 5, per_second=None, delays_ms=())
    for line in (LINE, replace(LINE, due_topic="other"), earlier):
        append_check(log, line)

    assert read_checks(log, TOPIC) == (earlier, LINE)
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "text", ["no json", "[]", "{}", json.dumps({"format": 2}), json.dumps({"format": 1, "at_ms": "x"})]
)
def test_what_is_no_log_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    log = tmp_path / "checks.jsonl"
    append_check(log, LINE)
    with log.open("a") as file:
        file.write(text + "\n")

    with pytest.raises(LogUnreadable, match=r"checks.jsonl, line 2") as caught:
        read_checks(log, TOPIC)
    assert caught.value.line == 2


def test_a_log_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadable):
        read_checks(tmp_path, TOPIC)
    with pytest.raises(LogUnreadable):
        append_check(tmp_path / "no-such-folder" / "checks.jsonl", LINE)
