"""Decides how far the journal may be acknowledged: as far as no broker can forget the originals' acknowledgements.

A broker writes acknowledgements to disk some time after it has confirmed them; when it is killed, a subscription goes
back to the written state (broker-facts: lost-acknowledgements). So a copy is kept until every subscription has passed
its original, and for a while longer.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from timewheel.client.positions import EntryPosition

HOLD_MS = 180_000
"""Three times the broker's default interval of cursor writes (``managedLedgerCursorPositionFlushSeconds``)."""
MAX_CHECKPOINTS = 10_000


class _Checkpoint(NamedTuple):
    """All copies up to ``copy`` are of originals up to ``original``, except those of earlier checkpoints."""

    original: EntryPosition
    copy: EntryPosition


class Journal:
    """The copies in a partition's journal.

    Args:
        hold_ms: How long ago a position must have been passed, milliseconds.
    """

    __slots__ = ("_checkpoints", "_every", "_hold_ms", "_passed", "_safe", "_since")

    def __init__(self, hold_ms: int = HOLD_MS) -> None:
        self._hold_ms = hold_ms
        self._checkpoints: deque[_Checkpoint] = deque()
        self._every = 1
        self._since = 0
        self._passed: deque[tuple[int, EntryPosition]] = deque()
        self._safe: EntryPosition | None = None

    @property
    def is_empty(self) -> bool:
        """True if every known copy may be let go."""
        return not self._checkpoints

    @property
    def oldest(self) -> EntryPosition | None:
        """Position at or behind the oldest original that the journal waits for; None: it waits for none."""
        return self._checkpoints[0].original if self._checkpoints else None

    def add(self, original: EntryPosition, copy: EntryPosition) -> None:
        """Add a stored copy, or several that end with this copy.

        Args:
            original: The last of the originals.
            copy: Position of the last of the copies.
        """
        self._since += 1
        newest = self._checkpoints[-1] if self._checkpoints else None
        if newest is not None and self._since < self._every:
            self._checkpoints[-1] = _joined(newest, _Checkpoint(original, copy))
            return
        self._since = 0
        self._checkpoints.append(_Checkpoint(original, copy))
        if len(self._checkpoints) > MAX_CHECKPOINTS:
            self._coarsen()

    def passed(self, position: EntryPosition, monotonic_ms: int) -> EntryPosition | None:
        """Record that every subscription has passed a position at this moment.

        Args:
            position: The lowest mark-delete position.
            monotonic_ms: When it was read.

        Returns:
            Position of the copy up to which the journal may be acknowledged; None: no further than before.
        """
        if not self._passed or position > self._passed[-1][1]:
            self._passed.append((monotonic_ms, position))
        elif position < self._passed[-1][1]:
            # A broker has forgotten acknowledgements: positions that it had passed before no longer count.
            self._passed.clear()
            self._passed.append((monotonic_ms, position))
        if self._safe is not None and position < self._safe:
            self._safe = None
        while self._passed and monotonic_ms - self._passed[0][0] >= self._hold_ms:
            self._safe = self._passed.popleft()[1]
        copy = None
        while self._safe is not None and self._checkpoints and self._checkpoints[0].original <= self._safe:
            copy = self._checkpoints.popleft().copy
        return copy

    def _coarsen(self) -> None:
        """Halve the number of checkpoints: each then covers twice as many copies, which are let go somewhat later."""
        former = list(self._checkpoints)
        pairs = zip(former[::2], former[1::2], strict=False)
        self._checkpoints = deque(_joined(first, second) for first, second in pairs)
        if len(former) % 2:
            self._checkpoints.append(former[-1])
        self._every *= 2


def _joined(first: _Checkpoint, second: _Checkpoint) -> _Checkpoint:
    return _Checkpoint(max(first.original, second.original), max(first.copy, second.copy))
