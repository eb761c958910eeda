"""What one send may be told besides its content: stated once, for every method that sends."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TypedDict

__all__ = ["SendOptions"]


class SendOptions(TypedDict, total=False):
    """The keyword arguments of every send; all may be left out, and None is the same as left out.

    A function of yours that passes them on can take them as ``**options: Unpack[SendOptions]`` (`typing.Unpack`); its
    callers are then checked as those of ``send`` are.

    Args:
        deliver_at: When the timer is due: UTC milliseconds since 1970, or an aware datetime. In the past: delivered
            now, the due time stays as asked.
        deliver_after: Or: how long from now. Neither: due now.
        timer_id: Its name through all hops; the same id is handled once. None: one is generated.
        properties: Text to text; names that begin with ``tw-`` are timewheel's.
        partition_key: Decides the partition, as the Java client would. Empty: none (pulsar-client sends no empty key).
        ordering_key: Passed on. Empty: none.
        event_timestamp: UTC milliseconds, passed on. 0: none, as in pulsar-client.
        group: Of timers that can be cancelled together (`DelayedProducer.cancel_group`). Needs ``[cancel]`` in the
            plan.
        replace: Whether it replaces what was sent under this ``timer_id`` before: once the new one is stored, the older
            ones are cancelled. Needs ``timer_id``, and ``[cancel]`` in the plan.
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
