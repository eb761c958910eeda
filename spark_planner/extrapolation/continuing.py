"""Continuation: extrapolates a history by repeating whole days of its own, until its topic has long been full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.exact.extended import Stretch
from timewheel.spark_planner.extrapolation.days import WEEK, Days
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Continuation", "continuation", "extended_cells"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The days that continue a history.

    Args:
        days: The days of the history.
        sources: Indexes of the days that each further day repeats, in order of time.
    """

    days: Days
    sources: tuple[int, ...]

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The repeated stretches and their shifts: whole days, so that times of day stay the same."""
        found = []
        for further, source in enumerate(self.sources):
            begins_ms = self.days.begins_ms[source]
            shift_ms = self.days.end_ms + further * DAY_MS - begins_ms
            found.append(Stretch(from_ms=begins_ms, until_ms=begins_ms + DAY_MS, shift_ms=shift_ms))
        return tuple(found)


def continuation(days: Days, warm_up_ms: int, rng: np.random.Generator) -> Continuation:
    """Draw enough days for the topic to fill up, and a further week in which it is full.

    Each of the days that may be drawn is used equally often, in random order; from three weeks of days on, a Monday
    follows a Sunday.

    Args:
        days: Days of the history.
        warm_up_ms: Length of the warm-up, see `warm_up.WarmUp`.
        rng: Source of randomness.
    """
    history_days = len(days.begins_ms)
    wanted = max(-(-warm_up_ms // DAY_MS) + WEEK - history_days, WEEK)
    if not days.by_weekday:
        return Continuation(days=days, sources=tuple(islice(_in_turns(days.drawn, rng), wanted)))
    of_weekday = [_in_turns([day for day in days.drawn if day % WEEK == weekday], rng) for weekday in range(WEEK)]
    sources = tuple(next(of_weekday[(history_days + further) % WEEK]) for further in range(wanted))
    return Continuation(days=days, sources=sources)


def _in_turns(days: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    for _ in count():
        yield from (days[index] for index in rng.permutation(len(days)).tolist())


def extended_cells(cells: Cells, stretches: tuple[Stretch, ...], limit: int) -> Cells:
    """Add copies of the stretches to the cells, as `extended.extended` does to sends.

    A cell belongs to the stretch that contains its middle.

    Args:
        cells: Cells of one topic.
        stretches: Stretches of publish times.
        limit: The most cells.
    """
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
