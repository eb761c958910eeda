"""Computes what the sliders of a report ask, as `what_if.js` does: the same arithmetic in the same order."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timewheel.spark_planner.results.report_page import SAME, SLACK, Setting, WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A candidate at a setting."""

    option: int  # index of the candidate
    partitions: int  # the fewest partitions that keep gaps and silence within their limits
    gaps: float  # gaps in the fullest partition
    topics: int  # partition topics in all
    cost: float  # entries written a second, topics and relay at their prices
    broken: int  # number of limits that it breaks all the same


def at(statistic: WhatIf, number: int, setting: Setting) -> Found:
    """Evaluate a candidate at a setting, with the partitions that it needs there."""
    one, growth = statistic.options[number], setting.growth
    allowed = setting.gap_fraction / one.margin * statistic.limit_ranges
    by_gaps = math.ceil(one.gaps * growth / allowed - SLACK)
    silent = statistic.silence_seconds
    by_silence = 1 if silent is None else math.ceil(one.silence * growth / silent - SLACK)
    partitions = min(max(by_gaps, by_silence, 1), statistic.max_partitions)
    gaps = max(one.gaps * growth / partitions, one.stuck * growth)
    topics = one.dead_letters + one.topics * partitions
    breaks = (
        gaps > allowed * (1 + SLACK),
        silent is not None and one.silence * growth / partitions > silent * (1 + SLACK),
        statistic.partition_topics is not None and topics > statistic.partition_topics,
        one.late_above is not None and growth > one.late_above,
        one.full_above is not None and growth > one.full_above,
        one.cursor_bytes * growth / partitions > statistic.frame_bytes,
    )
    return Found(
        option=number,
        partitions=partitions,
        gaps=gaps * one.share,
        topics=topics,
        cost=one.written * growth + setting.topic_price * topics + statistic.relay_price * one.relay,
        broken=one.broken + sum(breaks),
    )


def cheapest(statistic: WhatIf, setting: Setting) -> Found:
    """Return the cheapest candidate that breaks fewest limits; at no higher cost, the recommended plan."""
    wanted = [
        number
        for number, one in enumerate(statistic.options)
        if not setting.window_ms or one.window_ms == setting.window_ms
    ]
    every = [at(statistic, number, setting) for number in wanted]
    best = min(every, key=lambda one: (one.broken, one.cost, statistic.options[one.option].gaps, one.option))
    own = next((one for one in every if one.option == statistic.recommended), best)
    return own if own.broken == best.broken and own.cost <= best.cost * SAME else best
