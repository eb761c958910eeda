"""Projection of growth over the earlier checks in a log: the limit that is reached first, and its date."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from timewheel.core.durations import DAY_MS
from timewheel.core.slope import slope_of
from timewheel.inspect.errors import LogUnreadable
from timewheel.inspect.json_log import append_lines, read_lines
from timewheel.spark_planner.choice.constraints import Room
from timewheel.spark_planner.extrapolation import Trend

WEEK_MS = 7 * DAY_MS
LEAST_CHECKS = 4  # three checks lie on a line too easily
LEAST_SPAN_MS = WEEK_MS  # from the first check to the last: within a week, the days of the week differ
LEAST_WEEKLY = 0.002  # about ten per cent a year; less counts as no growth
LONGEST_WEEKS = 522  # ten years: some weeks of checks predict nothing beyond that


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of a figure.

    Args:
        weekly: Weekly growth rate, compounded, 0.01 for 1 %; 0 if no growth was found.
        weeks: Length of the observation, in weeks.
        checks: Number of checks behind the estimate.
        at_ms: Time of the last check, UTC milliseconds.
    """

    weekly: float
    weeks: float
    checks: int
    at_ms: int

    def reached_ms(self, times: float) -> int | None:
        """Return when the figure reaches `times` its last value, UTC milliseconds.

        Returns None if the figure never does, or not within `LONGEST_WEEKS`, and `at_ms` if `times` is 1 or less.
        """
        if times <= 1:
            return self.at_ms
        if self.weekly <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly)
        return None if weeks > LONGEST_WEEKS else self.at_ms + round(weeks * WEEK_MS)

    def times_after(self, span_ms: int) -> float:
        """Return the factor on the last value after a span of time."""
        return math.exp(math.log1p(self.weekly) * span_ms / WEEK_MS)


def growth_of(figures: Sequence[tuple[int, float]]) -> Growth | None:
    """Fit a line through the logarithms, by least squares.

    Args:
        figures: (moment in UTC milliseconds, figure); figures of 0 or less are left out.

    Returns:
        The growth; None if the figures are too few or too close together.
    """
    found = sorted((at_ms, math.log(figure)) for at_ms, figure in figures if figure > 0)
    if len(found) < LEAST_CHECKS or found[-1][0] - found[0][0] < LEAST_SPAN_MS:
        return None
    weeks = [(at_ms - found[0][0]) / WEEK_MS for at_ms, _ in found]
    logs = [log for _, log in found]
    slope = slope_of(weeks, logs)
    weekly = math.expm1(slope.value)
    return Growth(
        weekly=weekly if slope.is_up and weekly >= LEAST_WEEKLY else 0.0,
        weeks=weeks[-1],
        checks=len(found),
        at_ms=found[-1][0],
    )


GAP_LIMIT = "gap limit"  # the phrase by which a `Room` of gaps names its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A limit that growth will reach, and the growing figure, in words; the time is UTC milliseconds."""

    limit: str
    at_ms: int
    growth: Growth
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Projection to the horizon (UTC milliseconds): growth of the sends, and of the predicted peak of gaps."""

    until_ms: int
    volume: Growth | None
    gaps: Growth | None
    reached: Reached | None  # the limit that is reached first; None if growth reaches no limit, or is unknown
    times: float  # volume at the horizon divided by the present volume; 1 without growth

    @property
    def compares(self) -> bool:
        """True if earlier figures suffice to estimate growth."""
        return self.volume is not None or self.gaps is not None

    @property
    def is_soon(self) -> bool:
        """True if a limit is reached within the horizon."""
        return self.reached is not None and self.reached.at_ms <= self.until_ms


def outlook_of(
    rooms: Sequence[Room], volume: Growth | None, gaps: Growth | None, trend: Trend | None, now_ms: int, horizon_ms: int
) -> Outlook:
    """Find the limit that is reached first; a statistic's trend counts if checks show no growth of the volume."""
    basis = "the sends of earlier checks"
    if volume is None and trend is not None:
        volume = Growth(weekly=trend.weekly_growth, weeks=trend.weeks, checks=0, at_ms=now_ms)
        basis = "the statistic"
    found = []
    for room in rooms:
        ways = [(volume, basis)]
        if GAP_LIMIT in room.limit:
            ways.append((gaps, "the gaps that earlier checks predicted"))
        for growth, by in ways:
            at_ms = None if growth is None or growth.weekly <= 0 else growth.reached_ms(room.times)
            if growth is not None and at_ms is not None:
                found.append(Reached(limit=room.limit, at_ms=at_ms, growth=growth, basis=by))
    times = max((growth.times_after(horizon_ms) for growth in (volume, gaps) if growth is not None), default=1.0)
    return Outlook(
        until_ms=now_ms + horizon_ms,
        volume=volume,
        gaps=gaps,
        reached=min(found, key=lambda reached: reached.at_ms, default=None),
        times=max(times, 1.0),
    )


MAX_LINES = 100_000  # eleven years of hourly checks


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """The logged figures of a check.

    Args:
        at_ms: Time of the check, UTC milliseconds.
        per_second: Sends per second; None if too few were sampled.
        delays_ms: Delays not exceeded by `sends.SHARES` of the sends; empty if too few were sampled.
        predicted: Gaps predicted from the entries of the due topics, for the subscription with the most, all partitions
            together.
        counted: The same by the broker's counter.
        worst: Gaps of the fullest partition, by that counter.
        peak: Gaps of the fullest partition at their peak, if sends continue at this rate; None if unknown.
        gap_limit: The broker's gap limit.
        pending: Entries in the due topics that are not due yet.
    """

    at_ms: int
    due_topic: str
    revision: int
    per_second: float | None
    delays_ms: tuple[int, ...]
    predicted: float
    counted: int
    worst: int
    peak: float | None
    gap_limit: int
    pending: float
    level: str


def read_checks(path: Path, due_topic: str) -> tuple[CheckLine, ...]:
    """Read the checks of a due topic, in the order of their times; empty if the file does not exist.

    Raises:
        LogUnreadable: The file cannot be read, or is not a log of checks.
    """
    parse = TypeAdapter(CheckLine).validate_python
    found = list(islice(read_lines(path, parse, "check", LogUnreadable), MAX_LINES + 1))
    if len(found) > MAX_LINES:
        raise LogUnreadable(str(path), 0, f"it has more than {MAX_LINES:,} lines: begin another log")
    return tuple(sorted((line for line in found if line.due_topic == due_topic), key=lambda line: line.at_ms))


def append_check(path: Path, line: CheckLine) -> None:
    """Append a check to a log; creates the file, but no folder.

    Raises:
        LogUnreadable: The file cannot be written.
    """
    append_lines(path, [asdict(line)], LogUnreadable)
