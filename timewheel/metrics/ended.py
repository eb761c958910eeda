"""Counts of ended roles: counters continue while other roles have the same labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from timewheel.metrics.catalogue import Metric, Sample

Role = TypeVar("Role")
_Series = tuple[Metric, tuple[str, ...]]


class Ended(Generic[Role]):
    """Keeps the last counts of ended roles, as long as a living role has the same labels. Not thread-safe.

    If none has, the series ends. A series that begins again later begins at its own count, as after a restart.
    """

    __slots__ = ("_kept", "_last")

    def __init__(self) -> None:
        self._last: Mapping[Role, Sequence[Sample]] = {}
        self._kept: dict[_Series, Sample] = {}

    def with_those_of(self, living: Mapping[Role, Sequence[Sample]]) -> list[Sample]:
        """Return the samples of living roles, with the kept counts of ended roles.

        Args:
            living: Present samples by role; a role that was included in the last call and is absent now has ended.
        """
        told = [sample for samples in living.values() for sample in samples]
        kept = dict(self._kept)
        for role, samples in self._last.items():
            if role not in living:
                _add(kept, samples)
        alive = {(sample.metric, sample.labels) for sample in told}
        self._kept = {series: sample for series, sample in kept.items() if series in alive}
        self._last = dict(living)
        return [*told, *self._kept.values()]


def _add(kept: dict[_Series, Sample], samples: Iterable[Sample]) -> None:
    for sample in samples:
        if sample.metric.kind != "gauge":
            series = sample.metric, sample.labels
            kept[series] = _sum(kept[series], sample) if series in kept else sample


def _sum(one: Sample, other: Sample) -> Sample:
    buckets = tuple((bound, count + more) for (bound, count), (_, more) in zip(one.buckets, other.buckets, strict=True))
    return Sample(one.metric, one.labels, one.value + other.value, buckets)
