"""How sends ended, for metrics: kept for whole batches of outcomes, so that a send costs nothing more."""

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

__all__ = ["ProducerCounts", "Tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounts:
    """What a producer has done since it was made; all but ``pending`` only grow.

    Args:
        stored: Timers that the broker has confirmed.
        refused: Sends and cancels with arguments that cannot be honoured; nothing of them left this process.
        failed: Sends and cancels that the broker did not take.
        unknown: Sends and cancels that may be stored or not.
        pending: Sends under way now, and cancels.
        cut: Cut-offs that the broker has confirmed: of cancels, and of timers that replaced others.
    """

    stored: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    pending: int = 0
    cut: int = 0


class Tally:
    """Counts outcomes.

    `ended` is called from one thread only, the one that concludes sends; `raised` from any, since errors are rare.
    """

    __slots__ = ("_cut", "_errors", "_failed", "_refused", "_stored", "_unknown")

    def __init__(self) -> None:
        self._stored = self._refused = self._failed = self._unknown = self._cut = 0
        self._errors = threading.Lock()

    def ended(self, count: int, errors: Sequence[TimewheelError] = ()) -> None:
        """So many sends have ended, these of them with an error."""
        self._stored += count - len(errors)
        for error in errors:
            self.raised(error)

    def was_cut(self, *, is_cancel: bool) -> None:
        """A cut-off was stored; that of a cancel ends without a timer."""
        self._cut += 1
        self._stored -= is_cancel

    def raised(self, error: BaseException) -> None:
        """A send ended with that in its caller; what is none of ours (an interrupt) says nothing of the send."""
        with self._errors:
            if isinstance(error, SendRefused | CancelRefused):
                self._refused += 1
            elif isinstance(error, SendOutcomeUnknown | CancelOutcomeUnknown):
                self._unknown += 1
            elif isinstance(error, TimewheelError):
                self._failed += 1

    def counts(self, pending: int) -> ProducerCounts:
        """All of it now."""
        return ProducerCounts(
            stored=self._stored,
            refused=self._refused,
            failed=self._failed,
            unknown=self._unknown,
            pending=pending,
            cut=self._cut,
        )
