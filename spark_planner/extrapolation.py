"""Extrapolates a history that is shorter than its delays: warm-up, days to repeat, continuation, trend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Literal

import numpy as np

from timewheel.core.durations import DAY_MS, HOUR_MS, ROUND_MS
from timewheel.core.gap_law import shows_day, shows_full
from timewheel.core.plan import Plan

from .confidence import Bands, ConfidenceInterval
from .exact.sends import Stretch
from .pricing.simulation import NATIVE
from .summary.cells import CELL_LIMIT, Cells, Floats

WEEK = 7
WEEKS_BY_WEEKDAY = 3
"""From this many weeks on, a day is compared with the same weekdays: an event of every Monday is no exception."""
LEAST_DAYS_FOR_CAMPAIGNS = 4  # fewer days do not show an ordinary day
CAMPAIGN_TIMES = 4.0  # ratio to the same hour of the other days
CAMPAIGN_SHARE = 0.2  # share of an ordinary day's timers; a smaller excess is ignored
MAX_CAMPAIGN_DAYS = 0.25  # share of the days; if there are more, campaigns are the topic's normal use
TREND_ROOTS = 3.0  # least difference of a week from the first, in its standard errors over the days of the week
LEAST_TREND = 0.1  # least difference of a week from the first, as a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Whole days of a history, of 24 hours each, counted back from its last send."""

    begins_ms: tuple[int, ...]  # beginning of each day, ascending, UTC milliseconds
    drawn: tuple[int, ...]  # days that may be repeated: indexes into ``begins_ms``
    campaigns: tuple[int, ...]  # days that are not repeated, because of a campaign that happened once
    weekly_growth: float  # relative growth of the volume per week; 0: no significant growth

    @property
    def end_ms(self) -> int:
        return self.begins_ms[-1] + DAY_MS

    @property
    def by_weekday(self) -> bool:
        """True if there are enough days to draw a Monday for a Monday, with every weekday among them."""
        return len(self.drawn) >= WEEKS_BY_WEEKDAY * WEEK and len({day % WEEK for day in self.drawn}) == WEEK


def days_of(cells: Cells) -> Days:
    """Return the days of a history that has at least a day."""
    end_ms = int(cells.publish_max_ms.max()) + 1
    # The first day may lack up to an hour: the first and last sends of a week are somewhere within it.
    number = max((end_ms - int(cells.publish_min_ms.min()) + HOUR_MS) // DAY_MS, 1)
    begins_ms = end_ms - DAY_MS * np.arange(number, 0, -1)
    hours = by_hour(cells, end_ms, number)
    campaigns = _campaigns(hours) if cells.slot_ms <= HOUR_MS else []
    ordinary = [day for day in range(number) if day not in campaigns]
    weekly_growth, timers = 0.0, hours.sum(axis=1)
    if number >= 2 * WEEK and not campaigns:
        # The first week against the last, weekday by weekday.
        last = np.roll(timers[-WEEK:], (number - WEEK) % WEEK)
        weekly_growth = compounded(timers[:WEEK], last, (number - WEEK) / WEEK)
    # A growing history continues with its last week; it has no campaigns.
    drawn = range(number - WEEK, number) if weekly_growth else ordinary
    return Days(
        begins_ms=tuple(begins_ms.tolist()), drawn=tuple(drawn), campaigns=tuple(campaigns), weekly_growth=weekly_growth
    )


def by_hour(cells: Cells, end_ms: int, number: int) -> Floats:
    """Count timers by day and hour of the day, with days counted back from the end."""
    hour = number * 24 - 1 - (end_ms - 1 - cells.middle_ms) // HOUR_MS
    inside = hour >= 0
    counts = np.bincount(hour[inside], cells.count[inside].astype(np.float64), number * 24).astype(np.float64)
    return counts.reshape(number, 24)


def _campaigns(hours: Floats) -> list[int]:
    number = len(hours)
    if number < LEAST_DAYS_FOR_CAMPAIGNS:
        return []
    ordinary = np.empty_like(hours)
    kinds = WEEK if number >= WEEKS_BY_WEEKDAY * WEEK else 1
    for kind in range(kinds):
        ordinary[kind::kinds] = np.median(hours[kind::kinds], axis=0)
    is_much = hours > CAMPAIGN_TIMES * (ordinary + 1)
    excess = np.where(is_much, hours - ordinary, 0.0).sum(axis=1)
    found = np.flatnonzero(excess > CAMPAIGN_SHARE * max(float(np.median(hours.sum(axis=1))), 1.0))
    # A campaign may last several days; days apart are campaigns that recur, and belong to the topic's normal use.
    is_once = bool((np.diff(found) == 1).all())
    return found.tolist() if is_once and len(found) <= MAX_CAMPAIGN_DAYS * number else []


def compounded(first: Floats, last: Floats, weeks: float) -> float:
    """Return the relative growth of the volume per week, compounded; negative for a falling volume."""
    # 0: the two differ by no more than days do among themselves, or by too little.
    differences = last - first
    error = float(differences.std(ddof=1)) / np.sqrt(len(first)) + 1e-9
    ratio = float(last.sum() / max(first.sum(), 1.0))
    if abs(float(differences.mean())) < TREND_ROOTS * error or abs(ratio - 1) < LEAST_TREND or ratio <= 0:
        return 0.0
    return float(ratio ** (1 / weeks) - 1)


LEAST_WEEKS = 3  # the difference of two weeks may come from an event in either of them
LEAST_PAIRS = 4  # weekdays that were ordinary in both weeks: fewer do not show the spread of days
LONGEST_WEEKS = 522  # ten years: some weeks do not show the use of a topic after that


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Growth of a history's volume."""

    weeks: int  # full weeks, counted back from the last send
    first_timers: float  # timers sent in the first week, on the compared days
    last_timers: float  # timers sent in the last week, on the same weekdays
    weekly_growth: float  # relative growth per week, compounded; 0: flat, falling or not significant
    end_ms: int  # end of the last week, UTC milliseconds

    def reached_ms(self, times: float) -> int | None:
        """Return the time at which the volume is ``times`` that of the last week, UTC milliseconds."""
        # None: the volume does not grow, or not that far within `LONGEST_WEEKS`. With 1 or less: the end of the
        # history.
        if times <= 1:
            return self.end_ms
        if self.weekly_growth <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly_growth)
        return None if weeks > LONGEST_WEEKS else self.end_ms + round(weeks * WEEK * DAY_MS)


def trend_of(cells: Cells) -> Trend | None:
    """Compute the trend of a history's own days: its last full week against its first, weekday by weekday."""
    # None: fewer than `LEAST_WEEKS` full weeks, or too few ordinary days. A day with a campaign that happened once is
    # left out, and so is its weekday in the other week. The cells are of the history alone: a continuation only repeats
    # its own days.
    if not len(cells) or int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min()) < DAY_MS:
        return None
    days = days_of(cells)
    number = len(days.begins_ms)
    weeks = number // WEEK
    if weeks < LEAST_WEEKS:
        return None
    timers = by_hour(cells, days.end_ms, number).sum(axis=1)
    pairs = [
        (first, first + (weeks - 1) * WEEK)
        for first in range(number - weeks * WEEK, number - (weeks - 1) * WEEK)
        if not {first, first + (weeks - 1) * WEEK} & set(days.campaigns)
    ]
    if len(pairs) < LEAST_PAIRS:
        return None
    first, last = (timers[[pair[side] for pair in pairs]] for side in (0, 1))
    return Trend(
        weeks=weeks,
        first_timers=float(first.sum()),
        last_timers=float(last.sum()),
        weekly_growth=max(compounded(first, last, weeks - 1), 0.0),
        end_ms=days.end_ms,
    )


MISSING = 0.01
"""Share of the steady state's pending timers: a history is long enough if at most this share is missing at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The steady state of a topic under native delays, if the send rate of a too short history continues."""

    history_ms: int  # time from the first send of the history to the last
    # length of the warm-up: after this time 99 % of the steady state's pending timers wait, and a history of this
    # length is long enough
    warm_up_ms: int
    pending: float = 0.0  # timers that wait at any time, if each is sent by itself
    gaps: float = 0.0  # ranges at any time, if neighbours' delays are independent
    # true if the history has at least a day. A burst of a minute is no rate that could continue: the steady state is
    # unknown, and ``pending`` and ``gaps`` are 0.
    has_rate: bool = True


def warm_up(cells: Cells) -> WarmUp | None:
    """Compute the steady state of a topic; None: the history is long enough to show it."""
    # With ``L`` sends a second and delays distributed as ``F``, ``L`` times the mean delay wait, of which ``L`` times
    # the integral of ``1 - F`` up to ``T`` wait after ``T``; and native delays leave ``L`` times the integral of ``F (1
    # - F)`` gaps: rate times half the mean difference of two delays.
    history_ms = int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min())
    at_ms, below = _distribution(cells)
    before, after, length_ms = below[:-1], below[1:], np.diff(at_ms)
    waits_ms = length_ms * (1 - (before + after) / 2)
    mean_ms = float(at_ms[0]) + float(waits_ms.sum())
    missing_ms = np.r_[np.cumsum(waits_ms[::-1])[::-1], 0.0]
    warm_up_ms = int(at_ms[int(np.argmax(missing_ms <= MISSING * mean_ms))])
    if not shows_day(history_ms):
        return WarmUp(history_ms=history_ms, warm_up_ms=warm_up_ms, has_rate=False)
    if shows_full(history_ms, warm_up_ms):
        return None
    # ``below`` is linear between two points, so its square is exact by Simpson's rule.
    squares = (before * before + before * after + after * after) / 3
    spread_ms = float((length_ms * ((before + after) / 2 - squares)).sum())
    per_ms = cells.timers / history_ms
    return WarmUp(history_ms=history_ms, warm_up_ms=warm_up_ms, pending=per_ms * mean_ms, gaps=per_ms * spread_ms)


def _distribution(cells: Cells) -> tuple[Floats, Floats]:
    """Return (delays, share of timers with a shorter delay), linear in between: timers are uniform within a cell."""
    low = cells.delay_min_ms.astype(np.float64)
    high = np.maximum(cells.delay_max_ms.astype(np.float64), low + 1.0)
    density = cells.count / (high - low)
    at_ms, where = np.unique(np.concatenate([low, high]), return_inverse=True)
    slopes = np.cumsum(np.bincount(where, np.concatenate([density, -density])))
    below = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at_ms))]) / cells.timers
    return at_ms, np.clip(below, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The days that continue a history."""

    days: Days  # the days of the history
    sources: tuple[int, ...]  # indexes of the days that each further day repeats, in order of time

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The repeated stretches and their shifts: whole days, so that times of day stay the same."""
        found = []
        for further, source in enumerate(self.sources):
            begins_ms = self.days.begins_ms[source]
            shift_ms = self.days.end_ms + further * DAY_MS - begins_ms
            found.append(Stretch(from_ms=begins_ms, until_ms=begins_ms + DAY_MS, shift_ms=shift_ms))
        return tuple(found)


COMPLETE_MS = (*(duration_ms for duration_ms in ROUND_MS if DAY_MS <= duration_ms <= 10 * DAY_MS), WEEK * DAY_MS)
"""Intervals of calendars and slots that a continuation shows complete; its last week shows all shorter ones. To
complete an interval may take twice its length: 20 days would double the usual continuation. Of such an interval the
continuation shows a part, and the plan's band makes up for it, since it is for seasons of complete intervals.
"""


def continuation(days: Days, warm_up_ms: int, rng: np.random.Generator, most: int | None = None) -> Continuation:
    """Draw enough days for the topic to fill up, a further week in which it is full, and the rest of the first interval
    of each calendar for which all sends are there.

    Args:
        days: The days of the history.
        warm_up_ms: Time until the topic is full.
        rng: Chooses the days.
        most: The number of further days up to which intervals are completed; None: always.
    """
    # Each of the days that may be drawn is used equally often, in random order; from three weeks of days on, a Monday
    # follows a Sunday.
    history_days = len(days.begins_ms)
    wanted = max(-(-warm_up_ms // DAY_MS) + WEEK - history_days, WEEK)
    # All sends that may be due in an interval are there if it begins when the topic is full. An interval longer than
    # the warm-up divides little: its topic is as full as that of native delays.
    full_ms = days.begins_ms[0] + warm_up_ms
    ends_ms = [(-(-full_ms // long_ms) + 1) * long_ms for long_ms in COMPLETE_MS if long_ms <= warm_up_ms]
    complete = -(-(max(ends_ms, default=0) - days.end_ms) // DAY_MS)
    if most is None or complete <= most:
        wanted = max(wanted, complete)
    if not days.by_weekday:
        return Continuation(days=days, sources=tuple(islice(_in_turns(days.drawn, rng), wanted)))
    of_weekday = [_in_turns([day for day in days.drawn if day % WEEK == weekday], rng) for weekday in range(WEEK)]
    sources = tuple(next(of_weekday[(history_days + further) % WEEK]) for further in range(wanted))
    return Continuation(days=days, sources=sources)


def _in_turns(days: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    for _ in count():
        yield from (days[index] for index in rng.permutation(len(days)).tolist())


def extended_cells(cells: Cells, stretches: tuple[Stretch, ...], limit: int) -> Cells:
    """Add copies of the stretches to the cells, as `sends.extended` does to sends."""
    # A cell belongs to the stretch that contains its middle.
    shifted = [cells]
    for from_ms, until_ms, shift_ms in stretches:
        part = cells.sent_within(from_ms, until_ms)
        shifted.append(
            replace(
                part,
                publish_min_ms=part.publish_min_ms + shift_ms,
                publish_max_ms=part.publish_max_ms + shift_ms,
                due_min_ms=part.due_min_ms + shift_ms,
                due_max_ms=part.due_max_ms + shift_ms,
            )
        )
    return Cells.merged(shifted).bounded(limit)


LEAST_DAYS = 3  # fewer days do not show the spread of days
MAX_TIMERS = 25_000_000
"""Most timers of a continued history: with delays of a year, a week of ten million timers would become half a billion.
"""
MAX_DAYS = 800  # most further days: a week does not show the use of a topic in years
_SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """The timers of a topic that a plan is made for, continued if the history is too short."""

    cells: Cells  # cells of all these timers
    warm_up: WarmUp | None  # the warm-up of a topic whose history is too short; None: the history is long enough
    continuation: Continuation | None = None  # the continuation of the history; None: it is not continued
    # reason why a history that is too short is not continued: the user declined (``as_is``), it has no whole day
    # (``burst``), or the continuation would be too large (``days``, ``timers``)
    unfit: Literal["", "as_is", "burst", "days", "timers"] = ""

    @cached_property
    def _bands(self) -> Bands | None:
        if self.continuation is None or len(self.continuation.days.drawn) < LEAST_DAYS:
            return None
        days = self.continuation.days
        return Bands(self.cells, days.begins_ms, days.drawn, self.continuation.sources)

    def band(self, plan: Plan) -> ConfidenceInterval | None:
        """Return the confidence interval of a plan's peak, as multiples of the count on the continuation, computed once
        for each scheme; None: the history is not continued, there are too few days, or they leave no gap.
        """
        if self._bands is None or self.warm_up is None or self.warm_up.gaps < 1:
            return None
        return self._bands.of(plan)

    @property
    def confidence(self) -> ConfidenceInterval | None:
        """The confidence interval of native gaps."""
        return self.band(NATIVE)

    def upper_of(self, plan: Plan) -> float:
        """Return the factor on a plan's count for which it is chosen: the upper end of its band, else that of native
        gaps, at least 1.
        """
        found = self.band(plan) or self.confidence
        return 1.0 if found is None else max(found.high, 1.0)

    @property
    def is_short(self) -> bool:
        """True if the history is too short, is not continued, and the user did not take it as complete."""
        return self.unfit not in ("", "as_is")


def continued_from(alone: Cells, *, as_is: bool = False, cell_limit: int = CELL_LIMIT) -> Continued:
    """Continue a history, if it is too short, with at most ``cell_limit`` cells."""
    found = warm_up(alone)
    if found is None:
        return Continued(cells=alone, warm_up=None)
    if as_is:
        return Continued(cells=alone, warm_up=found, unfit="as_is")
    if not found.has_rate:
        return Continued(cells=alone, warm_up=found, unfit="burst")
    rng = np.random.default_rng(_SEED)
    days = days_of(alone)
    most = min(MAX_DAYS, int((MAX_TIMERS / alone.timers - 1) * len(days.begins_ms)))
    continued = continuation(days, found.warm_up_ms, rng, most)
    if len(continued.sources) > most:
        return Continued(cells=alone, warm_up=found, unfit="days" if len(continued.sources) > MAX_DAYS else "timers")
    cells = extended_cells(alone, continued.stretches, cell_limit)
    return Continued(cells=cells, warm_up=found, continuation=continued)
