"""Extended: sends that are kept, with stretches of them once more at other times.

A stretch is cut out of the pieces where they are, and its copies get places of their own behind it. So nothing is
sorted, and the driver sees no send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timewheel.spark_planner.exact.pieces import PIECE, PIECES_SCHEMA, TASK, Sends, piece_batch, rows_of, sends_of
from timewheel.spark_planner.exact.sends import Kept, few_at_once, noted
from timewheel.spark_planner.history.columns import TOPIC

__all__ = ["Stretch", "extended"]


class Stretch(NamedTuple):
    """Sends that are to come once more.

    Args:
        from_ms: Of their publish times, the least.
        until_ms: And the end, not included.
        shift_ms: So much later both their publish times and their due times are.
    """

    from_ms: int
    until_ms: int
    shift_ms: int


def extended(kept: Kept, stretches: Sequence[Stretch]) -> Kept:
    """The sends, and those of the stretches.

    Args:
        kept: Of one topic.
        stretches: In order of time; shifted, each begins where the one before ends, and the first one after all sends.

    Returns:
        All of them; its room is the caller's to give back, and so is that of ``kept``, which it is made from.
    """
    ranks = kept.ranks

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

    spark = kept.frame.sparkSession
    with few_at_once(spark):
        frame = kept.frame.mapInArrow(copies, PIECES_SCHEMA).persist()
        return Kept(frame=frame, pieces=noted(frame), was_sorted=kept.was_sorted, keys=kept.keys)


def _later(sends: Sends, shift_ms: int) -> Sends:
    return Sends(publish_ms=sends.publish_ms + shift_ms, due_ms=sends.due_ms + shift_ms, key_hash=sends.key_hash)
