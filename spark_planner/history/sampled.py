"""Whether a history is a sample, and of how much: what `timewheel sample` writes into its file.

Spark keeps nothing of a file's metadata, so the file is looked at beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core.broker_profile import BrokerProfile

__all__ = ["SAMPLE_NOTE", "SampleNote", "sample_note"]

SAMPLE_NOTE = b"timewheel.sample"
"""`timewheel.ops.sample_file.NOTE`, which the planner may not import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNote:
    """What a sample says about itself.

    Args:
        topic: That was sampled.
        rows: Entries in the sample.
        population: Entries in the topic.
        scale: Entries of the topic behind one of the sample: the growth by which the sample is planned for as the
            topic. Delays are those of the topic, rates (and with them gaps, pending timers, hops a second) one
            ``scale``-th, and expected numbers of the planner are proportional to the rate.
        partitions: Of the topic; 0: it is not partitioned.
        profile: Of its broker; None: the sample does not say.
        subscriptions: Of the topic.
        shadow: The desired state of its shadow; None: it has none.
        native: Timers that waited in the topic under the broker's own delay.
        native_until_ms: When the last of these is due, UTC milliseconds; None: there were none.
        reached_by: Options by which commands reach the cluster.
    """

    topic: str
    rows: int
    population: int
    scale: float
    partitions: int = 0
    profile: BrokerProfile | None = None
    subscriptions: tuple[str, ...] = ()
    shadow: str | None = None
    native: int = 0
    native_until_ms: int | None = None
    reached_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.scale < float("inf"):
            raise ValueError(f"scale = {self.scale}: 1 or more")


def sample_note(source: str) -> SampleNote | None:
    """The note of a sample, if a history is one: a single Parquet file on this machine.

    Args:
        source: As `read.read_history` takes it. What else it can name (folders, patterns, tables, object stores) is no
            sample that `timewheel sample` wrote. A sample of an earlier version tells only the first four
            fields: its topic is taken to be partitioned, with no more partitions than it needs.
    """
    path = Path(source.removeprefix("file://"))
    try:
        if not path.is_file():
            return None
        found = json.loads((pq.read_schema(path).metadata or {})[SAMPLE_NOTE])
        scale, profile = float(found["scale"]), found.get("profile")
        return SampleNote(
            topic=str(found["topic"]),
            rows=int(found["rows"]),
            population=int(found["population"]),
            scale=scale,
            partitions=int(found.get("partitions", 1)),
            profile=None if profile is None else BrokerProfile.from_mapping(profile),
            subscriptions=tuple(map(str, found.get("subscriptions", ()))),
            shadow=found.get("shadow"),
            native=round(int(found.get("native_entries", 0)) * scale),
            native_until_ms=found.get("native_until_ms"),
            reached_by=tuple(map(str, found.get("reached_by", ()))),
        )
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None  # no Parquet file, or none of a sample: whether it is a history is for Spark to say
