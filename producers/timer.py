"""What a send returns."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from timewheel.core.cut_offs import Cancellation

__all__ = ["Timer"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timer(NamedTuple):
    """One timer as it was sent.

    Args:
        id: Its name through all hops: the caller's, or the one that was generated.
        due_ms: When it must reach its handler, UTC milliseconds.
        message_id: Pulsar's position of the first copy, in a holding topic or a due topic; it changes with every hop.
            None while it is not known to be stored.
        partition: Of the topic that it was sent to. Unlike the position, it stays the same through all hops. None: it
            was not told.
        generation: 0, or the stamp by which it replaced what had its id before.
        due_topic: The plan's.
        superseded: What was said of the timers that it replaced; None: it replaced none.
    """

    id: str
    due_ms: int
    message_id: Any = None
    partition: int | None = None
    generation: int = 0
    due_topic: str = ""
    superseded: Cancellation | None = None

    @property
    def due_at(self) -> dt.datetime:
        """When it must reach its handler, as an aware datetime in UTC."""
        return _EPOCH + dt.timedelta(milliseconds=self.due_ms)
