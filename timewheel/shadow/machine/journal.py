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
    """The copies in a partition's journal."""

    def __init__(self, hold_ms: int = HOLD_MS) -> None:
        self._hold_ms = hold_ms  # how long ago a position must have been passed
        self._checkpoints: deque[_Checkpoint] = deque()
        self._every = 1
        self._since = 0
        self._passed: deque[tuple[int, EntryPosition]] = deque()
        self._safe: EntryPosition | None = None

    @property
    def is_empty(self) -> bool:
        """True if every known copy may be let go."""
        return not self._checkpoints

    def add(self, original: EntryPosition, copy: EntryPosition) -> None:
        """Add a stored copy, or several that end with this copy, and the last of their originals."""
        self._since += 1
        newest = self._checkpoints[-1] if self._checkpoints else None
        if newest is not None and self._since < self._every:
            self._checkpoints[-1] = _joined(newest, _Checkpoint(original, copy))
            return
        self._since = 0
        self._checkpoints.append(_Checkpoint(original, copy))
        if len(self._checkpoints) > MAX_CHECKPOINTS:
            # Each checkpoint then covers twice as many copies, which are let go somewhat later.
            former = list(self._checkpoints)
            self._checkpoints = deque(_joined(*former[at : at + 2]) for at in range(0, len(former), 2))
            self._every *= 2

    def passed(self, position: EntryPosition, monotonic_ms: int) -> EntryPosition | None:
        """Record that every subscription has passed a position at this moment; return the copy up to which the journal
        may be acknowledged, or None: no further than before.
        """
        if self._passed and position < self._passed[-1][1]:
            # A broker has forgotten acknowledgements: positions that it had passed before no longer count.
            self._passed.clear()
        if not self._passed or position > self._passed[-1][1]:
            self._passed.append((monotonic_ms, position))
        if self._safe is not None and position < self._safe:
            self._safe = None
        while self._passed and monotonic_ms - self._passed[0][0] >= self._hold_ms:
            self._safe = self._passed.popleft()[1]
        copy = None
        while self._safe is not None and self._checkpoints and self._checkpoints[0].original <= self._safe:
            copy = self._checkpoints.popleft().copy
        return copy


def _joined(*joined: _Checkpoint) -> _Checkpoint:
    return _Checkpoint(max(one.original for one in joined), max(one.copy for one in joined))


APART_MS = 50  # copies that are stored closer together count as one, which bounds memory


class UnackedOriginals:
    """Stored copies of a partition whose originals can still be delivered.

    A shadow that lags takes longer to acknowledge an original than the time that `MoveDecider.far_ms` allows for it. So
    timers that are moved meanwhile have to be due later by the shadow's lag.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[EntryPosition, int]] = deque()

    def stored(self, copy: EntryPosition, monotonic_ms: int) -> None:
        """Add a stored copy; copies are added in the order of their topic."""
        if self._waiting and monotonic_ms - self._waiting[-1][1] < APART_MS and len(self._waiting) > 1:
            self._waiting[-1] = copy, self._waiting[-1][1]
        else:
            self._waiting.append((copy, monotonic_ms))

    def acked_originals(self, upto: EntryPosition) -> None:
        """Record that the originals of all copies up to this copy are acknowledged."""
        while self._waiting and self._waiting[0][0] <= upto:
            self._waiting.popleft()

    def age_ms(self, monotonic_ms: int) -> int:
        """Return how long the oldest of the copies waits; 0: there is none."""
        return max(monotonic_ms - self._waiting[0][1], 0) if self._waiting else 0
