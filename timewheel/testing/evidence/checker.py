"""The checker, as Jepsen's total-queue: attempted, acknowledged, handled -> lost, unexpected, duplicated, recovered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a set of timers by outcome.

    Args:
        attempted: Sends begun.
        acknowledged: Sends that the broker confirmed.
        handled: Different timers that reached the handler.
        lost: Acknowledged, never handled.
        unexpected: Handled, never attempted.
        duplicated: Handled more than once.
        recovered: Attempted, outcome unknown or failed, yet handled.
    """

    attempted: int
    acknowledged: int
    handled: int
    lost: int
    unexpected: int
    duplicated: int
    recovered: int


def check(*, attempted: Collection[str], acknowledged: Collection[str], handled: Mapping[str, int]) -> Totals:
    """Count the timers by outcome.

    Args:
        attempted: Ids of all sends begun.
        acknowledged: Ids of the sends that the broker confirmed.
        handled: How often each id reached the handler.
    """
    begun, confirmed = set(attempted), set(acknowledged)
    seen = {timer for timer, times in handled.items() if times > 0}
    return Totals(
        attempted=len(begun),
        acknowledged=len(confirmed),
        handled=len(seen),
        lost=len(confirmed - seen),
        unexpected=len(seen - begun),
        duplicated=sum(times > 1 for times in handled.values()),
        recovered=len((seen & begun) - confirmed),
    )
