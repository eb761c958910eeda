"""The log of checks: a line of JSON for each check, from which growth over time is read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timewheel.watch.errors import LogUnreadable

FORMAT = 1
MAX_LINES = 100_000
"""Eleven years of hourly checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """The logged figures of a check.

    Args:
        at_ms: Time of the check, UTC milliseconds.
        due_topic: Due topic of the plan.
        revision: Revision of the plan.
        per_second: Sends per second; None if too few were sampled.
        delays_ms: Delays not exceeded by `sends.SHARES` of the sends; empty if too few were sampled.
        predicted: Gaps predicted from the entries of the due topics, for the subscription with the most, all partitions
            together.
        counted: The same by the broker's counter.
        worst: Gaps of the fullest partition, by that counter.
        peak: Gaps of the fullest partition at their peak, if sends continue at this rate; None if unknown.
        gap_limit: The broker's gap limit.
        pending: Entries in the due topics that are not due yet.
        level: Level of the check.
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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise LogUnreadable(str(path), 0, str(error)) from error
    if len(lines) > MAX_LINES:
        raise LogUnreadable(str(path), 0, f"it has more than {MAX_LINES:,} lines: begin another log")
    found = [_line(str(path), number, text) for number, text in enumerate(lines, start=1) if text.strip()]
    return tuple(sorted((line for line in found if line.due_topic == due_topic), key=lambda line: line.at_ms))


def append_check(path: Path, line: CheckLine) -> None:
    """Append a check to a log; creates the file, but no folder.

    Raises:
        LogUnreadable: The file cannot be written.
    """
    text = json.dumps({"format": FORMAT, **asdict(line)}) + "\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LogUnreadable(str(path), 0, str(error)) from error


def _line(path: str, number: int, text: str) -> CheckLine:
    try:
        found: dict[str, Any] = json.loads(text)
        if found["format"] != FORMAT:
            raise LogUnreadable(path, number, f"it is of format {found['format']}, not {FORMAT}")
        return CheckLine(
            at_ms=int(found["at_ms"]),
            due_topic=str(found["due_topic"]),
            revision=int(found["revision"]),
            per_second=_number(found["per_second"]),
            delays_ms=tuple(int(delay_ms) for delay_ms in found["delays_ms"]),
            predicted=float(found["predicted"]),
            counted=int(found["counted"]),
            worst=int(found["worst"]),
            peak=_number(found["peak"]),
            gap_limit=int(found["gap_limit"]),
            pending=float(found["pending"]),
            level=str(found["level"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, LogUnreadable):
            raise
        raise LogUnreadable(path, number, f"not a check that timewheel wrote ({error!r})") from error


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
