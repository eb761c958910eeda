"""Evaluate a plan under the present sends: the planner's model applied to the sends of a live topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.gap_law import shows_day
from timewheel.core.plan import Plan
from timewheel.inspect.plan_sample import StoredTimer
from timewheel.spark_planner.choice.constraints import Constraints, Room
from timewheel.spark_planner.exact.sends import Stretch
from timewheel.spark_planner.extrapolation import continuation, days_of, extended_cells, warm_up
from timewheel.spark_planner.history.keys import LEAST_SHARE, KeyShares
from timewheel.spark_planner.pricing.evaluate import Evaluation, evaluate
from timewheel.spark_planner.summary.cells import Cells
from timewheel.watch.sends import Sends

CELL_LIMIT = 200_000
LEAST_CELLS = 500
"""Least number of cells of a repeated window: even the coarsest level may need this many."""
MAX_TURNS = 400
"""Limit of repetitions of a window shorter than a day: an hour of sends does not show the timers due in months."""
LEAST_OF_KEY = 10
"""Least number of sampled timers with the same key from which the key's share is estimated."""
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The plan under the present sends, once its topics have filled up.

    Args:
        evaluation: Evaluation at the whole volume.
        rooms: Distance to each limit, the nearest first.
        broken: Names of the broken constraints.
        is_short: True if the window is too short against the delays to assume that the rate lasts: the figures are not
            judged. A burst of some seconds is no rate.
        says_no_day: True if the window is shorter than a day: it is repeated unchanged, without day and night.
    """

    evaluation: Evaluation
    rooms: tuple[Room, ...]
    broken: tuple[str, ...]
    is_short: bool
    says_no_day: bool


def expected(sends: Sends, plan: Plan, profile: BrokerProfile, constraints: Constraints) -> Expected:
    """Evaluate the plan on the sends, continued until its topics are full.

    The volume is scaled (``growth``) as the planner scales the file of a sample. Multiplying the sampled timers instead
    would put many of them at the same moment. The sends are enough (`Sends.is_enough`).
    """
    timers, scale = sends.evenly()
    publish_ms = np.array([timer.entered_ms for timer in timers], np.int64)
    due_ms = np.array([timer.due_ms for timer in timers], np.int64)
    cells = Cells.of_timers(publish_ms, due_ms, np.array([timer.size_bytes for timer in timers], np.int64))
    is_day = shows_day(sends.window_ms)
    is_short = False
    if is_day:
        found = warm_up(cells)
        if found is not None and found.has_rate:
            further = continuation(days_of(cells), found.warm_up_ms, np.random.default_rng(_SEED))
            cells = extended_cells(cells, further.stretches, CELL_LIMIT)
    else:
        turns = turns_of(sends.window_ms, int((due_ms - publish_ms).max()))
        is_short = turns == MAX_TURNS
        again = tuple(
            Stretch(from_ms=sends.from_ms, until_ms=sends.until_ms, shift_ms=turn * sends.window_ms)
            for turn in range(1, 1 if is_short else turns)
        )
        # As coarse as all turns together will have to be; otherwise millions of cells would exist for a moment.
        cells = extended_cells(cells.bounded(max(CELL_LIMIT // turns, LEAST_CELLS)), again, CELL_LIMIT)
    evaluation = evaluate(plan, cells, profile, growth=scale, keys=_keys(timers))
    return Expected(
        evaluation=evaluation,
        rooms=constraints.rooms(evaluation, profile),
        broken=constraints.broken_by(evaluation),
        is_short=is_short,
        says_no_day=not is_day,
    )


def turns_of(window_ms: int, longest_ms: int) -> int:
    """Return how many turns of a window bring all sends of the first turn due, plus one more turn."""
    return min(max(-(-longest_ms // window_ms) + 2, 2), MAX_TURNS)


def _keys(timers: Sequence[StoredTimer]) -> KeyShares:
    counts = Counter(timer.key for timer in timers if timer.key is not None)
    least = max(LEAST_SHARE * len(timers), LEAST_OF_KEY)
    return KeyShares(len(timers), tuple((key, count) for key, count in counts.most_common() if count >= least))
