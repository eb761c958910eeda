"""Options of a send besides its content, declared once for every method that sends."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TypedDict

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
