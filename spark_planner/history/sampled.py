"""Sample notes: the metadata that `timewheel sample` writes into its file, with the sample's scale.

Spark drops a file's metadata, so the file is opened separately.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core.broker_profile import BrokerProfile

SAMPLE_NOTE = b"timewheel.sample"  # `timewheel.inspect.sample.NOTE`, which the planner may not import


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNote:
    """The metadata of a sample."""

    topic: str  # the sampled topic
    rows: int  # entries in the sample
    population: int  # entries in the topic
    # entries of the topic per entry of the sample: the growth by which a plan for the sample becomes a plan for the
    # topic. Delays are those of the topic, rates (and with them gaps, pending timers, hops a second) are 1 / ``scale``
    # of the topic's, and expected numbers of the planner are proportional to the rate.
    scale: float
    partitions: int = 0  # partitions of the topic; 0: it is not partitioned
    profile: BrokerProfile | None = None  # profile of the topic's broker; None: not in the sample
    subscriptions: tuple[str, ...] = ()  # subscriptions of the topic
    shadow: str | None = None  # the desired state of the topic's shadow; None: it has no shadow
    native: int = 0  # timers that waited in the topic under the broker's own delay
    native_until_ms: int | None = None  # latest due time of these timers, UTC milliseconds; None: there were none
    reached_by: tuple[str, ...] = ()  # options by which commands reach the cluster

    def __post_init__(self) -> None:
        if not 1 <= self.scale < float("inf"):
            raise ValueError(f"scale = {self.scale}: 1 or more")


def sample_note(source: str) -> SampleNote | None:
    """Read the note of a sample, if a history is a sample: a single Parquet file on this machine."""
    # Folders, patterns, tables and object stores are never samples of `timewheel sample`. A sample of an earlier
    # version has only the first four fields: its topic is taken to be partitioned, with no more partitions than it
    # needs.
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
        return None  # no Parquet file, or no sample: Spark decides whether it is a history
