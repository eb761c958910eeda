"""Constraints: what a user asks of a plan, and which of it an evaluation breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timewheel.core.plan import MAX_PARTITIONS
from timewheel.core.profile import BrokerProfile
from timewheel.spark_planner.course import Course
from timewheel.spark_planner.evaluation import Evaluation

__all__ = ["Constraints", "Room"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How far one limit is from being reached by the recommended plan.

    Args:
        limit: Which, in words.
        times: As many times the volume may come until it is reached; below 1 it is broken now.
        timers_per_day: That volume.
    """

    limit: str
    times: float
    timers_per_day: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on a plan; None: not limited.

    Args:
        gap_fraction: Greatest part of the broker's gap limit that a partition may use.
        silence_seconds: After an unload, of any due partition.
        hops_mean: Per timer.
        hops_max: Of any timer.
        partition_topics: To run at one time.
        lateness_seconds: Added by a relay that cannot keep up.
        storage_bytes: On disk, all copies.
    """

    gap_fraction: float = 0.8
    silence_seconds: float | None = 10.0
    hops_mean: float | None = None
    hops_max: int | None = None
    partition_topics: int | None = None
    lateness_seconds: float | None = 1.0
    storage_bytes: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.gap_fraction <= 1:
            raise ValueError(f"gap_fraction = {self.gap_fraction}: more than 0, at most 1")
        for name in ("silence_seconds", "partition_topics", "storage_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value}: more than 0, or None for no limit")
        for name in ("hops_mean", "hops_max", "lateness_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} = {value}: 0 or more, or None for no limit")

    def least_partitions(self, course: Course, profile: BrokerProfile) -> int:
        """The fewest partitions with which gaps and silence keep their limits, at most what a plan may have."""
        gaps = course.gaps.peak_topic_gaps / (self.gap_fraction * max(profile.gap_limit_ranges, 1))
        pending = 0.0
        if self.silence_seconds is not None:
            pending = course.peak_topic_pending * profile.silence_us_per_pending / 1e6 / self.silence_seconds
        return min(max(math.ceil(gaps), math.ceil(pending), 1), MAX_PARTITIONS)

    def broken_by(self, evaluation: Evaluation) -> tuple[str, ...]:
        """The names of those that an evaluation breaks."""
        limits: tuple[tuple[str, float, float | None], ...] = (
            ("gap_fraction", evaluation.gap_fraction, self.gap_fraction),
            ("silence_seconds", evaluation.silence_seconds, self.silence_seconds),
            ("hops_mean", evaluation.hops_mean, self.hops_mean),
            ("hops_max", evaluation.hops_max, self.hops_max),
            ("partition_topics", evaluation.partition_topics, self.partition_topics),
            ("lateness_seconds", evaluation.lateness_seconds, self.lateness_seconds),
            ("storage_bytes", evaluation.storage_bytes, self.storage_bytes),
        )
        broken = [name for name, value, limit in limits if limit is not None and value > limit * (1 + 1e-9)]
        if not evaluation.cursor_fits_frame:
            broken.append("cursor_frame")
        return tuple(broken)

    def rooms(self, evaluation: Evaluation, profile: BrokerProfile) -> tuple[Room, ...]:
        """The volume at which each limit is reached that grows with it, the nearest first."""
        per_day = evaluation.timers_per_day
        shares: list[tuple[str, float, float | None]] = [
            ("gaps of a partition", evaluation.gap_fraction, self.gap_fraction),
            ("the broker's gap limit", evaluation.gap_fraction, 1.0),
            ("silence after an unload", evaluation.silence_seconds, self.silence_seconds),
            ("the persisted cursor", evaluation.cursor_bytes, float(profile.frame_limit_bytes)),
            ("hops of one relay process", evaluation.relay_hops_per_second, float(profile.relay_hops_per_second)),
            ("storage", evaluation.storage_bytes, self.storage_bytes),
        ]
        rooms = [
            Room(limit=name, times=limit / value, timers_per_day=per_day * limit / value)
            for name, value, limit in shares
            if limit is not None and value > 0
        ]
        return tuple(sorted(rooms, key=lambda room: room.times))
