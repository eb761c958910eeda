"""A plan's routing for many sends at once: the step table of `timewheel.core.steps`, in closed form.

A timer never goes back to an earlier step of its table, so each step is taken once, with a count: a tier with
``remaining >= min_remaining`` holds it ``(remaining - min_remaining) // stay + 1`` times, a ring once if its slot's
release is still to come.

Under a plan with an intake messages come natively, and a shadow lifts those that are far from due: these leave their
original behind in the due topic, acknowledged at once, and go the plan's way as a copy. What is nearer goes no way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.steps import far_ms, steps

__all__ = ["Ways", "keeps_order", "lifted", "ways", "with_originals"]

Integers = NDArray[np.int64]


class Ways(NamedTuple):
    """The way of each of some sends.

    Args:
        arrival_ms: When it gets into its due topic: the last nominal release, or the send.
        acknowledged_ms: When it is acknowledged: when it is due, or on arrival if that is later.
        hops: How often it is published again on its way.
        interval: Number of its calendar interval since 1970; None: there is one due topic.
    """

    arrival_ms: Integers
    acknowledged_ms: Integers
    hops: Integers
    interval: Integers | None


def ways(plan: Plan, publish_ms: Integers, due_ms: Integers) -> Ways:
    """The ways of sends under a plan; times are UTC milliseconds."""
    *held, due = steps(plan)
    far = lifted(plan, publish_ms, due_ms)
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
    # As Router.to_due: a timer that is past due goes to the interval of its send (broker-facts: removing-a-topic).
    return Ways(at_ms, acknowledged_ms, hops, acknowledged_ms // due.interval_ms if due.interval_ms else None)


def lifted(plan: Plan, publish_ms: Integers, due_ms: Integers) -> NDArray[np.bool_]:
    """Which of these a shadow lifts, as soon as they are sent; none where the plan has no intake."""
    delay_ms = due_ms - publish_ms
    return (delay_ms >= far_ms(plan)) & (delay_ms <= plan.max_delay_ms) & plan.intake


def with_originals(way: Ways, publish_ms: Integers, far: NDArray[np.bool_]) -> tuple[Ways, Integers]:
    """All entries of the due topic where a shadow lifts.

    Args:
        way: Of some sends.
        publish_ms: When each was sent.
        far: Of `lifted`.

    Returns:
        The entries, the originals of what was lifted among them; and of each the index of its send.
    """
    index = np.flatnonzero(far)
    sent_ms = publish_ms[index]
    entries = Ways(
        np.concatenate([way.arrival_ms, sent_ms]),
        np.concatenate([way.acknowledged_ms, sent_ms]),
        np.concatenate([way.hops, np.zeros(len(index), np.int64)]),
        None,  # a calendar has no intake
    )
    return entries, np.concatenate([np.arange(len(publish_ms)), index])


def keeps_order(plan: Plan) -> bool:
    """Whether timers get into their due topic in the order in which they were sent."""
    return not isinstance(plan.scheme, Tiered | Wheel)
