"""Errors of the planner: the history or a request does not meet the requirements of a plan.

Facts are attributes; the message names the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timewheel.core.durations import format_duration, rounded_up
from timewheel.core.errors import TimewheelError, says, some
from timewheel.core.plurals import counted


class PlannerError(TimewheelError):
    """Root of the planner's own errors."""


@says("history {source}: {reason}; {remedy}")
class HistoryUnreadable(PlannerError, OSError):
    """Spark cannot read the history: it does not exist, or has another format."""

    source: str
    reason: str
    """Spark's own message, shortened."""
    remedy: str


@says("no column {column!r} in the history, which has {existing:some}: name the right one with --{option}")
class MissingColumn(PlannerError, LookupError):
    """A column of the mapping is not in the history."""

    column: str
    option: str
    """The option that names it."""
    existing: Sequence[str]
    """The history's columns."""


@says("--{option}: {reason}")
class BadColumnMapping(PlannerError, ValueError):
    """The mapping of columns contradicts itself, or a column's type does not fit its declared meaning."""

    option: str
    reason: str


@says("the history has no row: give one with at least the timers of one typical day")
class EmptyHistory(PlannerError, ValueError):
    """The history has no rows."""


def remedy_of(quarantined: Mapping[str, int]) -> str:
    """Return what to do about rows in quarantine, by their most frequent reason."""
    reason = max(quarantined, key=lambda name: quarantined[name], default="")
    return next((remedy for end, remedy in _REMEDIES.items() if reason.endswith(end)), _REMEDY)


_REMEDY = "check --publish, --due and --delay, which name the columns, --time-unit and --delay-unit"
_REMEDIES = {
    "_not_a_time": "write times with their dates, such as 2026-01-05T09:30:00Z, or as numbers",
    "_not_a_number": "write delays as numbers, and name their unit with --delay-unit",
}


class NoValidRows(PlannerError, ValueError):
    """Every row of the history is in quarantine.

    Attributes:
        rows: Number of rows.
        quarantined: Rows by reason.
        samples: Some raw rows by reason, as JSON text.
    """

    def __init__(self, rows: int, quarantined: Mapping[str, int], samples: Mapping[str, Sequence[str]]) -> None:
        self.rows = rows
        self.quarantined = dict(quarantined)
        self.samples = {reason: tuple(texts) for reason, texts in samples.items()}
        counts = ", ".join(f"{count} {reason}" for reason, count in quarantined.items())
        example = next((text for texts in samples.values() for text in texts), "")
        super().__init__(
            f"none of the history's {counted(rows, 'row')} can be used ({counts}); such a row is {example}: "
            f"{remedy_of(quarantined)}"
        )


class WrongTimeUnit(PlannerError, ValueError):
    """Nearly all times are absurd, and would be sound in another unit.

    Attributes:
        option: The option to give.
        unit: Its likely value.
        rows: Rows of the history.
        absurd_rows: Rows with an absurd time.
    """

    def __init__(self, option: str, unit: str, rows: int, absurd_rows: int, example: str) -> None:
        self.option = option
        self.unit = unit
        self.rows = rows
        self.absurd_rows = absurd_rows
        super().__init__(
            f"{absurd_rows} of the history's {counted(rows, 'row')} {'has' if absurd_rows == 1 else 'have'} an "
            f"absurd time, such as {example}, which would be sound in another unit: give --{option} {unit}"
        )


class UnitUnknown(PlannerError, ValueError):
    """The option, name and numbers of a column do not determine its unit.

    Attributes:
        column: The column.
        option: The option for the unit.
        values: The first numbers.
        readings: The values in each unit, as texts.
    """

    def __init__(
        self, column: str, option: str, values: Sequence[float], readings: Mapping[str, Sequence[str]]
    ) -> None:
        self.column = column
        self.option = option
        self.values = tuple(values)
        self.readings = {unit: tuple(texts) for unit, texts in readings.items()}
        shown = ", ".join(f"{value:.15g}" for value in values)
        read = "; ".join(f"{unit}: {', '.join(texts)}" for unit, texts in readings.items())
        super().__init__(
            f"column {column!r} begins with {shown or 'nothing'}, and its unit is unknown; read as {read}. "
            f"Give it with --{option}, or end the column's name with its unit, as {column}_ms"
        )


@says(
    "the history names more than {limit} topics ({some:some}): name the one to plan for with --topic, which "
    "leaves the others unread"
)
class TooManyTopics(PlannerError, ValueError):
    """The history has more topics than the limit."""

    limit: int
    some: Sequence[str]


class SeveralTopics(PlannerError, LookupError):
    """The history has several topics, and a plan covers a single topic.

    Attributes:
        topics: All of them.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(f"the history has {len(topics)} topics: name one with --topic, of {some(topics)}")


class NoSuchTopic(PlannerError, LookupError):
    """The history has no timer of a topic.

    Attributes:
        topic: The requested topic.
        topics: All topics of the history.
    """

    def __init__(self, topic: str, topics: Sequence[str]) -> None:
        self.topic = topic
        self.topics = tuple(topics)
        there = "names no topics" if tuple(topics) == ("",) else f"has {some(topics)}"
        super().__init__(f"no timer of topic {topic!r}: the history {there}")


class MaxDelayTooShort(PlannerError, ValueError):
    """The plan's requested longest delay is shorter than the history's.

    Sends of longer delays would be refused.

    Attributes:
        max_delay_ms: The requested longest delay.
        longest_delay_ms: The history's longest delay.
    """

    def __init__(self, max_delay_ms: int, longest_delay_ms: int) -> None:
        self.max_delay_ms = max_delay_ms
        self.longest_delay_ms = longest_delay_ms
        super().__init__(
            f"a max_delay of {format_duration(max_delay_ms)} is shorter than the history's longest delay, "
            f"{rounded_up(longest_delay_ms)}, which would be refused: raise it, or leave such timers out of the history"
        )


@says("statistic {path}: {reason}; make it afresh from the history")
class StatisticUnreadable(PlannerError, ValueError):
    """A file is not a statistic of this version."""

    path: str
    reason: str


@says(
    "{folder} has {days:some} already: --replace puts these in their place; --add adds to them, which is right for "
    "timers of another region or other topics, and counts the same timers twice"
)
class DaysAlreadyStored(PlannerError, FileExistsError):
    """Days of a survey are already stored, and neither replacing nor adding was requested."""

    folder: str
    days: Sequence[str]
    """In the format of file names."""
