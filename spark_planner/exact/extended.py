"""Extended history: stored sends, with copies of some stretches at later times.

A stretch is cut out of the pieces in place, and its copies get places of their own behind all sends. So nothing is
sorted, and no send reaches the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timewheel.spark_planner.exact.pieces import PIECE, PIECES_SCHEMA, TASK, Sends, piece_batch, rows_of, sends_of
from timewheel.spark_planner.exact.sends import CachedSends, few_at_once, noted
from timewheel.spark_planner.history.columns import TOPIC

__all__ = ["Stretch", "extended"]


class Stretch(NamedTuple):
    """Sends to be repeated at a later time.

    Args:
        from_ms: Start of their publish times.
        until_ms: End of their publish times, exclusive.
        shift_ms: Time added to their publish times and due times.
    """

    from_ms: int
    until_ms: int
    shift_ms: int


def extended(cached: CachedSends, stretches: Sequence[Stretch]) -> CachedSends:
    """Return the sends, followed by the copies of the stretches.

    Args:
        cached: The sends of one topic.
        stretches: In order of time; each shifted stretch begins at the end of the previous stretch, the first after all
            sends.

    Returns:
        All sends. The caller releases their cache, and then the cache of ``cached``, from which they are computed.
    """
    ranks = cached.ranks

    def copies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in rows_of(batch):
                topic, rank = row[TOPIC], ranks[row[TOPIC], row[TASK], row[PIECE]]
                sends = sends_of(row)
                yield piece_batch(topic, (0, rank), sends)
                for number, (from_ms, until_ms, shift_ms) in enumerate(stretches, start=1):
                    low, high = np.searchsorted(sends.publish_ms, [from_ms, until_ms], "left")
                    if low < high:
                        yield piece_batch(topic, (number, rank), _later(sends.at(slice(low, high)), shift_ms))

    spark = cached.frame.sparkSession
    with few_at_once(spark):
        frame = cached.frame.mapInArrow(copies, PIECES_SCHEMA).persist()
        return CachedSends(frame=frame, pieces=noted(frame), was_sorted=cached.was_sorted, keys=cached.keys)


def _later(sends: Sends, shift_ms: int) -> Sends:
    return Sends(publish_ms=sends.publish_ms + shift_ms, due_ms=sends.due_ms + shift_ms, key_hash=sends.key_hash)
