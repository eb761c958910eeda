"""Replays of a topic: each plan is played through once, as exactly as needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.spark_planner.errors import EmptyHistory
from timewheel.spark_planner.exact.replay import Replay, replay, replay_all
from timewheel.spark_planner.exact.sends import CachedSends
from timewheel.spark_planner.history.columns import DUE_MS, PUBLISH_MS
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.progress import ProgressCallback, told
from timewheel.spark_planner.traffic import Traffic

__all__ = ["Replays"]

NATIVE = Plan(due_topic="persistent://public/default/any", subscriptions=("any",))
EXACT_PEAK_TIMERS = 5_000_000
"""Most timers for which a replay repeats its passes until peaks are exact between its 4,096 moments too."""


class Replays:
    """Replays of a topic, each made at most once; on exit the cached sends are released.

    Attributes:
        traffic: The replayed traffic.
    """

    def __init__(self, traffic: Traffic, on_progress: ProgressCallback) -> None:
        self.traffic = traffic
        self._report = on_progress
        self._spark = traffic.history.rows.sparkSession
        self._replays: dict[Plan, Replay] = {}
        self._sent_for_less: dict[int, tuple[int, int]] = {}
        self._rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.traffic.forget()

    def keys(self) -> KeyShares:
        """Return the heaviest keys of the topic."""
        return self._cached().keys[self.traffic.topic]

    def count(self, plans: Sequence[Plan], *, refuted_above: float = math.inf) -> list[int]:
        """Count the most gaps of any partition under each plan; a figure above ``refuted_above`` is a lower bound."""
        self._rounds += any(not self._has(plan, refuted_above) for plan in plans)
        stage = f"counting {counted(len(plans), 'candidate')}, round {self._rounds}"
        self.play(plans, stage, refuted_above=refuted_above)
        return [self._replays[plan].peak_per_partition.gap_count for plan in plans]

    def above_ms(self, plan: Plan, gap_count: int) -> int:
        """Return the longest time for which a partition has more gaps under a counted plan, to 1/4,096 of the total."""
        return self._replays[plan].gaps.above_ms(gap_count)

    def lasting(self, plan: Plan, gap_count: int, share: float) -> tuple[int, int]:
        """Return (longest time with more gaps in a partition, the most gaps of any partition for a share of the time).

        Needs the count of the plan.
        """
        gaps = self._replays[plan].gaps
        may, does = gaps.above(gap_count)
        finer = gaps.grid.refined(may & ~does)
        lasts_ms = gaps.above_ms(gap_count)
        if finer is not None and finer.spans.any():
            with told(self._spark, "timing the peak", self._report, one_job=False):
                (found,) = replay_all(self._cached(), [plan], grid=finer)
            steps_ms = np.diff(gaps.grid.points_ms, prepend=gaps.grid.points_ms[0])
            lasts_ms = int(steps_ms[does].sum()) + found.gaps.above_ms(gap_count)
        return lasts_ms, gaps.mostly(share)

    def counted(self, plans: Iterable[Plan]) -> dict[Plan, int]:
        """Return the counts known so far of counted plans."""
        return {plan: self._replays[plan].peak_per_partition.gap_count for plan in plans}

    def play(self, plans: Sequence[Plan], stage: str, *, refuted_above: float = math.inf) -> None:
        """Replay the plans that were not replayed yet: until peaks are exact or refuted, if the traffic is small."""
        wanted = [plan for plan in dict.fromkeys(plans) if not self._has(plan, refuted_above)]
        if not wanted:
            return
        cached = self._cached()
        with told(self._spark, stage, self._report, one_job=False):
            found = replay_all(cached, wanted, exact_peaks=self._can_be_exact, refuted_above=refuted_above)
            self._replays |= zip(wanted, found, strict=True)

    def alone(self, plan: Plan) -> Replay:
        """Replay the history without its continuation."""
        cached = self.traffic.history.cached.of(self.traffic.topic)
        with told(self._spark, "replaying the history alone", self._report, one_job=False):
            (found,) = replay_all(cached, [plan], exact_peaks=self._can_be_exact)
        return found

    def sent_for_less(self, delay_ms: int) -> tuple[int, int]:
        """Return (timers of the history with a shorter delay, the most gaps of these alone on a single partition)."""
        if delay_ms not in self._sent_for_less:
            timers = self.traffic.history.timers_of(self.traffic.topic)
            rows = timers.where(F.col(DUE_MS) - F.col(PUBLISH_MS) < delay_ms)
            with told(self._spark, "counting timers of short delays alone", self._report, one_job=False):
                try:
                    found = replay(rows, NATIVE, exact_peak=self._can_be_exact)
                except EmptyHistory:
                    self._sent_for_less[delay_ms] = 0, 0
                else:
                    self._sent_for_less[delay_ms] = found.entries, found.peak_of_total.gap_count
        return self._sent_for_less[delay_ms]

    @property
    def _can_be_exact(self) -> bool:
        return self.traffic.cells.timers <= EXACT_PEAK_TIMERS

    def _cached(self) -> CachedSends:
        if "cached" not in vars(self.traffic.history):
            with told(self._spark, "putting the history in order", self._report, one_job=False):
                _ = self.traffic.history.cached
        if "cached" not in vars(self.traffic) and self.traffic.continuation is not None:
            days = len(self.traffic.continuation.sources)
            with told(self._spark, f"continuing the history by {days} days", self._report, one_job=False):
                _ = self.traffic.cached
        return self.traffic.cached

    def of(self, plan: Plan) -> Replay:
        """Return the replay of a plan."""
        return self._replays[plan]

    def _has(self, plan: Plan, refuted_above: float) -> bool:
        found = self._replays.get(plan)
        if found is None or not self._can_be_exact:
            return found is not None
        partition = found.peak_per_partition
        return partition.gap_count > refuted_above or (partition.is_exact and found.peak_of_total.is_exact)
