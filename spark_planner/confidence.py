"""Confidence interval of a plan's peak of gaps on a continued history: a bootstrap over the history's days.

A continuation is made of few days, and shows few weeks. So many runs are drawn: days with replacement, days of a run
from these, each day's volume changed at random, as far as such days differ. The peak of a run over `RUN_DAYS` is
compared with the peak that the same sums give for the continuation itself; a count of the continuation times this ratio
is a peak that the topic may come to. Whatever the sums leave out is so left out on both sides.

The gaps of a run are sums over its days. The sends of each day are reduced once to points, and for each scheme to a
table by age of the day:

- Native delays, calendars, rings: neighbours in a due topic were sent one after another, so the gaps of a day add to
  those of the others. At any moment only the topic of the current interval has gaps, so that the sum is that of the
  fullest topic. The rings of a wheel release a slot in the order of sends, so the finest slot is an interval.
- Tiers: timers of many days arrive side by side, and share neighbours. So entries and acknowledged entries are summed,
  by time of arrival, and the gaps follow from the sums.

Neighbours are independent: of n entries, of which a are acknowledged, a (1 - a / n) have a range behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Plan, Tiered, Wheel
from timewheel.core.steps import far_ms, longest_due_stay_ms

from .pricing.flow import GOLDEN, Pieces, pieces_of, repeated, routed
from .summary.cells import Cells, Floats, Integers

Singles = NDArray[np.float32]

RUNS = 200
RUN_DAYS = 120  # days of a run in which the topic is full: a season
CERTAINTY = 0.95
NORMAL = 1.96  # standard deviations of a normal distribution that contain this share
BAND_CELLS = 30_000  # most cells of all days together: some 0.2 seconds for a plan
POINTS = 40_000  # points that these cells become
MAX_POINTS_OF_CELL = 8
HOURLY_DAYS = 60  # with longer delays the moments are a day apart
PARTS_OF_DAY = 12  # parts of a day in which sends count as neighbours
MAX_PHASES = 10  # more places of a day within its interval are taken together
BINS_PER_STAY = 6  # bins of arrival within the stay in the due topic, of whole hours
MAX_STAY_BINS = 48
WEEK = 7
LEAST_PAIRS = 4  # pairs of the same weekday that show how much days differ apart from the weekday
SILVERMAN = 1.06  # bandwidth of a smoothed bootstrap, in standard deviations times the number of values to the -1/5
SMOOTHING = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceInterval:
    """The 95 % confidence interval of the peak of a topic that is full, as multiples of the continuation's peak."""

    low: float  # lower end
    high: float  # upper end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """Values that the days of a run add to each of its days."""

    ages: Singles  # by (age in days, phase and day of the history, moment of the day)
    phases: int  # days after which the moments have the same place in their intervals
    groups: int  # phases that the table has; these are taken together if there are fewer
    bins: int = 0  # for tiers: bins of acknowledgement, for each moment; 0: the values are gaps

    def peaks(self, days: Integers, volumes: Singles) -> Floats:
        """Return the peak of each run, from days of the history and their volumes, both (runs, days)."""
        runs, length = days.shape
        phase = np.arange(length) % self.phases * self.groups // self.phases
        in_history = self.ages.shape[1] // self.groups
        found = np.zeros((runs, length, self.ages.shape[2]), np.float32)
        for age, table in enumerate(self.ages[:length]):
            until = length - age
            found[:, age:] += table[phase[age:] * in_history + days[:, :until]] * volumes[:, :until, None]
        gaps = _tier_gaps(found.reshape(runs, -1, self.bins)) if self.bins else found.reshape(runs, -1)
        peaks: Floats = gaps.max(axis=1).astype(np.float64)
        return peaks


def _mixed(entries: Any, low: Any, high: Any) -> Any:
    """Return the gaps of entries in random order, halfway between two numbers of acknowledged entries."""
    acknowledged = (low + high) / 2
    return acknowledged * (1 - acknowledged / np.maximum(entries, 1e-6))


def _tier_gaps(acknowledged: Singles) -> Singles:
    """Return the gaps at each moment, of entries by (run, bin of arrival, bins until acknowledgement)."""
    runs, moments, bins = acknowledged.shape
    gaps = np.zeros((runs, moments), np.float32)
    entries, low = acknowledged[..., -1], np.zeros((runs, moments), np.float32)
    for later in range(min(bins, moments)):
        high = acknowledged[..., later]
        gaps[:, later:] += _mixed(entries, low, high)[:, : moments - later]
        low = high
    return gaps


def _wider(days: int) -> float:
    """Return the correction for few days: their spread is less than that of all days, and is itself uncertain
    (Student's t, by the series of Cornish and Fisher).
    """
    freedom = days - 1
    t = NORMAL
    t += (NORMAL**3 + NORMAL) / (4 * freedom)
    t += (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / (96 * freedom**2)
    return t / NORMAL * math.sqrt(days / freedom)


class Bands:
    """Confidence intervals of plans, computed once for each scheme.

    Args:
        cells: Cells of the history; others are left out.
        begins_ms: The beginnings of its days, each a day after the one before.
        drawn: Indexes of the days that a run is drawn from, two at least.
        sources: Indexes of the days that continue the history.
    """

    def __init__(self, cells: Cells, begins_ms: Sequence[int], drawn: Sequence[int], sources: Sequence[int]) -> None:
        self._begin_ms, self._days, self._drawn = begins_ms[0], len(begins_ms), np.array(drawn)
        self._own = np.array([[*range(self._days), *sources]])
        self._found: dict[object, ConfidenceInterval | None] = {}
        pieces = pieces_of(cells.sent_within(begins_ms[0], begins_ms[-1] + DAY_MS).bounded(BAND_CELLS))
        parts = min(max(POINTS // max(len(pieces), 1), 1), MAX_POINTS_OF_CELL)
        owner, turn = repeated(np.full(len(pieces), parts))
        place, other = (turn + 0.5) / parts, (np.arange(len(owner)) * GOLDEN) % 1.0
        sent_ms = pieces.first_ms[owner] + place * (pieces.last_ms - pieces.first_ms)[owner]
        due_ms = pieces.low_ms[owner] + other * (pieces.high_ms - pieces.low_ms)[owner]
        due_ms += np.where(pieces.fixed[owner], sent_ms, 0.0)
        # A piece may reach a little beyond the days.
        sent_ms = np.clip(sent_ms - self._begin_ms, 0.0, self._days * DAY_MS - 1.0)
        self._count, self._sent_ms = pieces.count[owner] / parts, sent_ms
        self._due_ms = np.maximum(due_ms - self._begin_ms, sent_ms)

    def of(self, plan: Plan) -> ConfidenceInterval | None:
        """Return the confidence interval of a plan, regardless of its partitions; None: the days leave no gap."""
        key = plan.scheme, plan.intake
        if key not in self._found:
            self._found[key] = self._computed(plan)
        return self._found[key]

    def _computed(self, plan: Plan) -> ConfidenceInterval | None:
        if not len(self._count):
            return None
        table = self._tiers(plan) if isinstance(plan.scheme, Tiered) else self._intervals(plan)
        (own,) = table.peaks(self._own, np.ones(self._own.shape, np.float32)).tolist()
        if own < 1:
            return None
        days, volumes = self._runs(len(table.ages) + RUN_DAYS, np.random.default_rng(0))
        peaks = np.concatenate(
            [table.peaks(days[low : low + 25], volumes[low : low + 25]) for low in range(0, RUNS, 25)]
        )
        tail = (1 - CERTAINTY) / 2
        low, middle, high = np.quantile(peaks, [tail, 0.5, 1 - tail]).tolist()
        # Add the random error of a count.
        wider, error = _wider(len(self._drawn)), NORMAL / math.sqrt(own)
        return ConfidenceInterval(
            low=max(middle / own * (1 - math.hypot(wider * (1 - low / middle), error)), 0.0),
            high=middle / own * (1 + math.hypot(wider * (high / middle - 1), error)),
        )

    def _runs(self, length: int, rng: np.random.Generator) -> tuple[Integers, Singles]:
        """Draw (days of the history, their volumes) of each run."""
        number = len(self._drawn)
        pools = rng.integers(0, number, (RUNS, number))
        days = self._drawn[np.take_along_axis(pools, rng.integers(0, number, (RUNS, length)), axis=1)]
        # The fullest of few days is not the fullest of a season: volumes are smoothed. Few days do not show how much
        # volumes differ either, so a run takes any part of the smoothing, also none.
        bandwidth = SMOOTHING * SILVERMAN * number**-0.2 * self._spread() * rng.uniform(0, 2, (RUNS, 1))
        volumes = np.exp(bandwidth * rng.standard_normal((RUNS, length)) - bandwidth**2 / 2)
        # A run goes on from the history, also from days that are not drawn.
        own = np.broadcast_to(np.arange(self._days), (RUNS, self._days))
        return np.hstack([own, days]), np.hstack([np.ones(own.shape), volumes]).astype(np.float32)

    def _spread(self) -> float:
        """Return the standard deviation of the logarithm of days' volumes, apart from their weekdays if they show."""
        timers = np.bincount((self._sent_ms // DAY_MS).astype(np.int64), self._count, self._days)
        size = np.log(np.maximum(timers, 1.0))
        spread = float(size[self._drawn].std(ddof=1))
        known = set(self._drawn.tolist())
        pairs = [size[day + WEEK] - size[day] for day in known if day + WEEK in known]
        return min(spread, math.sqrt(np.square(pairs).mean() / 2)) if len(pairs) >= LEAST_PAIRS else spread

    def _intervals(self, plan: Plan) -> _Table:
        match plan.scheme:
            case Calendar(interval_ms=interval_ms):
                pass
            case Wheel(rings=rings):
                interval_ms = rings[0].slot_ms
            case _:
                interval_ms = 0
        day = (self._sent_ms // DAY_MS).astype(np.int64)
        due_ms = self._due_ms - day * DAY_MS
        ages = int(due_ms.max() // DAY_MS) + 1
        step_ms = HOUR_MS if ages <= HOURLY_DAYS else DAY_MS
        moments = DAY_MS // step_ms
        columns = ages * moments
        part = (self._sent_ms // (DAY_MS // PARTS_OF_DAY)).astype(np.int64)
        shape = self._days, PARTS_OF_DAY, columns
        due = np.bincount(part * columns + (due_ms // step_ms).astype(np.int64), self._count, math.prod(shape))
        by_then = np.zeros((*shape[:2], columns + 1))
        np.cumsum(due.reshape(shape), axis=2, out=by_then[..., 1:])
        # Of an interval shorter than a step, gaps grow with the timers of the step.
        interval = max(round(interval_ms / step_ms), 1) if interval_ms else 0
        phases = interval // math.gcd(interval, moments) if interval else 1
        groups = min(phases, MAX_PHASES)
        at = np.arange(columns)
        found = np.zeros((ages, groups, self._days, moments), np.float32)
        for group in range(groups):
            opens, closes = np.zeros(columns, np.int64), np.full(columns, columns)
            if interval:
                phase = int((group + 0.5) * phases / groups)
                since = self._begin_ms % interval_ms // step_ms + phase * moments
                opens = at - (since + at % moments) % interval
                opens, closes = np.maximum(opens, 0), np.minimum(opens + interval, columns)
            before = by_then[..., opens]
            gaps = _mixed(by_then[..., closes] - before, by_then[..., at] - before, by_then[..., at + 1] - before)
            found[:, group] = gaps.sum(axis=1).reshape(self._days, ages, moments).transpose(1, 0, 2)
        return _Table(ages=found.reshape(ages, -1, moments), phases=phases, groups=groups)

    def _tiers(self, plan: Plan) -> _Table:
        points = Pieces(
            count=self._count,
            first_ms=self._sent_ms,
            last_ms=self._sent_ms,
            fixed=np.zeros(len(self._count), np.bool_),
            low_ms=self._due_ms,
            high_ms=self._due_ms,
        )
        flow = routed(plan, points)
        pieces = flow.pieces
        arrival_ms = pieces.first_ms + flow.stay_ms
        acknowledged_ms = np.maximum(pieces.due_ms, arrival_ms)
        day = np.minimum(pieces.first_ms // DAY_MS, self._days - 1).astype(np.int64)
        stay_ms = min(
            float((acknowledged_ms - arrival_ms).max()), far_ms(plan) if plan.intake else longest_due_stay_ms(plan)
        )
        step_ms = max(
            [hours * HOUR_MS for hours in (2, 3, 4, 6, 8, 12, 24) if hours * HOUR_MS * BINS_PER_STAY <= stay_ms],
            default=HOUR_MS,
        )
        moments, bins = DAY_MS // step_ms, min(int(stay_ms // step_ms) + 2, MAX_STAY_BINS)
        at = ((arrival_ms - day * DAY_MS) // step_ms).astype(np.int64)
        until = ((acknowledged_ms - day * DAY_MS) // step_ms).astype(np.int64)
        ages = int(at.max()) // moments + 1
        place = (at // moments * self._days + day) * moments + at % moments
        later = np.minimum(until - at, bins - 1)
        found = np.bincount(place * bins + later, pieces.count, ages * self._days * moments * bins)
        acknowledged = np.cumsum(found.reshape(ages, self._days, moments, bins), axis=3).astype(np.float32)
        return _Table(ages=acknowledged.reshape(ages, self._days, -1), phases=1, groups=1, bins=bins)
