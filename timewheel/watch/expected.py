"""What a plan comes to hold if timers go on being sent as now: the planner's law on the sends of a live topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.history_span import shows_day
from timewheel.core.plan import Plan
from timewheel.ops.plan_stored import StoredTimer
from timewheel.spark_planner.choice.constraints import Constraints, Room
from timewheel.spark_planner.exact.extended import Stretch
from timewheel.spark_planner.history.keys import LEAST_SHARE, KeyShares
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.steady.continuing import continuation, extended_cells
from timewheel.spark_planner.steady.days import days_of
from timewheel.spark_planner.steady.settling import settling
from timewheel.spark_planner.summary.cells import Cells
from timewheel.watch.sends import Sends

__all__ = ["MOST_TURNS", "Expected", "expected", "turns_of"]

CELL_LIMIT = 200_000
LEAST_CELLS = 500
"""Of a window that comes again: what even the coarsest level may need."""
MOST_TURNS = 400
"""So often a window shorter than a day comes again: an hour tells nothing of what is due in months."""
LEAST_OF_KEY = 10
"""Sampled timers with one key; of fewer its share is not known."""
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The plan under the present sends, once its topics have been full for a while.

    Args:
        evaluation: At the whole volume.
        rooms: How far each limit is, the nearest first.
        broken: Names of the constraints that it breaks.
        is_short: The window is so short against the delays that nobody can say that it goes on like this: the figures
            are not judged. A burst of some seconds is no rate.
        says_no_day: The window is shorter than a day: it is repeated as it is, and day and night are not in it.
    """

    evaluation: Evaluation
    rooms: tuple[Room, ...]
    broken: tuple[str, ...]
    is_short: bool
    says_no_day: bool


def expected(sends: Sends, plan: Plan, profile: BrokerProfile, constraints: Constraints) -> Expected:
    """Evaluate the plan on the sends, continued until its topics are full.

    Sampled timers are not multiplied, which would put many of them at one moment: the volume is raised instead
    (``growth``), as the planner does with the file of a sample.

    Args:
        sends: Enough of them (`Sends.is_enough`).
        plan: The one that is in force.
        profile: The broker.
        constraints: What is asked of a plan.
    """
    timers, scale = sends.evenly()
    publish_ms, due_ms = _times(timers)
    cells = Cells.of_timers(publish_ms, due_ms, np.array([timer.size_bytes for timer in timers], np.int64))
    is_day = shows_day(sends.window_ms)
    is_short = False
    if is_day:
        found = settling(cells)
        if found is not None and found.has_rate:
            further = continuation(days_of(cells), found.settles_ms, np.random.default_rng(_SEED))
            cells = extended_cells(cells, further.stretches, CELL_LIMIT)
    else:
        turns = turns_of(sends.window_ms, int((due_ms - publish_ms).max()))
        is_short = turns == MOST_TURNS
        again = tuple(
            Stretch(from_ms=sends.from_ms, until_ms=sends.until_ms, shift_ms=turn * sends.window_ms)
            for turn in range(1, 1 if is_short else turns)
        )
        # As coarse as all turns together will have to be: else there would be millions of them for a moment.
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
    """How often a window must come, itself included, until what is sent in its first turn is all due, and once more."""
    return min(max(-(-longest_ms // window_ms) + 2, 2), MOST_TURNS)


def _times(timers: Sequence[StoredTimer]) -> tuple[np.ndarray, np.ndarray]:
    publish_ms = np.array([timer.entered_ms for timer in timers], np.int64)
    return publish_ms, np.array([timer.due_ms for timer in timers], np.int64)


def _keys(timers: Sequence[StoredTimer]) -> KeyShares:
    counts = Counter(timer.key for timer in timers if timer.key is not None)
    least = max(LEAST_SHARE * len(timers), LEAST_OF_KEY)
    return KeyShares(len(timers), tuple((key, count) for key, count in counts.most_common() if count >= least))
