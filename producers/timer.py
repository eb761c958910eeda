"""Arguments and result of a send."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from timewheel.core.cancellations import CancelResult
from timewheel.core.errors import BadArgument, did_you_mean


class SendOptions(TypedDict, total=False):
    """Keyword arguments of every send; all are optional, and None counts as left out.

    A function of yours that passes them on can take them as ``**options: Unpack[SendOptions]`` (`typing.Unpack`); type
    checkers then check its callers like the callers of ``send``.

    Args:
        deliver_at: Due time: UTC milliseconds since 1970, or an aware datetime. A timer with a past due time is
            delivered now, and keeps its due time.
        deliver_after: Time from now until the due time, instead of ``deliver_at``. Neither: due now.
        timer_id: Name of the timer through all hops; consumers handle the same id once. None: an id is generated.
        properties: Text to text; names that begin with ``tw-`` are reserved for timewheel.
        partition_key: Decides the partition, like in the Java client. Empty: no key (pulsar-client sends no empty key).
        ordering_key: Passed on. Empty: no key.
        event_timestamp: UTC milliseconds, passed on. 0: none, as in pulsar-client.
        group: Group of timers that can be cancelled together (`DelayedProducer.cancel_group`). Needs ``[cancel]`` in
            the plan.
        replace: True to replace all timers that were sent under this ``timer_id`` before: once the new timer is stored,
            the older timers are cancelled. Needs ``timer_id``, and ``[cancel]`` in the plan.
    """

    deliver_at: int | dt.datetime | None
    deliver_after: dt.timedelta | None
    timer_id: str | None
    properties: Mapping[str, str] | None
    partition_key: str | None
    ordering_key: str | None
    event_timestamp: int | None
    group: str | None
    replace: bool | None


def unknown_option(options: Mapping[str, object]) -> BadArgument | None:
    """Return the error for the first option that a send does not have; None: it has all."""
    known = tuple(SendOptions.__annotations__)
    for name, value in options.items():
        if name not in known:
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            return BadArgument(name, value, f"a send has no such option{near}")
    return None


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
