"""Gaps: how close each subscription's cursor is to the ranges that a broker stores, and the messages that a reload
would deliver again.

Works for any topic, with or without timewheel. Nothing is consumed or changed.
"""

from timewheel.inspect.gaps.gap_status import GapStatus, Level, Reload, SubscriptionGaps, reload_of
from timewheel.inspect.gaps.snapshot import GapGrowth, GapSnapshot, Targets, inspect_gaps, topics_of
from timewheel.inspect.reader import Unseen

__all__ = [
    "GapGrowth",
    "GapSnapshot",
    "GapStatus",
    "Level",
    "Reload",
    "SubscriptionGaps",
    "Targets",
    "Unseen",
    "inspect_gaps",
    "reload_of",
    "topics_of",
]
