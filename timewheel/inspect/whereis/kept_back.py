"""Find timers that a subscription acknowledged in the due topic but did not handle: parked, or waiting for a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from timewheel.core.names import PARKED_SUBSCRIPTION, Names
from timewheel.inspect.whereis.reading import Reading
from timewheel.inspect.whereis.verdict import Sighting, State


def kept_back(
    reading: Reading, names: Names, due: Sighting, number: int, is_spent: Callable[[], bool]
) -> Iterator[tuple[State, Sighting]]:
    """Yield unacknowledged copies in the retry and parked topics of the subscriptions that acknowledged the timer.

    Args:
        reading: Reads the broker, and counts the reads.
        names: Names of the plan.
        due: The timer in its due topic.
        number: Number of the partition.
        is_spent: Called before each read; returns True when no more reads are allowed.
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
