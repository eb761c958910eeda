"""The rules by which a relay hops, where another way loses or repeats messages (broker-facts: exact-hops).

There is one right set of rules and no setting for it. It is an object only so that chaos tests can hand in a wrong one
and see their checker catch it, and can act at named moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

__all__ = ["CrashPoint", "HopRules"]

CrashPoint = Literal["at_takeover", "before_forward", "between_publish_confirmed_and_ack", "after_ack"]
"""``at_takeover``: the first message after a subscribe was received. ``before_forward``: decided, not handed to the
client. ``between_publish_confirmed_and_ack``: confirmed, not acknowledged. ``after_ack``: the acknowledgement has
returned."""


class HopRules:
    """The rules that lose nothing (broker-facts: exact-hops); subclasses are for tests."""

    __slots__ = ()

    acknowledges_first = False
    """True loses what is on its way when the relay dies."""

    routing_time: Callable[[int, int], int] | None = None
    """``(nominal, now) -> at``: the time that a hop is routed at; None: the nominal one, so that a replay meets the
    same destination. The wall clock loses messages under deduplication."""

    def named_producer_options(self) -> dict[str, Any]:
        """How named producers are opened: unbatched, since a batch that is cut anew after a crash is dropped whole."""
        return {"batching_enabled": False}

    def crash_point(self, name: CrashPoint) -> None:
        """A moment at which a test may kill, stop or wait."""
