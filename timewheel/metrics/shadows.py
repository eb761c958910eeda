"""Samples of shadows. Pure: counts in, samples out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import Sample

if TYPE_CHECKING:
    from timewheel.core.plan import Plan
    from timewheel.shadow.shadow import ShadowStatus

SECOND_MS = 1_000


def of_shadow(plan: Plan, relay_id: str, status: ShadowStatus) -> Iterator[Sample]:
    """Yield the samples of a shadow; partitions of the due topic are combined, and the longest lag counts.

    Args:
        plan: Plan of the shadow.
        relay_id: Id of its relay.
        status: Status of the shadow.
    """
    labels, movers = (plan.due_topic, relay_id), status.movers

    def total(count: str) -> int:
        return sum(getattr(one, count) for one in movers)

    for state in type(status.state):
        yield Sample(told.SHADOW_STATE, (*labels, state.value), state is status.state)
    yield Sample(told.SHADOW_REFUSED, labels, bool(status.refusal))
    yield Sample(told.SHADOW_PARTITIONS, labels, len(movers))
    yield Sample(told.SHADOW_LED, labels, total("leads"))
    yield Sample(told.SHADOW_CAUGHT_UP, labels, total("caught_up"))
    yield Sample(told.SHADOW_STUCK, labels, sum(not one.alive for one in movers))
    for decision in movers[0].decisions:
        yield Sample(told.SHADOW_ENTRIES, (*labels, decision), sum(one.decisions[decision] for one in movers))
    yield Sample(told.SHADOW_MOVED, labels, total("moved"))
    yield Sample(told.SHADOW_DEDUPLICATED, labels, total("deduplicated"))
    yield Sample(told.SHADOW_ACKED, labels, status.acked_originals)
    yield Sample(told.SHADOW_ACKED_AGAIN, labels, total("acked_again"))
    yield Sample(told.SHADOW_NUDGES, labels, total("nudges"))
    yield Sample(told.SHADOW_SESSIONS, labels, total("failures"))
    for quantile, lags in (
        ("0.5", [one.lag_p50_ms for one in movers]),
        ("0.99", [one.lag_p99_ms for one in movers]),
    ):
        known = [lag_ms for lag_ms in lags if lag_ms is not None]
        if known:
            yield Sample(told.SHADOW_LAG, (*labels, quantile), max(known) / SECOND_MS)
    yield Sample(told.SHADOW_GUARD, labels, plan.guard_ms / SECOND_MS)
