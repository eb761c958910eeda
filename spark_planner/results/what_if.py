"""What-if analysis: the cheapest candidate at another volume, another limit or another price.

A compact statistic of all candidates goes into the page of a report, whose JavaScript computes `WhatIf.cheapest` of it
(`_report/templates/what_if.js`). The functions here define that computation: they read only the statistic, and do the
same arithmetic in the same order. Their formulas are those of `Constraints`, with gaps, waiting messages and entries in
proportion to the volume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import MAX_PARTITIONS, Tiered
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.choose import Choice
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.choice.decide import HELPED
from timewheel.spark_planner.choice.reasons import describe
from timewheel.spark_planner.job import Planned

__all__ = ["Found", "Option", "Setting", "WhatIf", "calibrated", "statistic_of", "what_if", "windows_ms"]

BY_SLIDERS = frozenset(
    {"gap_fraction", "silence_seconds", "partition_topics", "lateness_seconds", "storage_bytes", "cursor_frame"}
)
"""Limits that depend on the setting; the other limits are kept at all settings or at none."""
SLACK = 1e-9
"""Tolerance for rounding errors of floats."""
MORE = 1 + 1e-6
"""Factor just above a limit."""
SAME = 1.001
"""The recommended plan stays unless another is cheaper by a thousandth, the accuracy of the partitions' price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate at the planned volume, in numbers that do not depend on its partitions.

    Args:
        name: The scheme in words.
        window_ms: Window of a tiered plan; 0 for other plans.
        written: Entries a second.
        gaps: Gaps at the peak of a due topic, its partitions together; counted, if the candidate was counted.
        stuck: Gaps of a partition that more partitions do not reduce; 0: more partitions help.
        silence: Seconds after an unload, if a single partition had all waiting entries.
        cursor_bytes: Bytes of a persisted cursor, if a single partition had all entries.
        topics: Partition topics for each partition.
        dead_letters: Partition topics of dead letters.
        relay: 1 if the plan needs a relay, else 0.
        late_above: Multiple of the volume above which a relay adds more lateness than allowed; None: never.
        full_above: Multiple of the volume above which the plan needs more bytes on disk than allowed; None: never.
        broken: Number of broken limits that no slider changes.
    """

    name: str
    window_ms: int
    written: float
    gaps: float
    stuck: float
    silence: float
    cursor_bytes: float
    topics: int
    dead_letters: int
    relay: int
    late_above: float | None
    full_above: float | None
    broken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The positions of the sliders.

    Args:
        growth: Multiple of the planned volume.
        gap_fraction: See `Constraints`.
        window_ms: Only tiered plans of this window; 0: all candidates.
        topic_price: Price of a partition topic, entries written a second.
    """

    growth: float
    gap_fraction: float
    window_ms: int
    topic_price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A candidate at a setting.

    Args:
        option: Index of the candidate.
        partitions: The fewest partitions that keep gaps and silence within their limits.
        gaps: Gaps in the fullest partition.
        topics: Partition topics in all.
        cost: Entries written a second, topics and relay at their prices.
        broken: Number of limits that it breaks all the same.
    """

    option: int
    partitions: int
    gaps: float
    topics: int
    cost: float
    broken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The statistic of all candidates, for the page.

    Args:
        options: All candidates, in their fixed order.
        recommended: Index of the recommended candidate.
        start: Start of the sliders: the planned values.
        limit_ranges: See `BrokerProfile.gap_limit_ranges`.
        gap_margin: See `Constraints`, as for the next three.
        silence_seconds: None: no limit.
        partition_topics: None: no limit.
        relay_price: Entries written a second.
        frame_bytes: The largest persisted cursor.
        max_partitions: The most partitions of a plan.
    """

    options: tuple[Option, ...]
    recommended: int
    start: Setting
    limit_ranges: int
    gap_margin: float
    silence_seconds: float | None
    partition_topics: int | None
    relay_price: float
    frame_bytes: int
    max_partitions: int = MAX_PARTITIONS

    def at(self, number: int, setting: Setting) -> Found:
        """Evaluate a candidate at a setting, with the partitions that it needs there."""
        one, growth = self.options[number], setting.growth
        allowed = setting.gap_fraction / self.gap_margin * self.limit_ranges
        by_gaps = math.ceil(one.gaps * growth / allowed - SLACK)
        silent = self.silence_seconds
        by_silence = 1 if silent is None else math.ceil(one.silence * growth / silent - SLACK)
        partitions = min(max(by_gaps, by_silence, 1), self.max_partitions)
        gaps = max(one.gaps * growth / partitions, one.stuck * growth)
        topics = one.dead_letters + one.topics * partitions
        breaks = (
            gaps > allowed * (1 + SLACK),
            silent is not None and one.silence * growth / partitions > silent * (1 + SLACK),
            self.partition_topics is not None and topics > self.partition_topics,
            one.late_above is not None and growth > one.late_above,
            one.full_above is not None and growth > one.full_above,
            one.cursor_bytes * growth / partitions > self.frame_bytes,
        )
        return Found(
            option=number,
            partitions=partitions,
            gaps=gaps,
            topics=topics,
            cost=one.written * growth + setting.topic_price * topics + self.relay_price * one.relay,
            broken=one.broken + sum(breaks),
        )

    def cheapest(self, setting: Setting) -> Found:
        """Return the cheapest candidate that breaks fewest limits; at no higher cost, the recommended plan."""
        wanted = [
            number
            for number, one in enumerate(self.options)
            if not setting.window_ms or one.window_ms == setting.window_ms
        ]
        every = [self.at(number, setting) for number in wanted]
        best = min(every, key=lambda one: (one.broken, one.cost, self.options[one.option].gaps, one.option))
        own = next((one for one in every if one.option == self.recommended), best)
        return own if own.broken == best.broken and own.cost <= best.cost * SAME else best

    def as_json(self) -> dict[str, Any]:
        """Return the statistic in the format of the page: a row of numbers for each candidate."""
        names = [field.name for field in fields(Option)]
        own = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("options", "start")
        }
        rows = [[getattr(one, name) for name in names] for one in self.options]
        return {**own, "start": asdict(self.start), "slack": SLACK, "same": SAME, "fields": names, "options": rows}


def what_if(planned: Planned) -> WhatIf:
    """Build the statistic of all candidates of a planner's result."""
    return statistic_of(
        planned.choice,
        planned.constraints,
        planned.profile,
        growth=planned.growth,
        countable=planned.max_countable_gaps,
    )


def statistic_of(
    choice: Choice, limits: Constraints, profile: BrokerProfile, *, growth: float = 1.0, countable: int = 0
) -> WhatIf:
    """Build the statistic of a choice.

    Args:
        choice: The choice, counted or not.
        limits: The limits of the choice.
        profile: The broker.
        growth: Volume of the choice, as a multiple of the counted volume.
        countable: The most gaps of a partition that a count may find.
    """
    allowed = limits.allowed_gaps(profile.gap_limit_ranges)
    options = []
    for one in choice.candidates:
        scheme = one.evaluation.plan.scheme
        counts = {plan.own_partitions: gaps for plan, gaps in choice.counted.items() if plan.scheme == scheme}
        gaps, stuck = calibrated(one.evaluation.peak_gaps_per_topic, counts, growth, allowed, countable)
        options.append(replace(_option(one, limits, profile), gaps=gaps, stuck=stuck))
    return WhatIf(
        options=tuple(options),
        recommended=choice.candidates.index(choice.recommended),
        start=Setting(
            growth=1.0,
            gap_fraction=limits.gap_fraction,
            window_ms=0,
            topic_price=limits.topic_writes_per_second,
        ),
        limit_ranges=profile.gap_limit_ranges,
        gap_margin=limits.gap_margin,
        silence_seconds=limits.silence_seconds,
        partition_topics=limits.partition_topics,
        relay_price=limits.relay_writes_per_second,
        frame_bytes=profile.frame_limit_bytes,
        max_partitions=choice.recommended.evaluation.plan.max_partitions,
    )


def _option(one: Assessed, limits: Constraints, profile: BrokerProfile) -> Option:
    evaluation, lateness, storage = one.evaluation, limits.lateness_seconds, limits.storage_bytes
    plan, partitions = evaluation.plan, evaluation.plan.own_partitions
    hops, capable = evaluation.relay_hops_per_second, float(profile.relay_hops_per_second)
    return Option(
        name=describe(plan),
        window_ms=plan.scheme.window_ms if isinstance(plan.scheme, Tiered) else 0,
        written=limits.cost_of(evaluation).written,
        gaps=evaluation.peak_gaps_per_topic,
        stuck=0.0,
        silence=evaluation.silence_seconds * partitions,
        cursor_bytes=evaluation.cursor_bytes * partitions,
        topics=evaluation.topics_of_a_partition,
        dead_letters=evaluation.dead_letter_topics,
        relay=int(evaluation.needs_relay),
        late_above=None
        if lateness is None or not hops
        else _late_above(capable / hops, is_late="lateness_seconds" in one.broken),
        full_above=None if storage is None or not evaluation.storage_bytes else storage / evaluation.storage_bytes,
        broken=sum(name not in BY_SLIDERS for name in one.broken),
    )


def _late_above(keeps_up: float, *, is_late: bool) -> float:
    """Return the multiple of the volume above which a relay is too late. A relay that keeps up at its busiest adds no
    lateness; beyond that, lateness is not proportional to the volume.
    """
    return min(keeps_up, 1 - SLACK) if is_late else max(keeps_up, 1.0)


def calibrated(
    estimate: float, counts: Mapping[int, int], growth: float, allowed: float, countable: int
) -> tuple[float, float]:
    """Correct the estimated gaps of a due topic at the peak by the counts, so that the sliders start at the verdict.

    Args:
        estimate: Gaps by the gap law, at the planned volume.
        counts: The most gaps of any partition, by the number of partitions, in the traffic itself.
        growth: The planned volume, as a multiple of the traffic's volume.
        allowed: Gaps of a partition at that volume.
        countable: The most gaps that a count may find for it.

    Returns:
        The gaps, and the gaps of a partition that more partitions do not reduce.
    """
    if not counts:
        return estimate, 0.0
    fits = min((partitions for partitions, gaps in counts.items() if gaps <= countable), default=None)
    if fits is not None:
        # Gaps need not divide: the result must still be too high for the largest number of partitions that was too few.
        too_few = max((partitions for partitions in counts if partitions < fits), default=0)
        most = max(growth * counts[fits] * fits, allowed * too_few * MORE)
        return min(most, allowed * fits), 0.0
    *_, before, last = [0, *sorted(counts)]
    stuck = before and counts[last] > HELPED * counts[before]
    return growth * counts[last] * last, growth * counts[last] if stuck else 0.0


def windows_ms(options: Sequence[Option]) -> list[int]:
    """Return the windows of the candidates, ascending."""
    return sorted({one.window_ms for one in options if one.window_ms})
