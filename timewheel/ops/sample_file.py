"""A sample as a Parquet file: a history as `timewheel plan` reads it, without an option for any column."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from timewheel.core.extras import need_extras
from timewheel.ops.sample import Sample
from timewheel.ops.sample_figures import SampleFigures

__all__ = ["COLUMNS", "NOTE", "write_sample"]

COLUMNS = ("publish_ms", "due_ms", "size_bytes", "key", "topic")
"""The planner's names (`timewheel.spark_planner.history.columns`, which cannot be imported without Spark)."""
NOTE = b"timewheel.sample"
"""Key of the file's metadata under which the sample says what it is, as JSON."""
FORMAT = 1


def write_sample(sample: Sample, figures: SampleFigures, path: Path) -> None:
    """Write a row per entry, in the order of sending, and what the sample is in the file's metadata.

    Args:
        sample: What to write.
        figures: Of the sample; stands in the metadata whole, with topic, seed and time. The planner takes its scale as
            the growth by which the file is planned for (`timewheel.spark_planner.history.sampled`).
        path: Of the file; replaced if there is one.

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
