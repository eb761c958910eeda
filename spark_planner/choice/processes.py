"""Spreading the pricing of candidates over processes of this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.choose import Assessed, Spread

__all__ = ["over_processes"]

PLANS_PER_TASK = 4
"""A second or so: plans of one kind stand together, and wheels take three times as long as tiers."""


def over_processes(processes: int) -> Spread:
    """How `choose.choose` can go through its candidates in so many new processes, which end with it.

    They are spawned, not forked, since whoever plans may have threads; so a script that calls this needs its
    ``if __name__ == "__main__"``.

    Args:
        processes: At least 1.
    """
    if processes < 1:
        raise ValueError(f"processes = {processes}: at least 1")

    def spread(function: Callable[[Plan], Assessed], plans: Sequence[Plan]) -> list[Assessed]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, max(len(plans), 1)), mp_context=context) as pool:
            return list(pool.map(function, plans, chunksize=PLANS_PER_TASK))

    return spread
