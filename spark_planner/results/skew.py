"""Notice of key skew: all timers of a heavy key are in one partition, of any number of partitions."""

from __future__ import annotations

from typing import Any

from timewheel.spark_planner.estimating import Estimated
from timewheel.spark_planner.job import Planned

__all__ = ["describe_keys", "key_facts"]

REPORTED_SHARE = 0.1
"""Least share of all timers for a notice, or"""
REPORTED_TIMES = 1.25
"""least ratio of the fullest partition to its even share."""


def describe_keys(planned: Planned | Estimated) -> str:
    """Describe the heaviest key in one or two sentences; empty if no key matters."""
    heaviest, partitions = planned.keys.heaviest, planned.plan.own_partitions
    if heaviest is None:
        return ""
    key, share = heaviest
    fullest = planned.keys.fullest(partitions)
    if share < REPORTED_SHARE and fullest * partitions < REPORTED_TIMES:
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
    """Return the facts about the heaviest key as JSON."""
    heaviest = planned.keys.heaviest
    return {
        "heaviest_key": None if heaviest is None else heaviest[0],
        "heaviest_share": None if heaviest is None else heaviest[1],
        "fullest_partition_share": planned.keys.fullest(planned.plan.own_partitions),
    }
