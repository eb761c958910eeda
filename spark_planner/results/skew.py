"""What a heavy key does: all of its timers are in one partition, however many there are."""

from __future__ import annotations

from typing import Any

from timewheel.spark_planner.estimating import Estimated
from timewheel.spark_planner.job import Planned

__all__ = ["key_facts", "said_of_keys"]

TOLD_SHARE = 0.1
"""Of all timers, or"""
TOLD_TIMES = 1.25
"""the fullest partition having so many times its share."""


def said_of_keys(planned: Planned | Estimated) -> str:
    """A sentence or two; empty where no key matters."""
    heaviest, partitions = planned.keys.heaviest, planned.plan.own_partitions
    if heaviest is None:
        return ""
    key, share = heaviest
    fullest = planned.keys.fullest(partitions)
    if share < TOLD_SHARE and fullest * partitions < TOLD_TIMES:
        return ""
    said = f"Key {key!r} has {share:.0%} of all timers, and a key's timers are all in one partition"
    if partitions > 1:
        said += f": the fullest of {partitions} gets {fullest:.0%} of them, not {1 / partitions:.0%}"
    alone = planned.choice.native.peak_gaps * share
    if alone > planned.constraints.allowed_gaps(planned.profile.gap_limit_ranges):
        said += (
            ". No number of partitions makes native delays right for it: "
            f"that key alone leaves about {alone:,.0f} gaps (estimated)"
        )
    return said + "."


def key_facts(planned: Planned | Estimated) -> dict[str, Any]:
    """The same as JSON."""
    heaviest = planned.keys.heaviest
    return {
        "heaviest_key": None if heaviest is None else heaviest[0],
        "heaviest_share": None if heaviest is None else heaviest[1],
        "fullest_partition_share": planned.keys.fullest(planned.plan.own_partitions),
    }
