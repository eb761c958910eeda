"""A plan's routing for many sends at once: the step table of `timewheel.core.steps`, in closed form.

A timer never goes back to an earlier step of its table, so each step is taken once, with a count: a tier with
``remaining >= min_remaining`` holds a timer ``(remaining - min_remaining) // stay + 1`` times, a ring once if the
release of the timer's slot is still to come.

Under a plan with an intake messages arrive natively, and a shadow moves timers that are far from due: each leaves its
original in the due topic, acknowledged at once, and goes the plan's way as a copy. Nearer timers are not moved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.steps import far_ms, steps

__all__ = ["Routes", "keeps_order", "moved", "routes", "with_originals"]

Integers = NDArray[np.int64]


class Routes(NamedTuple):
    """The ways of some sends.

    Args:
        arrival_ms: Arrival time in the due topic: the last nominal release, or the send.
        acknowledged_ms: Acknowledgement time: when the timer is due, or on arrival if that is later.
        hops: Number of re-publications on the way.
        interval: Number of the calendar interval since 1970; None: there is a single due topic.
    """

    arrival_ms: Integers
    acknowledged_ms: Integers
    hops: Integers
    interval: Integers | None


def routes(plan: Plan, publish_ms: Integers, due_ms: Integers) -> Routes:
    """Compute the ways of sends under a plan; times are UTC milliseconds."""
    *held, due = steps(plan)
    far = moved(plan, publish_ms, due_ms)
    at_ms, hops = publish_ms, far.astype(np.int64)  # out of the intake
    moves = far if plan.intake else np.ones(len(publish_ms), np.bool_)
    for step in held:
        if step.kind == "slot":
            release_ms = due_ms // step.slot_ms * step.slot_ms - step.headstart_ms
            takes = moves & (release_ms > at_ms)
            at_ms = np.where(takes, release_ms, at_ms)
            hops += takes
        else:
            spare_ms = due_ms - at_ms - step.min_remaining_ms
            times = np.where(moves & (spare_ms >= 0), spare_ms // step.stay_ms + 1, 0)
            at_ms = at_ms + times * step.stay_ms
            hops += times
    acknowledged_ms = np.maximum(due_ms, at_ms)
    # As in Router.to_due: a timer that is past due goes to the interval of its send (broker-facts: removing-a-topic).
    return Routes(at_ms, acknowledged_ms, hops, acknowledged_ms // due.interval_ms if due.interval_ms else None)


def moved(plan: Plan, publish_ms: Integers, due_ms: Integers) -> NDArray[np.bool_]:
    """Return which timers a shadow moves as soon as they are sent; none if the plan has no intake."""
    delay_ms = due_ms - publish_ms
    return (delay_ms >= far_ms(plan)) & (delay_ms <= plan.max_delay_ms) & plan.intake


def with_originals(way: Routes, publish_ms: Integers, far: NDArray[np.bool_]) -> tuple[Routes, Integers]:
    """Return all entries of the due topic beside a shadow.

    Args:
        way: Ways of some sends.
        publish_ms: Send time of each.
        far: Result of `moved`.

    Returns:
        The entries, including the originals of moved timers; and for each entry the index of its send.
    """
    index = np.flatnonzero(far)
    sent_ms = publish_ms[index]
    entries = Routes(
        np.concatenate([way.arrival_ms, sent_ms]),
        np.concatenate([way.acknowledged_ms, sent_ms]),
        np.concatenate([way.hops, np.zeros(len(index), np.int64)]),
        None,  # a calendar has no intake
    )
    return entries, np.concatenate([np.arange(len(publish_ms)), index])


def keeps_order(plan: Plan) -> bool:
    """Return whether timers arrive in their due topic in the order of their sends."""
    return not isinstance(plan.scheme, Tiered | Wheel)
