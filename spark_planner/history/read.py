"""Reading of a history: the meaning of its columns, their units, and the check of its rows.

CSV and JSON are read as text, never with inferred types, which could differ from day to day. The meaning of a text is
decided once, in `assessed`. The fields of JSON are known only after all lines are read, so JSON is read twice.

A number without a unit must not be guessed: delays in seconds that are taken for milliseconds make a plan that looks
sound and is wrong by a factor of a thousand. Send times and due times are the exception: only in one unit are they
times of this century.

Nothing is dropped here: a bad row stays in the DataFrame with its reason, its quarantine, so that the single pass of
`statistic` counts it. The check consists of column expressions; no row passes through Python.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Literal, get_args

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from timewheel.core.durations import MAX_DURATION_MS, rounded_up

from ..errors import BadColumnMapping, EmptyHistory, HistoryUnreadable, MissingColumn, UnitUnknown, WrongTimeUnit
from . import columns
from .files import FORMATS, Written, format_of_name, groups_of, path_of

UNITS_PER_MS: dict[str, float] = {
    "ns": 1e6,
    "us": 1e3,
    "ms": 1.0,
    "s": 1 / 1e3,
    "m": 1 / 60e3,
    "h": 1 / 3_600e3,
    "d": 1 / 86_400e3,
}
"""Number of each unit in a millisecond."""
TIME_UNITS = ("s", "ms", "us", "ns")  # units of times since 1970
EARLIEST_MS = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1_000)
LATEST_MS = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1_000)
"""Range of send times in a history: 4.1 thousand million seconds are fewer than 946 thousand million milliseconds, so a
number is a time of this century in at most one unit.
"""
_ENDINGS = {
    "ns": ("ns", "nanos", "nanoseconds"),
    "us": ("us", "micros", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millis", "milliseconds"),
    "s": ("s", "sec", "secs", "seconds"),
    # No "m": in a name it may stand for minutes, months or milliseconds.
    "m": ("min", "mins", "minutes"),
    "h": ("h", "hr", "hrs", "hours"),
    "d": ("d", "days"),
}
_UNIT_OF_ENDING = {ending: unit for unit, endings in _ENDINGS.items() for ending in endings}
# delay_ms, delay-ms, delayMs, delay.ms
_ENDING = re.compile(r"(?:[^A-Za-z0-9]|(?<=[a-z0-9])(?=[A-Z]))([A-Za-z]+)$")
_SHOWN = 3  # most values in an error


def unit_of_name(name: str) -> str | None:
    """Return the unit at the end of a column's name, such as ``delay_ms``, ``delay_minutes`` and ``delaySeconds``."""
    found = _ENDING.search(name)
    return None if found is None else _UNIT_OF_ENDING.get(found[1].lower())


def stem_of(name: str) -> str:
    """Return a column's name without the unit, in lower case."""
    found = _ENDING.search(name)
    return (name if found is None or found[1].lower() not in _UNIT_OF_ENDING else name[: found.start()]).lower()


def unit_of_times(column: str, option: str, values: Sequence[float]) -> str:
    """Return the unit in which most of the values are times of this century."""
    if not values:
        return "ms"
    sound = {
        unit: sum(EARLIEST_MS <= value / UNITS_PER_MS[unit] < LATEST_MS for value in values) for unit in TIME_UNITS
    }
    best = max(TIME_UNITS, key=lambda unit: sound[unit])
    if not sound[best]:
        readings = {unit: [_time_text(value, unit) for value in values[:_SHOWN]] for unit in TIME_UNITS}
        raise UnitUnknown(column, option, list(values[:_SHOWN]), readings)
    return best


def _time_text(value: float, unit: str) -> str:
    try:
        return datetime.fromtimestamp(value / UNITS_PER_MS[unit] / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "no time"


def _delay_text(value: float, unit: str) -> str:
    delay_ms = value / UNITS_PER_MS[unit]
    if not 0 <= delay_ms <= MAX_DURATION_MS:
        return "no delay" if not delay_ms > MAX_DURATION_MS else "over ten years"
    return f"{delay_ms:g}ms" if delay_ms < 1 else rounded_up(int(delay_ms))


TimeUnit = Literal["auto", "ms", "s", "us", "ns", "timestamp"]
DelayUnit = Literal["auto", "ms", "s", "us", "ns", "m", "h", "d"]
Option = Literal["publish", "due", "delay", "size", "key", "topic", "timer-id"]
_USUAL: dict[Option, str] = {
    "publish": "publish_ms",
    "due": "due_ms",
    "delay": "delay_ms",
    "size": "size_bytes",
    "key": "key",
    "topic": "topic",
    "timer-id": "timer_id",
}
"""Default names of the columns."""
_OPTIONS: dict[Option, str] = {"topic": "topic-column"}
"""Options of the command line that have another name than the field: its ``--topic`` selects one of the topics."""
_TIMES: tuple[Option, ...] = ("publish", "due", "delay")
"""Columns of times may end with another unit, or without a unit: ``publish_s``, ``delay_minutes``, ``delay``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """The columns of a history that a user names. A column that is None is looked up under its usual name; times also
    under that name with another unit's ending, or without an ending: ``publish_s``, ``delay_minutes``, ``due``.

    Args:
        publish: Send time; usually ``publish_ms``.
        due: Due time; usually ``due_ms``. Give this or ``delay``, not both: only the given column is used. If neither
            is given and the history has both, the due time is used, and rows with a contradicting delay are rejected.
        delay: Time from the send to the due time; usually ``delay_ms``.
        size: Payload bytes; usually ``size_bytes``; without it sizes are unknown.
        key: Partition key; usually ``key``; without it timers have no key.
        topic: The due topic; usually ``topic``; without it all timers belong to a single topic.
        timer_id: Identifier shared by all copies of a timer, such as the copies that hops publish (our ``tw-id``);
            usually ``timer_id``. Of rows with the same identifier only the first sent is used. Without it every row is
            a timer. It costs a shuffle of the history.
        time_unit: Unit of numbers in ``publish`` and ``due`` since 1970, also in text. ``auto``: the unit at the end of
            the column's name, else the only unit in which the numbers are times of this century; timestamps need no
            unit, and other text is parsed as ISO 8601 (in the session's time zone if it has no zone).
        delay_unit: Unit of numbers in ``delay``. ``auto``: the unit at the end of the column's name; intervals need no
            unit.
    """

    publish: str | None = None
    due: str | None = None
    delay: str | None = None
    size: str | None = None
    key: str | None = None
    topic: str | None = None
    timer_id: str | None = None
    time_unit: TimeUnit = "auto"
    delay_unit: DelayUnit = "auto"

    def __post_init__(self) -> None:
        if self.due is not None and self.delay is not None:
            raise BadColumnMapping("due", "give due or delay, not both: one of them follows from the other")
        for option, unit, known in (
            ("time-unit", self.time_unit, get_args(TimeUnit)),
            ("delay-unit", self.delay_unit, get_args(DelayUnit)),
        ):
            if unit not in known:
                raise BadColumnMapping(option, f"no unit {unit!r}: one of {', '.join(known)}")

    def resolved(self, existing: Sequence[str]) -> dict[str, str | None]:
        """Return the column of each field in a history, None where it has none; the publish time is always there.

        Args:
            existing: The history's columns and the paths of its fields, see `fields_of`.

        Raises:
            MissingColumn: A named column, or the publish time, is missing.
            BadColumnMapping: Both the due time and the delay are missing, or two columns have the same meaning.
        """
        named: dict[Option, str | None] = {option: getattr(self, _field(option)) for option in _USUAL}
        for option, column in named.items():
            if column is not None and column not in existing:
                raise MissingColumn(column, _OPTIONS.get(option, option), tuple(existing))
        for option in _USUAL:
            if named[option] is None:
                named[option] = _usual(option, existing)
        if named["publish"] is None:
            raise MissingColumn(_USUAL["publish"], "publish", tuple(existing))
        if self.delay is not None:
            named["due"] = None
        elif self.due is not None:
            named["delay"] = None
        elif named["due"] is None and named["delay"] is None:
            names = ", ".join(map(repr, existing))
            raise BadColumnMapping(
                "due", f"name the column of the due time, or of the delay with --delay, out of {names}"
            )
        return {_field(option): column for option, column in named.items()}


def _field(option: Option) -> str:
    return option.replace("-", "_")


def _usual(option: Option, existing: Sequence[str]) -> str | None:
    if _USUAL[option] in existing:
        return _USUAL[option]
    plain = _plain(_USUAL[option])  # SIZE_BYTES, sizeBytes, size-bytes
    found = [name for name in existing if _plain(name) == plain or (option in _TIMES and stem_of(name) == option)]
    if len(found) > 1:
        both = " and ".join(map(repr, found))
        raise BadColumnMapping(_OPTIONS.get(option, option), f"{both} could both be meant: name one of them")
    return found[0] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[ _-]", "", name).lower()


def fields_of(schema: StructType) -> dict[str, tuple[Column, DataType]]:
    """Return the columns of a history by their names, and the fields of structs by their paths, as ``payload.due_at``.

    A column whose name has dots counts before a field with that path.
    """
    found = {field.name: (_column(field.name), field.dataType) for field in schema}
    waiting = [(field.name, *found[field.name]) for field in schema]
    for path, column, kind in waiting:
        if isinstance(kind, StructType):
            for field in kind:
                within = f"{path}.{field.name}", column.getField(field.name), field.dataType
                found.setdefault(within[0], within[1:])
                waiting.append(within)
    return found


MAX_SIZE_BYTES = 1 << 30  # far above the largest message of a broker, chunked or not
MAX_TOPIC_BYTES = 1_024
"""A longer value is not a topic name but a wrong column; and the limit bounds the rows that go to Python."""
COPY = "later_copy"  # the only reason against a row whose timer is in the answer
REASONS: dict[str, str] = {
    "publish_missing": "no publish time",
    "publish_not_a_time": "a publish time that is no time",
    "publish_absurd": "a publish time before 2000 or after 2099",
    "due_missing": "no due time",
    "due_not_a_time": "a due time that is no time",
    "due_before_publish": "due before it was sent",
    "delay_missing": "no delay",
    "delay_not_a_number": "a delay that is no number",
    "delay_negative": "a negative delay",
    "delay_absurd": "a delay of more than ten years",
    "due_delay_conflict": "a due time that is not the publish time and the delay",
    "topic_missing": "no topic, in a history that names topics",
    "topic_absurd": "a topic of more than 1,024 bytes",
    COPY: "a later copy of a timer that is used, by its timer id",
}
"""Reasons against a row, in the order of the checks; a row gets the first reason that applies."""
REMARKS: dict[str, str] = {
    "size_not_a_number": "a size that is no number",
    "size_negative": "a negative size",
    "size_absurd": "a size of more than 1 GiB",
}
"""Reasons why a row's size counts as unknown. The row is used: without sizes only figures in bytes are less exact."""
_SPAN_MS = "span_ms"  # the due time, or the delay: the column that the history has
_CHECK_MS = "check_ms"  # the delay, if there is a due time as well
_TIMER = "timer"  # identifier shared by the copies of a timer
_FIRST_ROWS = 100  # first rows that are read to find units
_RAW_CHARS = 64  # most characters shown of each value of a bad row
_NEARLY_ALL = 0.9  # share of absurd times from which on the unit is wrong and not the rows


def assessed(mapping: ColumnMapping) -> Callable[[DataFrame], DataFrame]:
    """Assess every row of a history: ``history.transform(assessed(mapping))`` has `columns.ASSESSED_SCHEMA`."""

    def transform(history: DataFrame) -> DataFrame:
        fields = fields_of(history.schema)
        found = mapping.resolved(list(fields))
        named = [(option, *fields[column]) for option, column in found.items() if column is not None]
        # Names of our own, since a history may have columns with our names.
        raw = history.select(*(_value(column, kind, option).alias(_raw(option)) for option, column, kind in named))
        return _assessed(raw, found, mapping, _units_of(raw, found, mapping))

    return transform


def sound_rows(frame: DataFrame) -> DataFrame:
    """Select the sound rows of an assessed DataFrame, as `columns.HISTORY_SCHEMA`; count the other rows first."""
    zero, empty = F.lit(0).cast("bigint"), F.lit("")
    return frame.where(F.col(columns.REASON).isNull()).select(
        # A sound row has no null here; coalesce makes the columns non-nullable for Spark, as the schema requires.
        F.coalesce(columns.PUBLISH_MS, zero).alias(columns.PUBLISH_MS),
        F.coalesce(columns.DUE_MS, zero).alias(columns.DUE_MS),
        F.coalesce(columns.SIZE_BYTES, zero).alias(columns.SIZE_BYTES),
        F.col(columns.KEY),
        F.coalesce(columns.TOPIC, empty).alias(columns.TOPIC),
    )


def refuse_wrong_unit(rows: int, quarantined: Mapping[str, int], samples: Mapping[str, Sequence[str]]) -> None:
    """Raise `WrongTimeUnit` if nearly all rows are absurd, and the samples would be sound in another unit."""
    for reason, column, option, units, least, most in (
        ("publish_absurd", "publish", "time-unit", TIME_UNITS, EARLIEST_MS, LATEST_MS),
        ("delay_absurd", "delay", "delay-unit", ("ms", "us", "ns"), 0, MAX_DURATION_MS),
    ):
        absurd = quarantined.get(reason, 0)
        values = [_number(text, column) for text in samples.get(reason, ())]
        if not values or absurd < _NEARLY_ALL * rows:
            continue
        for unit in units:
            if all(value is not None and least <= value / UNITS_PER_MS[unit] < most for value in values):
                raise WrongTimeUnit(option, unit, rows, absurd, samples[reason][0])


def _number(raw: str, column: str) -> float | None:
    try:
        return float(json.loads(raw)[column])
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Units of the numbers in each column of times; ignored for columns without numbers."""

    publish: str  # unit of the publish time
    due: str  # unit of the due time
    delay: str | None  # unit of the delay; None: unknown, and there is a due time

    @property
    def coarsest_ms(self) -> float:
        return max(1 / UNITS_PER_MS[unit] for unit in (self.publish, self.due, self.delay or "ms"))


def _units_of(raw: DataFrame, found: Mapping[str, str | None], mapping: ColumnMapping) -> _Units:
    def time_unit(option: str) -> str:
        column = found[option]
        if column is None or mapping.time_unit == "timestamp":
            return "ms"
        if mapping.time_unit != "auto":
            return mapping.time_unit
        return unit_of_name(column) or unit_of_times(column, "time-unit", _first_numbers(raw, option))

    def delay_unit(column: str | None) -> str | None:
        if column is None or isinstance(raw.schema[_raw("delay")].dataType, DayTimeIntervalType):
            return "ms"
        if mapping.delay_unit != "auto":
            return mapping.delay_unit
        unit = unit_of_name(column)
        if unit is None and found["due"] is None:
            values = _first_numbers(raw, "delay")[:_SHOWN]
            if not values and raw.isEmpty():
                raise EmptyHistory
            readings = {name: [_delay_text(value, name) for value in values] for name in UNITS_PER_MS}
            raise UnitUnknown(column, "delay-unit", values, readings)
        return unit

    return _Units(publish=time_unit("publish"), due=time_unit("due"), delay=delay_unit(found["delay"]))


def _first_numbers(raw: DataFrame, option: str) -> list[float]:
    """Collect the numbers of a column's first rows; empty if the column has another type."""
    kind = raw.schema[_raw(option)].dataType
    if not isinstance(kind, NumericType | StringType):
        return []
    number = _number_of(F.col(_raw(option)), kind, option).alias("number")
    # The limit comes first: in a column without numbers, Spark would search to the end.
    found = [row["number"] for row in raw.select(number).limit(_FIRST_ROWS).collect()]
    return [value for value in found if value is not None and not math.isnan(value)]


def _assessed(raw: DataFrame, found: Mapping[str, str | None], mapping: ColumnMapping, units: _Units) -> DataFrame:
    named = [
        option
        for option, column in found.items()
        if column is not None and (option != "delay" or units.delay is not None)
    ]
    kinds = {option: raw.schema[_raw(option)].dataType for option in named}

    # Three steps, so that each number and each reason is computed once. An expression typed as null is not computed at
    # all.
    times = {
        option: _time_ms(F.col(_raw(option)), kinds[option], unit, mapping.time_unit, option)
        for option, unit in (("publish", units.publish), ("due", units.due))
        if option in named
    }
    delay_ms = F.lit(None)
    if units.delay is not None and "delay" in named:
        delay_ms = _delay_ms(F.col(_raw("delay")), kinds["delay"], units.delay, mapping.delay_unit)
    numbers = raw.select(
        "*",
        times["publish"].alias(columns.PUBLISH_MS),
        times.get("due", delay_ms).alias(_SPAN_MS),
        delay_ms.cast("double").alias(_CHECK_MS),
        (_number_of(F.col(_raw("size")), kinds["size"], "size") if "size" in named else F.lit(0.0)).alias(
            columns.SIZE_BYTES
        ),
    )
    reasons = F.coalesce(*(F.when(holds, F.lit(name)) for name, holds in _objections(set(named), units)))
    remarks = F.coalesce(*(F.when(holds, F.lit(name)) for name, holds in _remarks(set(named))))
    judged = numbers.select("*", reasons.alias(columns.REASON), remarks.alias(columns.REMARK))
    if "timer_id" in named:
        judged = judged.transform(partial(_without_copies, by_topic="topic" in named))

    publish_ms, span_ms = F.col(columns.PUBLISH_MS), F.col(_SPAN_MS)
    due_ms = _whole(span_ms) if "due" in named else F.try_add(_whole(publish_ms), _whole(span_ms))
    texts = (
        F.substring(F.col(_raw(option)).cast("string"), 1, _RAW_CHARS).alias(option)
        for option in named
        if option != "key"
    )
    reason, remark = F.col(columns.REASON), F.col(columns.REMARK)
    # Only bad rows pay for their text.
    text = F.when(reason.isNotNull() | remark.isNotNull(), F.to_json(F.struct(*texts), {"ignoreNullFields": "false"}))
    # A missing size counts as unknown, like a size that is not plausible.
    size_bytes = F.when(remark.isNull(), F.coalesce(columns.SIZE_BYTES, F.lit(0.0))).otherwise(F.lit(0.0))
    return judged.select(
        _whole(publish_ms).alias(columns.PUBLISH_MS),
        due_ms.alias(columns.DUE_MS),
        _whole(size_bytes).alias(columns.SIZE_BYTES),
        (F.col(_raw("key")) if "key" in named else F.lit(None)).cast("string").alias(columns.KEY),
        (F.col(_raw("topic")) if "topic" in named else F.lit("")).cast("string").alias(columns.TOPIC),
        reason,
        F.when(reason.isNull(), remark).alias(columns.REMARK),
        text.alias(columns.RAW),
    )


def _without_copies(judged: DataFrame, *, by_topic: bool) -> DataFrame:
    """Add a reason to all sound rows with the same timer id (and topic) except the first sent."""
    sound = F.col(columns.REASON).isNull()
    # A row without an id is a timer by itself, and is not grouped with all other rows without an id.
    alone = F.concat(F.lit("row "), F.monotonically_increasing_id())
    timer = F.when(sound, F.concat(F.lit("id "), F.col(_raw("timer_id")).cast("string")))
    numbered = judged.withColumn(_TIMER, F.coalesce(timer, alone))
    first = Window.partitionBy(_TIMER, *([_raw("topic")] if by_topic else [])).orderBy(
        columns.PUBLISH_MS, _SPAN_MS, columns.SIZE_BYTES
    )
    copy = sound & (F.row_number().over(first) > 1)
    return numbered.withColumn(columns.REASON, F.when(copy, F.lit(COPY)).otherwise(F.col(columns.REASON)))


def _objections(options: set[str], units: _Units) -> list[tuple[str, Column]]:
    """Return each reason that the mapped columns can have, in order, with its condition."""
    publish_ms, span_ms, check_ms = F.col(columns.PUBLISH_MS), F.col(_SPAN_MS), F.col(_CHECK_MS)
    found = [
        ("publish_missing", F.col(_raw("publish")).isNull()),
        ("publish_not_a_time", _no_number(publish_ms)),
        ("publish_absurd", (publish_ms < EARLIEST_MS) | (publish_ms >= LATEST_MS)),
    ]
    if "due" in options:
        found += [
            ("due_missing", F.col(_raw("due")).isNull()),
            ("due_not_a_time", _no_number(span_ms)),
            ("due_before_publish", span_ms < publish_ms),
            ("delay_absurd", span_ms - publish_ms > MAX_DURATION_MS),
        ]
        if "delay" in options:
            apart_ms = F.abs(span_ms - publish_ms - check_ms)
            found.append(("due_delay_conflict", ~_no_number(check_ms) & (apart_ms > units.coarsest_ms)))
    else:
        found += [
            ("delay_missing", F.col(_raw("delay")).isNull()),
            ("delay_not_a_number", _no_number(span_ms)),
            ("delay_negative", span_ms < 0),
            ("delay_absurd", span_ms > MAX_DURATION_MS),
        ]
    if "topic" in options:
        topic = F.col(_raw("topic")).cast("string")
        found += [("topic_missing", topic.isNull()), ("topic_absurd", F.octet_length(topic) > MAX_TOPIC_BYTES)]
    return found


def _remarks(options: set[str]) -> list[tuple[str, Column]]:
    """Return each remark that the mapped columns can have, with its condition."""
    if "size" not in options:
        return [("", F.lit(False))]
    size_bytes = F.col(columns.SIZE_BYTES)
    return [
        ("size_not_a_number", F.col(_raw("size")).isNotNull() & _no_number(size_bytes)),
        ("size_negative", size_bytes < 0),
        ("size_absurd", size_bytes > MAX_SIZE_BYTES),
    ]


NO_VALUES = ("", r"\N", "NULL", "null", "None", "NaN", "nan")
"""Texts by which programs write that there is no value."""
_HAS_DATE = r"^\s*\+?\d{4}-\d\d?-\d"
"""Spark also reads ``09:30`` and ``now`` as times, of the day on which it reads them."""


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _value(column: Column, kind: DataType, option: str) -> Column:
    """Return a column's values, with text that stands for no value as null, and bytes as text: as Base64, as Pulsar
    writes the bytes of a key, if they are no UTF-8.
    """
    # An empty topic is the topic of a normalised history without topics (`columns.HISTORY_SCHEMA`).
    no_values = NO_VALUES[1:] if option == "topic" else NO_VALUES
    if isinstance(kind, BinaryType):
        column = F.when(F.is_valid_utf8(column.cast("string")), column.cast("string")).otherwise(F.base64(column))
    if isinstance(kind, StringType | BinaryType):
        return F.when(~F.trim(column).isin(*no_values), column)
    return column


def _raw(option: str) -> str:
    return f"raw_{option}"


def _whole(value: Column) -> Column:
    # Doubles hold any sound time exactly. try_cast, since an absurd time may exceed 64 bits, where floor would raise.
    return (value + 0.5).try_cast("bigint")


def _no_number(value: Column) -> Column:
    return value.isNull() | F.isnan(value)


def _number_of(column: Column, kind: DataType, option: str) -> Column:
    if isinstance(kind, NumericType):
        return column.cast("double")
    if isinstance(kind, StringType):
        # By way of a decimal: Java's own parser of doubles would read "12d", twelve days, as twelve.
        return column.try_cast("decimal(38,9)").cast("double")
    raise BadColumnMapping(option, f"a column of type {kind.simpleString()} holds no numbers")


def _time_ms(column: Column, kind: DataType, unit: str, given: str, option: str) -> Column:
    """Convert to UTC milliseconds as a double; null or NaN: not a time."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        if given not in {"auto", "timestamp"}:
            raise BadColumnMapping("time-unit", f"{option} is a timestamp, which counts in no unit: leave it out")
        if isinstance(kind, TimestampNTZType):  # without a zone: UTC, regardless of the session's zone
            epoch = F.lit(datetime(1970, 1, 1)).cast("timestamp_ntz")  # noqa: DTZ001 - it has no zone either
            return F.timestamp_diff("MILLISECOND", epoch, column).cast("double")
        return F.unix_millis(column).cast("double")
    if isinstance(kind, StringType):
        text_ms = F.unix_millis(F.try_to_timestamp(F.when(column.rlike(_HAS_DATE), column))).cast("double")
        if given == "timestamp":
            return text_ms
        number_ms = _number_of(column, kind, option) / F.lit(UNITS_PER_MS[unit])
        return F.coalesce(number_ms, text_ms) if given == "auto" else number_ms
    if not isinstance(kind, NumericType):
        raise BadColumnMapping(option, f"a column of type {kind.simpleString()} holds no times")
    if given == "timestamp":
        raise BadColumnMapping(
            "time-unit", f"{option} is of type {kind.simpleString()}, not a timestamp: name its unit"
        )
    return _number_of(column, kind, option) / F.lit(UNITS_PER_MS[unit])


def _delay_ms(column: Column, kind: DataType, unit: str, given: str) -> Column:
    """Convert to milliseconds as a double; null or NaN: not a number."""
    if isinstance(kind, DayTimeIntervalType):
        if given != "auto":
            raise BadColumnMapping("delay-unit", "delay is an interval, which counts in no unit: leave it out")
        return F.unix_millis(F.timestamp_seconds(F.lit(0)) + column).cast("double")
    return _number_of(column, kind, "delay") / F.lit(UNITS_PER_MS[unit])


SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Some of Java's errors have a Python type, others arrive as `Py4JJavaError`."""
_BROKEN_LINE = "_corrupt_record"  # the column that Spark adds if a line is not a JSON object
_REASON_CHARS = 300
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+)(\.[A-Z_0-9]+)?\]")
_REMEDY = "check that it is whole, and name its format with --format"
_NANOS = "TIMESTAMP(NANOS"
_NANOS_REMEDY = (
    "its times are in nanoseconds, as pandas writes them: set spark.sql.legacy.parquet.nanosAsLong to true in the "
    "session, as `local_session` does"
)
_REMEDIES = {
    "PATH_NOT_FOUND": "check the path; a path in an object store needs its scheme, such as s3a://",
    "TABLE_OR_VIEW_NOT_FOUND": "check the table's name and catalogue",
    "UNABLE_TO_INFER_SCHEMA": "there is no file of that format in it; name another with --format",
    **dict.fromkeys(
        ("DATA_SOURCE_NOT_FOUND", "AVRO_DATA_SOURCE_NOT_ENABLED"),
        "name a format that this Spark has, or add its package to the session",
    ),
    "UNSUPPORTED_TIME_TYPE": "a time of day is no time: write the column as a timestamp, with its date",
}
_OTHER_HEADER = "CSV header does not conform"
_OTHER_HEADER_REMEDY = "its columns are not those of the first file: give the files of each header apart, by patterns"
_UNMERGED = "[CANNOT_MERGE_SCHEMAS]"


def read_history(
    spark: SparkSession,
    source: str,
    *,
    file_format: str = "auto",
    separator: str | None = None,
    encoding: str | None = None,
) -> DataFrame:
    """Read the rows of a history without changes.

    Args:
        spark: Any session.
        source: A path or glob as Spark takes it, or a table's name.
        file_format: ``parquet``, ``csv`` (with a header line), ``json`` (an object per line), ``orc``, ``table``, or
            any other format of the session's; ``auto``: by a name's ending, else by a file's first bytes; a name
            without an ending is a table if the table exists.
        separator: Between the columns of CSV; None: by each file's header, comma, semicolon, tab or ``|``.
        encoding: Of CSV; None: by each file's first bytes, UTF-8, UTF-16, UTF-32, or else Latin-1.

    Raises:
        EmptyHistory: All its files are empty.
        HistoryUnreadable: The source does not exist, or has another format.
    """
    try:
        if file_format == "table" or (file_format == "auto" and _is_table(spark, source)):
            return spark.table(source)
        kind = None if file_format == "auto" else file_format
        if kind not in {None, *FORMATS.values()}:
            return spark.read.format(str(kind)).load(source)
        groups = groups_of(spark, source, kind, separator, encoding)
        return _together(
            [frame for written, paths in groups.items() for frame in _frames(spark, source, written, paths)]
        )
    except SPARK_ERRORS as error:
        raise unreadable(source, error) from None  # Java's stack has no further information for a reader


def unreadable(source: str, error: Exception) -> HistoryUnreadable:
    """Convert Spark's error about a history to ours."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    if _CONDITION.search(text) is None:
        text = str(error)  # with the causes, one of which may name the file
    condition = _CONDITION.search(text)
    remedy = _NANOS_REMEDY if _NANOS in text else _REMEDIES.get(condition[1] if condition else "", _REMEDY)
    if _OTHER_HEADER in str(error):
        remedy = _OTHER_HEADER_REMEDY
    # The first paragraph from the condition on; the text of a failed job has much before it.
    reason = " ".join(text[condition.start() if condition else 0 :].split("\n")[0].split())
    return HistoryUnreadable(source, reason[:_REASON_CHARS], remedy)


def _is_table(spark: SparkSession, source: str) -> bool:
    is_name = source.replace(".", "").replace("_", "").isalnum() and format_of_name(source) is None
    return is_name and spark.catalog.tableExists(source)


def _frames(spark: SparkSession, source: str, written: Written, paths: list[str]) -> list[DataFrame]:
    """Read files that are written alike: as one frame, or one for each schema if these cannot be merged."""
    reader = spark.read.format(written.format).options(**dict(written.options))
    if written.format == "json":
        return [_json(spark, source, written, paths)]
    if written.format == "csv":
        return [reader.load(paths)]
    reader = reader.option("mergeSchema", "true")  # of Parquet and ORC
    try:
        return [reader.load(paths)]
    except SPARK_ERRORS as error:
        if _UNMERGED not in str(error):
            raise
    by_schema: dict[str, list[str]] = {}
    for file in spark.read.options(**dict(written.options)).text(paths).inputFiles():
        by_schema.setdefault(reader.load(path_of(file)).schema.json(), []).append(path_of(file))
    return [reader.load(same) for same in by_schema.values()]


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, by the names of their columns; columns of several types become text."""
    kinds: dict[str, list[DataType]] = {}
    for field in (field for frame in frames for field in frame.schema):
        kinds.setdefault(field.name.lower(), []).append(field.dataType)
    mixed = {
        name
        for name, types in kinds.items()
        if any(kind != types[0] for kind in types) and not all(isinstance(kind, NumericType) for kind in types)
    }
    as_text = (
        frame.select(
            *(_as_text(field) if field.name.lower() in mixed else _column(field.name) for field in frame.schema)
        )
        for frame in frames
    )
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), as_text)


def _as_text(field: StructField) -> Column:
    """Return a column as text that `assessed` reads as it reads the column itself."""
    column = _column(field.name)
    if isinstance(field.dataType, TimestampType):
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias(field.name)
    if isinstance(field.dataType, TimestampNTZType):
        return F.concat(column.cast("string"), F.lit("Z")).alias(field.name)
    return column.cast("string").alias(field.name)


def _json(spark: SparkSession, source: str, written: Written, paths: list[str]) -> DataFrame:
    # Every value as text. A broken line is a row without values, which the quarantine counts.
    reader = spark.read.options(**dict(written.options))
    found = reader.json(paths, primitivesAsString=True)
    if found.columns in ([], [_BROKEN_LINE]):
        raise HistoryUnreadable(source, "no line of it is a JSON object", "write one object per line")
    return reader.schema(found.drop(_BROKEN_LINE).schema).json(paths)
