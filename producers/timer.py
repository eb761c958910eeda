"""Result of a send."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from timewheel.core.cancellations import CancelResult

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timer(NamedTuple):
    """Timer as it was sent.

    Args:
        id: Name of the timer through all hops, given by the caller or generated.
        due_ms: Time at which the timer must reach its handler, UTC milliseconds.
        message_id: Pulsar's position of the first copy, in a holding topic or a due topic; it changes with every hop.
            None while the timer is not known to be stored.
        partition: Partition of the topic that it was sent to. Unlike the position, it stays the same through all hops.
            None: unknown.
        generation: 0, or the stamp of a send that replaced earlier timers of the same id.
        due_topic: The plan's due topic.
        superseded: Cancellation of the timers that it replaced; None: it replaced none.
    """

    id: str
    due_ms: int
    message_id: Any = None
    partition: int | None = None
    generation: int = 0
    due_topic: str = ""
    superseded: CancelResult | None = None

    @property
    def due_at(self) -> dt.datetime:
        """Time at which the timer must reach its handler, as an aware datetime in UTC."""
        return _EPOCH + dt.timedelta(milliseconds=self.due_ms)
