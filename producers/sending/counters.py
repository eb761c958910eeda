"""Counters of outcomes for metrics, updated for whole batches of outcomes, so that they cost a send nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.core.errors import (
    CancelOutcomeUnknown,
    CancelRefused,
    SendOutcomeUnknown,
    SendRefused,
    TimewheelError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounts:
    """Counts of a producer since its creation; all except ``pending`` only grow.

    Args:
        stored: Timers that the broker has confirmed.
        refused: Sends and cancels with invalid arguments; none of them left this process.
        failed: Sends and cancels that the broker did not take.
        unknown: Sends and cancels that may or may not be stored.
        pending: Sends and cancels that are pending now.
        cut: Cancellations that the broker has confirmed: for cancels, and for timers that replaced others.
    """

    stored: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    pending: int = 0
    cut: int = 0


class Counters:
    """Counts outcomes.

    A single thread calls `ended`, the thread that concludes sends; any thread may call `raised`, since errors are rare.
    """

    __slots__ = ("_cut", "_errors", "_failed", "_refused", "_stored", "_unknown")

    def __init__(self) -> None:
        self._stored = self._refused = self._failed = self._unknown = self._cut = 0
        self._errors = threading.Lock()

    def ended(self, count: int, errors: Sequence[TimewheelError] = ()) -> None:
        """Count ended sends, some of them with an error."""
        self._stored += count - len(errors)
        for error in errors:
            self.raised(error)

    def was_cancelled(self, *, is_cancel: bool) -> None:
        """Count a stored cancellation; a cancel ends without a timer."""
        self._cut += 1
        self._stored -= is_cancel

    def raised(self, error: BaseException) -> None:
        """Count a send that ended with an error in its caller; foreign errors, such as an interrupt, do not count."""
        with self._errors:
            if isinstance(error, SendRefused | CancelRefused):
                self._refused += 1
            elif isinstance(error, SendOutcomeUnknown | CancelOutcomeUnknown):
                self._unknown += 1
            elif isinstance(error, TimewheelError):
                self._failed += 1

    def counts(self, pending: int) -> ProducerCounts:
        """Return all counts as they are now."""
        return ProducerCounts(
            stored=self._stored,
            refused=self._refused,
            failed=self._failed,
            unknown=self._unknown,
            pending=pending,
            cut=self._cut,
        )
