"""What a send returns."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

__all__ = ["Timer"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timer(NamedTuple):
    """One timer as it was sent.

    Args:
        id: Its name through all hops: the caller's, or the one that was generated.
        due_ms: When it must reach its handler, UTC milliseconds.
        message_id: Pulsar's position of the first copy, in a holding topic or a due topic; it changes with every hop.
            None while it is not known to be stored.
    """

    id: str
    due_ms: int
    message_id: Any = None

    @property
    def due_at(self) -> dt.datetime:
        """When it must reach its handler, as an aware datetime in UTC."""
        return _EPOCH + dt.timedelta(milliseconds=self.due_ms)
