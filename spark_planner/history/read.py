"""Reading a history: any format that Spark reads, without changes.

CSV and JSON are read as text, never with inferred types, which could differ from day to day. The meaning of a text is
decided once, in `quarantine.assessed`. The fields of JSON are known only after all lines are read, so JSON is read
twice.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from timewheel.spark_planner.errors import HistoryUnreadable

__all__ = ["SPARK_ERRORS", "read_history", "unreadable"]

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Some of Java's errors have a Python type, others arrive as `Py4JJavaError`."""

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSIONS = {".gz", ".bz2", ".zst", ".snappy", ".lz4"}
_BROKEN_LINE = "_corrupt_record"
"""The column that Spark adds if a line is not a JSON object."""
_REASON_CHARS = 300
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+)(\.[A-Z_0-9]+)?\]")
_REMEDY = "check that it is whole, and name its format with the option format"
_NANOS = "TIMESTAMP(NANOS"
_NANOS_REMEDY = (
    "its times are in nanoseconds, as pandas writes them: set spark.sql.legacy.parquet.nanosAsLong to true in the "
    "session, as `local_session` does"
)
_REMEDIES = {
    "PATH_NOT_FOUND": "check the path; a path in an object store needs its scheme, such as s3a://",
    "TABLE_OR_VIEW_NOT_FOUND": "check the table's name and catalogue",
    "UNABLE_TO_INFER_SCHEMA": "there is no file of that format in it; name another with the option format",
    "DATA_SOURCE_NOT_FOUND": "name a format that this Spark has, or add its package to the session",
}


def read_history(spark: SparkSession, source: str, *, file_format: str = "auto") -> DataFrame:
    """Read the rows of a history without changes.

    Args:
        spark: Any session.
        source: A path or glob as Spark takes it, or a table's name.
        file_format: ``parquet``, ``csv`` (with a header line), ``json`` (an object per line), ``orc``, ``table``, or
            any other format of the session's; ``auto``: by the name's ending; a name without an ending is a table if
            the table exists, else a folder of Parquet.

    Raises:
        HistoryUnreadable: The source does not exist, or has another format.
    """
    try:
        kind = _format_of(spark, source) if file_format == "auto" else file_format
        if kind == "table":
            return spark.table(source)
        if kind == "csv":
            return spark.read.csv(
                source, header=True, inferSchema=False, ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True
            )
        if kind == "json":
            return _json(spark, source)
        return spark.read.format(kind).load(source)
    except SPARK_ERRORS as error:
        raise unreadable(source, error) from None  # Java's stack has no further information for a reader


def unreadable(source: str, error: Exception) -> HistoryUnreadable:
    """Convert Spark's error about a history to ours."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    condition = _CONDITION.search(text)
    remedy = _NANOS_REMEDY if _NANOS in text else _REMEDIES.get(condition[1] if condition else "", _REMEDY)
    # The first paragraph from the condition on; the text of a failed job has much before it.
    reason = " ".join(text[condition.start() if condition else 0 :].split("\n")[0].split())
    return HistoryUnreadable(source, reason[:_REASON_CHARS], remedy)


def _format_of(spark: SparkSession, source: str) -> str:
    endings = [ending.lower() for ending in PurePath(source).suffixes]
    if endings and endings[-1] in _COMPRESSIONS:
        endings.pop()
    if endings and endings[-1] in _FORMATS:
        return _FORMATS[endings[-1]]
    is_name = source.replace(".", "").replace("_", "").isalnum()
    return "table" if is_name and spark.catalog.tableExists(source) else "parquet"


def _json(spark: SparkSession, source: str) -> DataFrame:
    # Every value as text. A broken line is a row without values, which the quarantine counts.
    found = spark.read.json(source, primitivesAsString=True)
    if found.columns in ([], [_BROKEN_LINE]):
        if not found.columns and spark.read.text(source).isEmpty():
            return found
        raise HistoryUnreadable(source, "no line of it is a JSON object", "write one object per line")
    return spark.read.schema(found.drop(_BROKEN_LINE).schema).json(source)
