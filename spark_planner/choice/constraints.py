"""Constraints: a user's limits on a plan, the check of an evaluation, and the prices that compare plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import MINUTE_MS
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Plan

from ..history.keys import KeyShares
from ..pricing.evaluate import BITS_PER_BYTE, Evaluation
from ..pricing.simulation import Simulation

GAP_FRACTION = "gap_fraction"  # decided by a count, as the next
REDELIVERED = "redelivered"  # of a broker that writes bitmaps: whatever the gaps, an unload delivers messages again
COUNTED_LIMITS = frozenset({GAP_FRACTION, REDELIVERED})
SILENCE_SECONDS = "silence_seconds"  # the other constraint that more partitions help
TWICE = 2.0
"""Multiple of a burst's volume for which a plan needs room: the next burst comes while timers of the first wait."""
PEAK_ROOTS = 3.5
"""Greatest distance of a counted peak above the mean, in square roots of the mean. Measured on 1,800 samples of five
kinds of history under two plans: half of the peaks were 0.2 to 2.2 roots above the mean, the highest 3.5 where the mean
was 8 or more.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The distance of the recommended plan from a limit."""

    limit: str  # the limit in words, with its unit
    times: float  # multiple of the volume at which the limit is reached; below 1 the limit is broken now
    timers_per_day: float  # that volume, in timers a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Running cost of a plan, in entries written a second: a single number by which all candidates can be compared.

    Args:
        written: Sends and hops, the mean of the history.
        topics: Price of the plan's partition topics.
        relay: Price of a relay; 0 for a plan without a relay.
    """

    written: float
    topics: float
    relay: float

    @property
    def writes_per_second(self) -> float:
        """Sum of the three parts."""
        return self.written + self.topics + self.relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on a plan (None: not limited), and the prices that compare the plans within these limits.

    Args:
        gap_fraction: Greatest fraction of the broker's gap limit that a partition may use.
        gap_margin: Safety factor on the number of gaps, for events that the history is too short to show.
        silence_seconds: Longest silence of any due partition after an unload.
        hops_mean: Greatest mean of hops per timer.
        hops_max: Most hops of any timer.
        partition_topics: Most partition topics at one time.
        lateness_seconds: Most lateness added by a relay that cannot keep up.
        partitions_min: Partitions that the due topic already has: partitions cannot be taken away.
        partitions_max: Most partitions of the due topic; None: as many as the scheme allows.
        storage_bytes: Most bytes on disk, all copies.
        topic_writes_per_second: Price of a partition topic (memory, connections, metadata, attention), in entries
            written a second.
        relay_writes_per_second: Price of a relay, a service to roll out and to watch, in the same unit. At the default
            a few more native partitions are cheaper than tiers up to some hundred thousand timers a day.
    """

    gap_fraction: float = WATCH_SHARE
    gap_margin: float = 1.0
    silence_seconds: float | None = 10.0
    hops_mean: float | None = None
    hops_max: int | None = None
    partition_topics: int | None = None
    lateness_seconds: float | None = 1.0
    partitions_min: int = 1
    partitions_max: int | None = None
    storage_bytes: float | None = None
    topic_writes_per_second: float = 0.5
    relay_writes_per_second: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.gap_fraction <= 1:
            raise ValueError(f"gap_fraction = {self.gap_fraction}: more than 0, at most 1")
        if not 1 <= self.gap_margin < math.inf:
            raise ValueError(f"gap_margin = {self.gap_margin}: 1 or more")
        if not 1 <= self.partitions_min <= (self.partitions_max or self.partitions_min):
            raise ValueError(f"partitions_min = {self.partitions_min}: 1 or more, at most partitions_max")
        for name in ("silence_seconds", "partition_topics", "storage_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value}: more than 0, or None for no limit")
        for name in ("hops_mean", "hops_max", "lateness_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} = {value}: 0 or more, or None for no limit")
        for name in ("topic_writes_per_second", "relay_writes_per_second"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: 0 or more")

    def allowed_gaps(self, limit_ranges: int) -> float:
        """Return the most gaps that a count may find in a partition of a broker that stores ``limit_ranges`` ranges."""
        return self.gap_fraction / self.gap_margin * limit_ranges

    def cost(self, *, written_entries: float, history_ms: float, partition_topics: int, needs_relay: bool) -> Cost:
        """Return the cost of writing entries over a time, and of running topics and perhaps a relay."""
        return Cost(
            written=written_entries * 1_000 / max(history_ms, MINUTE_MS),
            topics=self.topic_writes_per_second * partition_topics,
            relay=self.relay_writes_per_second if needs_relay else 0.0,
        )

    def cost_of(self, evaluation: Evaluation) -> Cost:
        """Return the cost of running an evaluated plan."""
        return self.cost(
            written_entries=evaluation.written_entries,
            history_ms=evaluation.history_ms,
            partition_topics=evaluation.partition_topics,
            needs_relay=evaluation.needs_relay,
        )

    def cost_with(self, evaluation: Evaluation, partitions: int) -> float:
        """Return the cost of an evaluated plan with another number of partitions, with the same entries written."""
        cost = self.cost_of(evaluation)
        topics = evaluation.dead_letter_topics + evaluation.topics_of_a_partition * partitions
        return cost.written + self.topic_writes_per_second * topics + cost.relay

    def partitions_for_silence(self, evaluation: Evaluation, keys: KeyShares) -> int:
        """Return the fewest partitions that keep silence within its limit, see `KeyShares.fewest`."""
        if self.silence_seconds is None:
            return self.partitions_min
        whole = evaluation.silence_seconds / keys.fullest(evaluation.plan.own_partitions)
        return max(keys.fewest(whole / self.silence_seconds), self.partitions_min)

    def least_partitions(self, simulation: Simulation, profile: BrokerProfile) -> int:
        """Return the fewest partitions that keep gaps and silence within their limits, at most `max_partitions`.

        See `KeyShares.fewest`.
        """
        gaps = simulation.gaps.peak_topic_gaps / self.allowed_gaps(max(profile.gap_limit_ranges, 1))
        pending = 0.0
        if self.silence_seconds is not None:
            pending = simulation.peak_topic_pending * profile.silence_us_per_pending / 1e6 / self.silence_seconds
        fewest = max(simulation.keys.fewest(max(gaps, pending)), self.partitions_min)
        return min(fewest, self.max_partitions(simulation.plan))

    def max_partitions(self, plan: Plan) -> int:
        """Return the most partitions of a plan's due topic, by its scheme and by ``partitions_max``."""
        return plan.max_partitions if self.partitions_max is None else min(self.partitions_max, plan.max_partitions)

    def broken_by(self, evaluation: Evaluation) -> tuple[str, ...]:
        limits: tuple[tuple[str, float, float | None], ...] = (
            (GAP_FRACTION, evaluation.gap_fraction * self.gap_margin, self.gap_fraction),
            (SILENCE_SECONDS, evaluation.silence_seconds, self.silence_seconds),
            ("hops_mean", evaluation.hops_mean, self.hops_mean),
            ("hops_max", evaluation.hops_max, self.hops_max),
            ("partition_topics", evaluation.partition_topics, self.partition_topics),
            ("lateness_seconds", evaluation.lateness_seconds, self.lateness_seconds),
            ("storage_bytes", evaluation.storage_bytes, self.storage_bytes),
        )
        if evaluation.redelivered != evaluation.redelivered_as_ranges:
            limits = (*limits, (REDELIVERED, evaluation.redelivered.worst_entries, 0.0))
        broken = [name for name, value, limit in limits if limit is not None and value > limit * (1 + 1e-9)]
        if not evaluation.cursor_fits_frame:
            broken.append("cursor_frame")
        return tuple(broken)

    def rooms(
        self,
        evaluation: Evaluation,
        profile: BrokerProfile,
        counted: int | None = None,
        growth: float = 1.0,
        compared: Sequence[int] = (),
    ) -> tuple[Room, ...]:
        """Return the volume at which each limit that grows with volume is reached, the nearest first; partitions stay.

        Args:
            evaluation: The evaluation at the planned volume.
            profile: The broker.
            counted: Gaps of the fullest partition in the history, which grow as in `max_countable`; None: gaps grow
                from the estimate.
            growth: The planned volume, as a multiple of the history's volume.
            compared: See `Replay.compared`.
        """
        limit, hops = profile.gap_limit_ranges, evaluation.relay_hops_per_second
        capable = float(profile.relay_hops_per_second)
        parts = {f"{self.gap_fraction:.0%}": self.gap_fraction, "the whole": 1.0}
        shares: list[tuple[str, float, float]] = [
            (f"the {capable:,.0f} hops/s that one relay process is taken to manage", hops, capable)
        ]
        for part, fraction in parts.items() if self.gap_fraction < 1 else [*parts.items()][:1]:
            name, allowed = f"{part} of the broker's gap limit in a partition", fraction / self.gap_margin * limit
            if counted is None:
                shares.append((name, evaluation.gap_fraction * limit, allowed))
            else:
                shares.append((name, _mean_of(counted) * growth, _mean_of(allowed)))
        if self.silence_seconds is not None:
            silence = f"{self.silence_seconds:g} s of silence after an unload"
            shares.append((silence, evaluation.silence_seconds, self.silence_seconds))
        if self.storage_bytes is not None:
            shares.append((f"{self.storage_bytes / 1e9:,.1f} GB on disk", evaluation.storage_bytes, self.storage_bytes))
        frame = float(profile.frame_limit_bytes)
        cursor = f"a persisted cursor of {frame / 1e6:.1f} MB"
        # A bitmap is too small when a cursor has too many ranges to be written as ranges, and too many entries.
        usable = self.gap_fraction / self.gap_margin
        reached = (
            max(usable * len(compared) / tenth, usable * limit / entries)
            for tenth, entries in enumerate(compared, start=1)
            if entries
        )
        if compared:
            bitmap = f"the {limit:,} handled messages that a bitmap keeps"
            shares.append((bitmap, growth / min(reached, default=math.inf), 1.0))
        if profile.ack_format == "bitmap":
            shares.append((cursor, evaluation.span_entries / BITS_PER_BYTE, frame))
        elif (profile.gap_limit_ranges + 1) * profile.bytes_per_range > frame:  # else the gap limit keeps it small
            gaps = evaluation.peak_gaps_per_partition if counted is None else at_growth(counted, growth)
            shares.append((cursor, gaps * profile.bytes_per_range, frame))
        rooms = [
            Room(limit=name, times=most / value, timers_per_day=evaluation.timers_per_day * most / value)
            for name, value, most in shares
            if value > 0
        ]
        return tuple(sorted(rooms, key=lambda room: room.times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The gaps that a count of a history may find in a partition under each plan.

    Args:
        constraints: The user's limits.
        ranges: The broker's gap limit.
        growth: Planned volume, as a multiple of the history's volume.
        upper_of: Returns the factor on a plan's count that is held to the limit: the upper end of its confidence
            interval, see `Continued.upper_of`.
    """

    constraints: Constraints
    ranges: int
    growth: float = 1.0
    upper_of: Callable[[Plan], float] = lambda _: 1.0

    def constraints_for(self, plan: Plan) -> Constraints:
        """Return the limits, with the margin that the plan's confidence interval requires."""
        return replace(self.constraints, gap_margin=self.constraints.gap_margin * self.upper_of(plan))

    def gaps(self, plan: Plan) -> int:
        """Return the most gaps that a count of this plan may find."""
        return max_countable(self.constraints_for(plan).allowed_gaps(self.ranges), self.growth)

    def broken_by(self, plan: Plan, gaps: int, compared: Sequence[int] = ()) -> tuple[str, ...]:
        """Return the names of the limits that a counted plan breaks.

        Args:
            plan: The plan.
            gaps: The most gaps of a partition.
            compared: See `Replay.compared`.
        """
        most = self.gaps(plan)
        found = {GAP_FRACTION: gaps, REDELIVERED: compared_above(compared, most, self.ranges)}
        return tuple(name for name, figure in found.items() if figure > most)


def compared_above(compared: Sequence[int], allowed: int, ranges: int) -> int:
    """Return what a broker compares with its limit for a bitmap (`Replay.compared`), while a cursor has too many ranges
    to be written as ranges: more than a share of them, the share of ``ranges`` that is allowed.
    """
    tenth = min(max(math.floor(allowed / max(ranges, 1) * len(compared) + 1e-9), 1), len(compared))
    return compared[tenth - 1] if compared else 0


def max_countable(allowed: float, growth: float) -> int:
    """Return the highest count of gaps on a history that leaves room for ``growth`` times its volume."""
    # A count is the maximum over many moments, and so stands above the mean by chance, by a few square roots of the
    # mean. The mean grows with the volume, chance only with the root: without a correction, a sample of 1 timer in 200
    # would appear to break limits that the whole topic keeps. So the limit is reduced to a mean, the mean is divided by
    # the growth, and chance is added again. At a growth of 1 the count is compared with ``allowed`` itself.
    mean = _mean_of(allowed) / growth
    return math.floor(mean + PEAK_ROOTS * math.sqrt(mean) + 1e-6)


def at_growth(counted: float, growth: float) -> float:
    """Return the peak that a counted peak becomes at a multiple of the volume; the inverse of `max_countable`."""
    mean = _mean_of(counted) * growth
    return mean + PEAK_ROOTS * math.sqrt(mean)


def times_until(counted: float, allowed: float) -> float:
    """Return the multiple of the counted volume at which so many gaps are reached, as in `max_countable`."""
    return _mean_of(allowed) / max(_mean_of(counted), 1e-9)


def _mean_of(peak: float) -> float:
    """Solve m + PEAK_ROOTS sqrt(m) = peak for the mean m."""
    return (math.sqrt(PEAK_ROOTS**2 / 4 + peak) - PEAK_ROOTS / 2) ** 2
