"""Traffic: a surveyed history, with the timers that a plan is made for.

A history that is shorter than its delays shows the warm-up of a topic, not its steady state. Its traffic is
extrapolated by repeating days of the history.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from .errors import EmptyHistory, NoSuchTopic, NoValidRows
from .exact.sends import CachedSends, daily_gaps, extended, keep
from .extrapolation import Continued, continued_from
from .history.columns import TOPIC
from .history.read import ColumnMapping, assessed, sound_rows
from .progress import ProgressCallback, no_report, told
from .summary.cells import CELL_LIMIT, Cells
from .summary.statistic import TOPIC_LIMIT, Statistic, statistic_of
from .summary.survey import Survey


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """A history that was surveyed once.

    Args:
        source: Name of the history.
        rows: Every row with the reason against it, `columns.ASSESSED_SCHEMA`.
        statistic: The statistic, from which a plan is made.
        has_ids: True if its timers have ids, so that of copies only the first is used.
        cached: The sends of the sound rows, in order, in Spark's cache (released by `CachedSends.forget`); built on
            first use, by another pass over the rows.
    """

    source: str
    rows: DataFrame
    statistic: Statistic
    has_ids: bool = False

    @cached_property
    def cached(self) -> CachedSends:
        return keep(sound_rows(self.rows))

    def topic(self, wanted: str | None = None) -> str:
        """Return the topic to plan for, see `Statistic.topic`."""
        return self.statistic.topic(wanted)

    def cells(self, topic: str) -> Cells:
        """Return the statistic's cells of a topic."""
        return self.statistic.cells[topic]

    def survey(self, on_progress: ProgressCallback = no_report) -> Survey:
        """Build the summary of the history that needs no rows; runs a job over `cached`."""
        spark = self.rows.sparkSession
        with told(spark, "putting the history in order", on_progress, one_job=False):
            cached = self.cached
        with told(spark, "counting native gaps by day", on_progress, one_job=False):
            return Survey(statistic=self.statistic, gaps=daily_gaps(cached), keys=cached.keys)

    def timers_of(self, topic: str) -> DataFrame:
        """Return the sound rows of a topic, `columns.HISTORY_SCHEMA`."""
        return sound_rows(self.rows).where(F.col(TOPIC) == topic)


def survey(
    raw: DataFrame,
    mapping: ColumnMapping | None = None,
    *,
    topic: str | None = None,
    source: str = "given",
    cell_limit: int = CELL_LIMIT,
    topic_limit: int = TOPIC_LIMIT,
    on_progress: ProgressCallback = no_report,
) -> History:
    """Survey a history: a single pass, which reads every row once.

    Args:
        raw: Result of `read.read_history`, or any DataFrame.
        mapping: The history's columns; None: the usual names.
        topic: Leave all other topics out; None: take all.
        source: The history's name for errors and reports.
        cell_limit: See `statistic.statistic_of`, also for the errors.
        topic_limit: See `statistic.statistic_of`, also for the errors.
        on_progress: Receives the progress.

    Raises:
        NoSuchTopic: The history does not have the topic.
    """
    wanted = mapping or ColumnMapping()
    every = rows = raw.transform(assessed(wanted))
    if topic is not None:
        # A row without a topic is in quarantine, and is counted there.
        rows = every.where((F.col(TOPIC) == topic) | F.col(TOPIC).isNull())
    try:
        with told(raw.sparkSession, "reading the history", on_progress, one_job=True):
            statistic = statistic_of(rows, cell_limit=cell_limit, topic_limit=topic_limit, source=source)
    except (EmptyHistory, NoValidRows):
        others = sound_rows(every).select(TOPIC).distinct().limit(TOPIC_LIMIT).collect() if topic is not None else []
        if topic is None or not others:
            raise
        raise NoSuchTopic(topic, sorted(row[0] for row in others)) from None
    has_ids = wanted.resolved(raw.columns).timer_id is not None
    return History(source=source, rows=rows, statistic=statistic, has_ids=has_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic(Continued):
    """The timers that a plan is made for, and the sends on which it is counted.

    Args:
        history: The surveyed history.
        topic: Topic of the history.
        cached: The sends in order, in Spark's cache (`forget`); built on first use.
    """

    history: History
    topic: str

    @cached_property
    def cached(self) -> CachedSends:
        own = self.history.cached.of(self.topic)
        return own if self.continuation is None else extended(own, self.continuation.stretches)

    def forget(self) -> None:
        """Release the cache of the continued sends; the history releases that of its own sends."""
        if self.continuation is not None and "cached" in vars(self):
            self.cached.forget()


def traffic_of(history: History, topic: str, *, as_is: bool = False) -> Traffic:
    """Return the traffic that a plan for a topic is made for; runs no job.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        as_is: Take the history as complete, regardless of its length.
    """
    found = continued_from(history.cells(topic), as_is=as_is)
    own = {field.name: getattr(found, field.name) for field in fields(found)}
    return Traffic(history=history, topic=topic, **own)
