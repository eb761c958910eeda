"""Samples of shadows. Pure: counts in, samples out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import Sample

if TYPE_CHECKING:
    from timewheel.core.plan import Plan
    from timewheel.shadow.status import ShadowStatus

__all__ = ["of_shadow"]

SECOND_MS = 1_000


def of_shadow(plan: Plan, relay_id: str, status: ShadowStatus) -> Iterator[Sample]:
    """Yield the samples of a shadow; partitions of the due topic are combined, and the longest lag counts.

    Args:
        plan: Plan of the shadow.
        relay_id: Id of its relay.
        status: Status of the shadow.
    """
    labels, lifters = (plan.due_topic, relay_id), status.lifters

    def total(count: str) -> int:
        return sum(getattr(one, count) for one in lifters)

    for state in type(status.state):
        yield Sample(told.SHADOW_STATE, (*labels, state.value), state is status.state)
    yield Sample(told.SHADOW_REFUSED, labels, bool(status.refusal))
    yield Sample(told.SHADOW_PARTITIONS, labels, len(lifters))
    yield Sample(told.SHADOW_LED, labels, total("leads"))
    yield Sample(told.SHADOW_CAUGHT_UP, labels, total("caught_up"))
    yield Sample(told.SHADOW_STUCK, labels, sum(not one.alive for one in lifters))
    for fate in lifters[0].fates:
        yield Sample(told.SHADOW_ENTRIES, (*labels, fate), sum(one.fates[fate] for one in lifters))
    yield Sample(told.SHADOW_LIFTED, labels, total("lifted"))
    yield Sample(told.SHADOW_DEDUPLICATED, labels, total("deduplicated"))
    yield Sample(told.SHADOW_STRUCK, labels, status.struck)
    yield Sample(told.SHADOW_STRUCK_AGAIN, labels, total("struck_again"))
    yield Sample(told.SHADOW_STIRS, labels, total("stirs"))
    yield Sample(told.SHADOW_SESSIONS, labels, total("failures"))
    for quantile, lags in (
        ("0.5", [one.lag_p50_ms for one in lifters]),
        ("0.99", [one.lag_p99_ms for one in lifters]),
    ):
        known = [lag_ms for lag_ms in lags if lag_ms is not None]
        if known:
            yield Sample(told.SHADOW_LAG, (*labels, quantile), max(known) / SECOND_MS)
    yield Sample(told.SHADOW_GUARD, labels, plan.guard_ms / SECOND_MS)
