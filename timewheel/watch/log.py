"""The log of checks: a line of JSON for each check, from which growth over time is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from timewheel.inspect.errors import LogUnreadable
from timewheel.inspect.json_log import append_lines, read_lines

MAX_LINES = 100_000
"""Eleven years of hourly checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """The logged figures of a check.

    Args:
        at_ms: Time of the check, UTC milliseconds.
        per_second: Sends per second; None if too few were sampled.
        delays_ms: Delays not exceeded by `sends.SHARES` of the sends; empty if too few were sampled.
        predicted: Gaps predicted from the entries of the due topics, for the subscription with the most, all partitions
            together.
        counted: The same by the broker's counter.
        worst: Gaps of the fullest partition, by that counter.
        peak: Gaps of the fullest partition at their peak, if sends continue at this rate; None if unknown.
        gap_limit: The broker's gap limit.
        pending: Entries in the due topics that are not due yet.
    """

    at_ms: int
    due_topic: str
    revision: int
    per_second: float | None
    delays_ms: tuple[int, ...]
    predicted: float
    counted: int
    worst: int
    peak: float | None
    gap_limit: int
    pending: float
    level: str


def read_checks(path: Path, due_topic: str) -> tuple[CheckLine, ...]:
    """Read the checks of a due topic, in the order of their times; empty if the file does not exist.

    Raises:
        LogUnreadable: The file cannot be read, or is not a log of checks.
    """
    parse = TypeAdapter(CheckLine).validate_python
    found = list(islice(read_lines(path, parse, "check", LogUnreadable), MAX_LINES + 1))
    if len(found) > MAX_LINES:
        raise LogUnreadable(str(path), 0, f"it has more than {MAX_LINES:,} lines: begin another log")
    return tuple(sorted((line for line in found if line.due_topic == due_topic), key=lambda line: line.at_ms))


def append_check(path: Path, line: CheckLine) -> None:
    """Append a check to a log; creates the file, but no folder.

    Raises:
        LogUnreadable: The file cannot be written.
    """
    append_lines(path, [asdict(line)], LogUnreadable)
