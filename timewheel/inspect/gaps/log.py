"""A log of snapshots: a line of JSON for each subscription with gaps, from which their growth is read."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.slope import LEAST_POINTS, slope_of
from timewheel.inspect.errors import GapLogUnreadable
from timewheel.inspect.gaps.gap_status import SubscriptionGaps
from timewheel.inspect.gaps.snapshot import GapSnapshot

LEAST_SPAN_MS = MINUTE_MS
"""From the first snapshot to the last: ticks of brokers and batches of consumers change the gaps within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGrowth:
    """Growth of the gaps of the worst partition.

    Args:
        per_hour: Gaps per hour; 0 if no growth was found.
        gap_count: Gaps at the last snapshot.
        gap_limit: The broker's limit.
        snapshots: Number of snapshots.
        span_ms: Time from the first snapshot to the last.
    """

    per_hour: float
    gap_count: int
    gap_limit: int
    snapshots: int
    span_ms: int

    @property
    def hours_to_limit(self) -> float | None:
        """Hours until the gaps reach the limit at this growth; None if never, 0 at or beyond the limit."""
        if self.gap_count >= self.gap_limit:
            return 0.0
        return (self.gap_limit - self.gap_count) / self.per_hour if self.per_hour > 0 else None


def growth_of(snapshots: Sequence[tuple[int, int]], gap_limit: int) -> GapGrowth | None:
    """Fit a line through the gaps of several looks.

    Args:
        snapshots: (UTC milliseconds, gaps of the worst partition), in order of time.
        gap_limit: The broker's limit.

    Returns:
        The growth; None if the snapshots are too few or too close together.
    """
    if len(snapshots) < LEAST_POINTS or snapshots[-1][0] - snapshots[0][0] < LEAST_SPAN_MS:
        return None
    hours = [(at_ms - snapshots[0][0]) / HOUR_MS for at_ms, _ in snapshots]
    slope = slope_of(hours, [float(gaps) for _, gaps in snapshots])
    return GapGrowth(
        per_hour=slope.value if slope.is_up else 0.0,
        gap_count=snapshots[-1][1],
        gap_limit=gap_limit,
        snapshots=len(snapshots),
        span_ms=snapshots[-1][0] - snapshots[0][0],
    )


FORMAT = 1
MAX_SNAPSHOTS = 240
"""Looks kept per subscription: four hours at a snapshot per minute, ten days at a snapshot per hour."""


class GapHistory:
    """Gaps of each subscription's worst partition over time; the last `MAX_SNAPSHOTS` values."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[str, str], deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_SNAPSHOTS)
        )

    def add(self, snapshot: GapSnapshot) -> None:
        """Add a later look."""
        for one in snapshot.subscriptions:
            self.note(snapshot.at_ms, one.topic, one.subscription, one.worst.gap_count)

    def note(self, at_ms: int, topic: str, subscription: str, gap_count: int) -> None:
        """Add a single value."""
        own = self._of[topic, subscription]
        if not own or own[-1][0] < at_ms:
            own.append((at_ms, gap_count))

    def growth(self, one: SubscriptionGaps) -> GapGrowth | None:
        """Return the growth of a subscription's gaps; None if not known yet."""
        return growth_of(self._of.get((one.topic, one.subscription), ()), one.worst.gap_limit)


def read_snapshots(path: Path) -> GapHistory:
    """Read the snapshots in a log; empty if the file does not exist.

    Raises:
        GapLogUnreadable: The file cannot be read, or is not a log of snapshots.
    """
    snapshots = GapHistory()
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    _note(snapshots, str(path), number, text)
    except FileNotFoundError:
        return snapshots
    except (OSError, UnicodeDecodeError) as error:
        raise GapLogUnreadable(str(path), 0, str(error)) from error
    return snapshots


def append_snapshot(path: Path, snapshot: GapSnapshot) -> None:
    """Append a snapshot to a log; creates the file, but no folder. Subscriptions without gaps are left out.

    Raises:
        GapLogUnreadable: The file cannot be written.
    """
    lines = [
        json.dumps(
            {
                "format": FORMAT,
                "at_ms": snapshot.at_ms,
                "topic": one.topic,
                "subscription": one.subscription,
                "gap_count": one.worst.gap_count,
                "again_entries": one.again_entries,
            }
        )
        for one in snapshot.subscriptions
        if one.gap_count
    ]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise GapLogUnreadable(str(path), 0, str(error)) from error


def _note(snapshots: GapHistory, path: str, number: int, text: str) -> None:
    try:
        found: Mapping[str, Any] = json.loads(text)
        if found["format"] != FORMAT:
            raise GapLogUnreadable(path, number, f"it is of format {found['format']}, not {FORMAT}")
        snapshots.note(int(found["at_ms"]), str(found["topic"]), str(found["subscription"]), int(found["gap_count"]))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, GapLogUnreadable):
            raise
        raise GapLogUnreadable(path, number, f"not a snapshot that timewheel wrote ({error!r})") from error
