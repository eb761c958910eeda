"""The beginning of a subscription, which need not be the first delivered message (broker-facts: false-beginning).

The first delivered message need not be the first unacknowledged message. When the active consumer of a Failover
subscription changes, the broker goes back to the mark-delete position only a second later
(``activeConsumerFailoverDelayTimeMillis``), and until then may give the new consumer messages behind the old consumer's
last message (seen on 4.0.7). If a relay began there, the old consumer's messages in flight would be lost: later
sequence ids would shut them out, and a cumulative acknowledgement would end them.

So the broker is asked to redeliver all unacknowledged messages, and a beginning is believed when it is met twice, or
more often if the relay has subscribed anew in between.
"""

from __future__ import annotations

from enum import Enum, unique

from timewheel.client.positions import Position

ASK_AGAIN_MS = 1_500
"""A request may go unheard (while the broker delays going back); the next request follows after this time."""
MEETINGS = 2
MEETINGS_OVER_SUBSCRIPTIONS = 4
"""Chance decides whether another relay meets the same messages again in between: with 2 meetings, 13 of 3,000 worlds of
two such relays lost timers, with 3 one world, with 4 none.
"""


@unique
class Sign(Enum):
    """The significance of a message for the beginning."""

    ASK = "ask"
    """A beginning for the first time: ask for all messages again."""
    WAIT = "wait"
    """Behind a beginning that is not believed yet: it is redelivered, so ignore it."""
    BEGUN = "begun"
    """The same beginning twice: this message is the first."""


class Beginning:
    """Watches positions until their beginning can be believed; `asked` after every request.

    It may outlive a subscription that this process itself ends, to subscribe anew: see `outlives`.
    """

    __slots__ = ("_asked_ms", "_candidate", "_last", "_meetings", "_meetings_needed")

    def __init__(self) -> None:
        self._meetings_needed = MEETINGS
        self._meetings = 0
        self._candidate: Position | None = None
        self._last: Position | None = None
        self._asked_ms: int | None = None

    def see(self, position: Position, now_ms: int) -> Sign:
        """Judge the next message.

        Args:
            position: Its position.
            now_ms: UTC milliseconds; a jump of the clock costs another request or some time, no more.
        """
        last, self._last = self._last, position
        if last is not None and position > last:
            return Sign.ASK if self._is_unheard(now_ms) else Sign.WAIT
        if position != self._candidate:
            self._candidate, self._meetings = position, 0
        self._meetings += 1
        return Sign.BEGUN if self._meetings >= self._meetings_needed else Sign.ASK

    def outlives(self) -> None:
        """Record that the subscription ends, and another follows.

        In between the broker may go back for another relay, and give it the messages before a false beginning once
        more: the next subscription then meets the false beginning again.
        """
        self._meetings_needed = MEETINGS_OVER_SUBSCRIPTIONS

    def asked(self, now_ms: int) -> None:
        """Record that the broker was asked."""
        self._asked_ms = now_ms

    def _is_unheard(self, now_ms: int) -> bool:
        return self._asked_ms is None or not 0 <= now_ms - self._asked_ms < ASK_AGAIN_MS
