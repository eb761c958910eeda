"""What a subscription has acknowledged in the due topic and not handled: parked, or to be tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from timewheel.core.names import PARKED_SUBSCRIPTION, Names
from timewheel.ops.whereis.reading import Reading
from timewheel.ops.whereis.verdict import Sighting, State

__all__ = ["kept_back"]


def kept_back(
    reading: Reading, names: Names, due: Sighting, number: int, is_spent: Callable[[], bool]
) -> Iterator[tuple[State, Sighting]]:
    """Copies that are not acknowledged in the topics of those that acknowledged the timer in its due topic.

    Args:
        reading: Counts the looks.
        names: The plan's.
        due: The timer in its due topic.
        number: Its partition.
        is_spent: Asked before each look: no more is allowed.
    """
    for name in due.done_by:
        for state, topic, reader in (
            (State.PARKED, names.parked(name), PARKED_SUBSCRIPTION),
            (State.RETRYING, names.retry(name), name),
        ):
            partition = reading.partition(names.part(topic, number))
            if partition is None:
                continue
            first = reading.start(partition, due.published_ms)
            for position in map(partition.position_of, range(first, partition.entries)):
                if partition.acknowledged_by(position, reader):
                    continue
                if is_spent():
                    return
                seen = reading.entry(partition, position)
                for one in () if seen is None else seen.timers:
                    if one.timer_id == due.envelope.timer_id and one.generation >= due.envelope.generation:
                        assert seen is not None
                        yield state, Sighting.of(partition, seen, one, (reader,))
