"""A sample as a Parquet file: a history that `timewheel plan` reads without an option for any column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import is_users
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminMissing
from timewheel.core.extras import need_extras
from timewheel.core.names import parts_of
from timewheel.inspect.sample import Sample
from timewheel.inspect.sample_figures import SampleFigures
from timewheel.inspect.shadowed import shadow_of

COLUMNS = ("publish_ms", "due_ms", "size_bytes", "key", "topic")
"""Column names of the planner (`timewheel.spark_planner.history.columns`, which cannot be imported without Spark)."""
NOTE = b"timewheel.sample"
"""Key of the file's metadata with the description of the sample, as JSON."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTopic:
    """Data of the cluster that a plan for a sampled topic needs.

    Args:
        profile: Profile of its broker.
        subscriptions: Durable subscriptions of the topic's users.
        shadow: Desired state of its shadow; None without a shadow.
    """

    profile: BrokerProfile
    subscriptions: tuple[str, ...]
    shadow: str | None = None


def sampled_topic(admin: AdminClient, sample: Sample, profile: BrokerProfile) -> SampledTopic:
    """Read the data of the cluster that a plan for a sampled topic needs.

    Raises:
        AdminError: The role may not read the topic's stats.
    """
    found: set[str] = set()
    for part in parts_of(sample.topic, sample.partitions):
        try:
            stats = admin.topics.stats(part)
        except AdminMissing:
            continue  # brokers create a partition at its first use
        found |= {name for name, own in stats.subscriptions.items() if own.is_durable and is_users(name)}
    return SampledTopic(profile=profile, subscriptions=tuple(sorted(found)), shadow=shadow_of(admin, sample.topic))


def write_sample(
    sample: Sample,
    figures: SampleFigures,
    path: Path,
    topic: SampledTopic | None = None,
    *,
    reached_by: Sequence[str] = (),
) -> None:
    """Write a row per entry, in the order of sending, and a description of the sample to the file's metadata.

    Args:
        sample: Sample to write.
        figures: Figures of the sample; written to the metadata in full, with topic, seed and time. The planner uses
            their scale as the growth to plan for (`timewheel.spark_planner.history.sampled`).
        path: Path of the file; an existing file is replaced.
        topic: Data of the cluster that a plan needs; None if the user of the planner gives it.
        reached_by: Options by which a command connects to that cluster, in addition to environment variables.

    Raises:
        ExtraMissing: pyarrow is not installed.
        OSError: The file cannot be written.
    """
    need_extras("a sample's file", "planner")
    import pyarrow as pa  # noqa: PLC0415 - an extra: the admin client does without
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    rows = sample.entries
    note = {
        "format": FORMAT,
        "topic": sample.topic,
        "partitions": sample.partitions,
        "seed": sample.seed,
        "sampled_at_ms": sample.sampled_at_ms,
        **asdict(figures),
        **({} if topic is None else asdict(topic)),
        "reached_by": list(reached_by),
    }
    types = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    fields = [pa.field(name, kind, nullable=name == "key") for name, kind in zip(COLUMNS, types, strict=True)]
    values = [
        pa.array([row.publish_ms for row in rows], pa.int64()),
        pa.array([row.due_ms for row in rows], pa.int64()),
        pa.array([row.size_bytes for row in rows], pa.int64()),
        pa.array([row.key for row in rows], pa.string()),
        pa.array([sample.topic] * len(rows), pa.string()),
    ]
    schema = pa.schema(fields, metadata={NOTE: json.dumps(note).encode()})
    pq.write_table(pa.table(values, schema=schema), str(path), compression="zstd")
