"""Traffic: a history that was looked at, and what of it a plan is made for.

A history that is shorter than its delays shows how a topic fills up, not how it is once it is full. Its traffic is
continued by days of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.core.plan import Plan
from timewheel.spark_planner.errors import EmptyHistory, NoSoundRow, NoSuchTopic, SeveralTopics
from timewheel.spark_planner.exact.extended import extended
from timewheel.spark_planner.exact.sends import Kept, keep
from timewheel.spark_planner.history.columns import TOPIC
from timewheel.spark_planner.history.mapping import ColumnMapping
from timewheel.spark_planner.history.quarantine import assessed, sound_rows
from timewheel.spark_planner.progress import Tell, told, untold
from timewheel.spark_planner.steady.band import Band, band
from timewheel.spark_planner.steady.continuing import Continuation, continuation, extended_cells
from timewheel.spark_planner.steady.days import days_of
from timewheel.spark_planner.steady.settling import Settling, settling
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.histogram import CELL_LIMIT, TOPIC_LIMIT, statistic_of
from timewheel.spark_planner.summary.statistic import Statistic

__all__ = ["History", "Traffic", "survey", "traffic_of"]

MOST_TIMERS = 25_000_000
"""Of a continued history: with delays of a year a week of ten million timers would be half a billion."""
MOST_DAYS = 800
"""Further days: nobody can say of a week what it will be like in years."""
_SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """A history that was looked at once.

    Args:
        source: Its name.
        rows: Every row with the reason against it, `columns.ASSESSED_SCHEMA`.
        statistic: What a plan is made from.
        kept: The sends of the sound rows, in order, in Spark's cache (`Kept.forget` gives its room back); made when it
            is first asked for, from one more pass over the rows.
    """

    source: str
    rows: DataFrame
    statistic: Statistic

    @cached_property
    def kept(self) -> Kept:
        return keep(sound_rows(self.rows))

    def topic(self, wanted: str | None = None) -> str:
        """The topic to plan for: the wanted one, or the only one (empty: the history names none).

        Raises:
            NoSuchTopic: The history does not have it.
            SeveralTopics: There is more than one, and none was named.
        """
        topics = list(self.statistic.cells)
        if wanted is not None and wanted not in topics:
            raise NoSuchTopic(wanted, topics)
        if wanted is None and len(topics) > 1:
            raise SeveralTopics(topics)
        return topics[0] if wanted is None else wanted

    def cells(self, topic: str) -> Cells:
        """The statistic's cells of a topic."""
        return self.statistic.cells[topic]

    def timers_of(self, topic: str) -> DataFrame:
        """The sound rows of a topic, `columns.HISTORY_SCHEMA`."""
        return sound_rows(self.rows).where(F.col(TOPIC) == topic)


def survey(
    raw: DataFrame,
    mapping: ColumnMapping | None = None,
    *,
    topic: str | None = None,
    source: str = "given",
    cell_limit: int = CELL_LIMIT,
    topic_limit: int = TOPIC_LIMIT,
    tell: Tell = untold,
) -> History:
    """Look at a history: one pass, which reads every row once.

    Args:
        raw: As `read.read_history` gives it, or any frame.
        mapping: Its columns; None: the usual names.
        topic: Leave all others out; None: take all.
        source: Its name for errors and reports.
        cell_limit: See `histogram.statistic_of`, also for the errors.
        topic_limit: The same.
        tell: Told of the progress.

    Raises:
        NoSuchTopic: The history does not have it.
    """
    every = rows = raw.transform(assessed(mapping or ColumnMapping()))
    if topic is not None:
        # A row of no topic is in quarantine, and is counted there.
        rows = every.where((F.col(TOPIC) == topic) | F.col(TOPIC).isNull())
    try:
        with told(raw.sparkSession, "reading the history", tell, one_job=True):
            statistic = statistic_of(rows, cell_limit=cell_limit, topic_limit=topic_limit, source=source)
    except (EmptyHistory, NoSoundRow):
        others = sound_rows(every).select(TOPIC).distinct().limit(TOPIC_LIMIT).collect() if topic is not None else []
        if topic is None or not others:
            raise
        raise NoSuchTopic(topic, sorted(row[0] for row in others)) from None
    return History(source=source, rows=rows, statistic=statistic)


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """What a plan is made for: the timers of one topic, continued where the history is too short.

    Args:
        history: As it was looked at.
        topic: Of the history.
        cells: Of all that it is made for.
        settling: What is known of a history that is too short; None: it is long enough.
        continuation: How it goes on; None: it does not.
        unfit: Why it does not, though it is too short: it was not to (``as_is``), or it would be too much.
        band: How far native gaps may be from what the continuation shows; None: it is not known.
        kept: The sends in order, in Spark's cache (`forget`); made when they are first asked for.
    """

    history: History
    topic: str
    cells: Cells
    settling: Settling | None
    continuation: Continuation | None = None
    unfit: Literal["", "as_is", "days", "timers"] = ""
    band: Band | None = None

    @cached_property
    def kept(self) -> Kept:
        own = self.history.kept.of(self.topic)
        return own if self.continuation is None else extended(own, self.continuation.stretches)

    def forget(self) -> None:
        """Give back the cache's room of what was continued; that of the history's own sends is the history's."""
        if self.continuation is not None and "kept" in vars(self):
            self.kept.forget()

    @property
    def upper(self) -> float:
        """As many times what the continuation shows is planned for: the upper end of the band."""
        return 1.0 if self.band is None else self.band.high


def traffic_of(history: History, topic: str, *, as_is: bool = False) -> Traffic:
    """What a plan for a topic is made for; runs no job.

    Args:
        history: As `survey` gives it.
        topic: Of the history.
        as_is: Whatever the history's length, what is in it is all that there will be.
    """
    alone = history.cells(topic)
    found = settling(alone)
    own = Traffic(history=history, topic=topic, cells=alone, settling=found)
    if found is None:
        return own
    if as_is:
        return replace(own, unfit="as_is")
    rng = np.random.default_rng(_SEED)
    continued = continuation(days_of(alone), found.settles_ms, rng)
    if len(continued.sources) > MOST_DAYS:
        return replace(own, unfit="days")
    if alone.timers * (1 + len(continued.sources) / len(continued.days.begins_ms)) > MOST_TIMERS:
        return replace(own, unfit="timers")
    native = Plan(due_topic="persistent://public/default/continued", subscriptions=("any",))
    return replace(
        own,
        cells=extended_cells(alone, continued.stretches, CELL_LIMIT),
        continuation=continued,
        band=band(alone, native, continued, rng),
    )
