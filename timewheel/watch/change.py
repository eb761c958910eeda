"""The change of a plan that keeps its limits, from the sends of a live topic, as a diff of the plan file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import dump_plan
from timewheel.spark_planner.history.columns import DUE_MS, KEY, PUBLISH_MS, SIZE_BYTES, TOPIC
from timewheel.spark_planner.job import Planned, plan_for
from timewheel.spark_planner.progress import Tell, untold
from timewheel.spark_planner.traffic import survey
from timewheel.watch.checking import Checked
from timewheel.watch.expected import turns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MOST_ROWS", "Change", "change_for", "changed_plan", "diff_of"]

MOST_ROWS = 1_000_000
"""Of the sends that are handed to the planner, repeated: what a laptop plans for within a minute."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """A plan that is to take the place of the present one.

    Args:
        before: The present plan.
        after: The other, its revision one higher.
        times: For as many times the present volume.
        planned: Why, as the planner says it.
    """

    before: Plan
    after: Plan
    times: float
    planned: Planned

    @property
    def keeps_limits(self) -> bool:
        """Whether it keeps every limit at that volume; if not, it breaks the fewest."""
        return self.planned.keeps_limits

    @property
    def is_one(self) -> bool:
        """Whether anything but the revision differs."""
        return replace(self.after, revision=self.before.revision) != self.before

    def diff(self, path: str) -> str:
        """From the present plan file to the other, unified; both as `dump_plan` writes them.

        Args:
            path: Of the present file.
        """
        return diff_of(self.before, self.after, path)


def change_for(spark: SparkSession, checked: Checked, *, tell: Tell = untold) -> Change | None:
    """Plan again, for the volume that there will be at the check's horizon.

    Args:
        spark: The planner counts candidates with it.
        checked: What was seen.
        tell: Told of the progress.

    Returns:
        None: too few sends were seen to plan from.
    """
    if not checked.sends.is_enough:
        return None
    plan = checked.plan
    rows, scale = _rows(checked)
    history = survey(spark.createDataFrame(rows), source="the live topics", tell=tell)
    longest_ms = max(timer.due_ms - timer.entered_ms for timer in checked.sends.timers)
    planned = plan_for(
        history,
        plan.due_topic,
        plan,
        checked.profile,
        checked.constraints,
        max_delay_ms=max(plan.max_delay_ms, longest_ms),
        growth=scale * checked.outlook.times,
        as_is=checked.sends.window_ms < DAY_MS,
        tell=tell,
    )
    return Change(before=plan, after=changed_plan(plan, planned.plan), times=checked.outlook.times, planned=planned)


def changed_plan(before: Plan, planned: Plan) -> Plan:
    """The planned scheme and partitions in the present plan, so that timers that wait go on by it.

    Partitions cannot be taken away again, and consumers must know of the topics of a former calendar.
    """
    former_ms = before.former_intervals_ms
    scheme = before.scheme
    if isinstance(scheme, Calendar) and planned.scheme != scheme and scheme.interval_ms not in former_ms:
        former_ms = (*former_ms, scheme.interval_ms)
    return replace(
        before,
        scheme=planned.scheme,
        partitions=max(before.partitions, planned.partitions),
        max_delay_ms=planned.max_delay_ms,
        revision=before.revision + 1,
        former_intervals_ms=former_ms,
    )


def diff_of(before: Plan, after: Plan, path: str) -> str:
    """From one plan's file to another's, unified.

    Args:
        before: The one.
        after: The other.
        path: How to name the file.
    """
    lines = difflib.unified_diff(
        dump_plan(before).splitlines(keepends=True), dump_plan(after).splitlines(keepends=True), path, f"{path} (new)"
    )
    return "".join(lines)


def _rows(checked: Checked) -> tuple[pa.Table, float]:
    """The sends as a history, and how many sends stand behind each.

    A window shorter than a day comes again and again until the topics are full; the planner continues longer ones.
    """
    sends = checked.sends
    timers, scale = sends.evenly()
    turns = 1
    if sends.window_ms < DAY_MS:
        turns = turns_of(sends.window_ms, max(timer.due_ms - timer.entered_ms for timer in timers))
        turns = max(min(turns, MOST_ROWS // len(timers)), 1)
    shifts_ms = [turn * sends.window_ms for turn in range(turns)]
    table = pa.table(
        {
            PUBLISH_MS: pa.array([timer.entered_ms + shift for shift in shifts_ms for timer in timers], pa.int64()),
            DUE_MS: pa.array([timer.due_ms + shift for shift in shifts_ms for timer in timers], pa.int64()),
            SIZE_BYTES: pa.array([timer.size_bytes for timer in timers] * turns, pa.int64()),
            KEY: pa.array([timer.key for timer in timers] * turns, pa.string()),
            TOPIC: pa.array([checked.plan.due_topic] * (len(timers) * turns), pa.string()),
        }
    )
    return table, scale
