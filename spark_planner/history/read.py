"""Reading a history: any format that Spark reads, as it is, without a pass over its rows.

CSV and JSON are read as text, never with Spark's schema inference: that would read every row once more, and guess a
different type each day. What a text means is decided once, in `quarantine.assessed`.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from timewheel.spark_planner.errors import HistoryUnreadable

__all__ = ["SPARK_ERRORS", "read_history", "unreadable"]

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Some of Java's errors have a Python type and some come as they are."""

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSIONS = {".gz", ".bz2", ".zst", ".snappy", ".lz4"}
_HEAD_LINES = 1_000
"""Of a JSON history, whose fields name its columns. A field that none of them has is no column."""
_REASON_CHARS = 300
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+)(\.[A-Z_0-9]+)?\]")
_REMEDY = "check that it is whole, and name its format with the option format"
_REMEDIES = {
    "PATH_NOT_FOUND": "check the path; a path in an object store needs its scheme, such as s3a://",
    "TABLE_OR_VIEW_NOT_FOUND": "check the table's name and catalogue",
    "UNABLE_TO_INFER_SCHEMA": "there is no file of that format in it; name another with the option format",
    "DATA_SOURCE_NOT_FOUND": "name a format that this Spark has, or add its package to the session",
}


def read_history(spark: SparkSession, source: str, *, file_format: str = "auto") -> DataFrame:
    """The rows of a history as they are.

    Args:
        spark: Any session.
        source: A path or glob as Spark takes it, or a table's name.
        file_format: ``parquet``, ``csv`` (with a header line), ``json`` (an object per line), ``orc``, ``table``, or
            any other format of the session's; ``auto``: by the name's ending; a name without one is a table if there
            is such a table, else a folder of Parquet.

    Raises:
        HistoryUnreadable: Nothing is there, or it is not of that format.
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
            return spark.read.schema(_json_schema(spark, source)).json(source)
        return spark.read.format(kind).load(source)
    except SPARK_ERRORS as error:
        raise unreadable(source, error) from None  # Java's stack says nothing more to a reader


def unreadable(source: str, error: Exception) -> HistoryUnreadable:
    """Spark's error about a history, as ours."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    condition = _CONDITION.search(text)
    remedy = _REMEDIES.get(condition[1] if condition else "", _REMEDY)
    # The first paragraph of what follows the condition; a failed job says much before it.
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


def _json_schema(spark: SparkSession, source: str) -> StructType:
    lines = [row.value for row in spark.read.text(source).limit(_HEAD_LINES).collect()]
    fields: dict[str, Any] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # a broken line is a row without values, which the quarantine counts
        if isinstance(found, dict):
            fields.update({name: value for name, value in found.items() if name not in fields})
    if lines and not fields:
        raise HistoryUnreadable(source, "no line of it is a JSON object", "write one object per line")
    return StructType([StructField(name, StringType()) for name in fields])
