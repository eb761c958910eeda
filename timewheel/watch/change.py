"""Propose a change of a plan that keeps its limits, from the sends of a live topic, as a diff of the plan file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import dump_plan
from timewheel.spark_planner.history.columns import DUE_MS, KEY, PUBLISH_MS, SIZE_BYTES, TOPIC
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.session import ProgressCallback, no_report
from timewheel.watch.checking import Checked, turns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ROWS = 1_000_000
"""Upper limit of rows handed to the planner, repetitions included: a laptop plans for this many within a minute."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """A plan that replaces the present plan.

    Args:
        before: The present plan.
        after: The new plan, its revision higher by 1.
        times: Factor on the present volume that the new plan is made for.
        planned: The planner's result, with its reasons.
    """

    before: Plan
    after: Plan
    times: float
    planned: Planned

    @property
    def keeps_limits(self) -> bool:
        """True if the new plan keeps every limit at that volume; otherwise it breaks the fewest."""
        return self.planned.keeps_limits

    @property
    def is_one(self) -> bool:
        """True if the plans differ in more than the revision."""
        return replace(self.after, revision=self.before.revision) != self.before

    def diff(self, path: str) -> str:
        """Return the unified diff from the present plan file to the new plan, both as `dump_plan` writes them.

        Args:
            path: Path of the present plan file.
        """
        return diff_of(self.before, self.after, path)


def change_for(spark: SparkSession, checked: Checked, *, on_progress: ProgressCallback = no_report) -> Change | None:
    """Plan again for the volume expected at the check's horizon.

    Args:
        spark: Session in which the planner counts candidates.
        checked: Result of the check.
        on_progress: Progress callback.

    Returns:
        The change; None if too few sends were sampled to plan from.
    """
    if not checked.sends.is_enough:
        return None
    plan = checked.plan
    rows, scale = _rows(checked)
    history = survey(spark.createDataFrame(rows), source="the live topics", on_progress=on_progress)
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
        on_progress=on_progress,
    )
    return Change(before=plan, after=changed_plan(plan, planned.plan), times=checked.outlook.times, planned=planned)


def changed_plan(before: Plan, planned: Plan) -> Plan:
    """Put the planned scheme and partitions into the present plan, so that waiting timers continue under it.

    Partitions cannot be removed again, and consumers must know the topics of a former calendar.
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
    """Return the unified diff between the files of two plans."""
    lines = difflib.unified_diff(
        dump_plan(before).splitlines(keepends=True), dump_plan(after).splitlines(keepends=True), path, f"{path} (new)"
    )
    return "".join(lines)


def _rows(checked: Checked) -> tuple[pa.Table, float]:
    """Convert the sends to a history, and return the number of sends that each row stands for.

    A window shorter than a day is repeated until the topics are full; the planner itself continues longer windows.
    """
    sends = checked.sends
    timers, scale = sends.evenly()
    turns = 1
    if sends.window_ms < DAY_MS:
        turns = turns_of(sends.window_ms, max(timer.due_ms - timer.entered_ms for timer in timers))
        turns = max(min(turns, MAX_ROWS // len(timers)), 1)
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
