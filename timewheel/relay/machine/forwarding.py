"""Decisions about each message of a relay-held partition: takes a message or a time, returns a decision.

The part of the machine (`relay_held`) that knows messages, lanes and holes, but not waiting. It handles the broker's
behaviour (broker-facts: exact-hops, nominal-release-time, late-lane, holes-in-positions, received-again,
guard-and-skew, slot-sweep).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timewheel.client.positions import Position
from timewheel.core.envelope import Envelope
from timewheel.core.grouping import LARGE_BYTES
from timewheel.core.limits import OutOfOrder
from timewheel.core.next_hop import Drop, Hop, NextHop, NotYet
from timewheel.relay.machine.arrivals import Arrivals
from timewheel.relay.machine.beginning import Beginning, Sign
from timewheel.relay.machine.commands import (
    RECEIVE,
    AskAgain,
    AwaitAll,
    AwaitRoom,
    Decision,
    Examine,
    Forward,
    HoldUntil,
    PassedOver,
    Probe,
    Reading,
    Refile,
    Stop,
    StoreDeadLetter,
    Unreadable,
    why_dead,
)
from timewheel.relay.machine.counts import Counts
from timewheel.relay.machine.gathering import Gathering
from timewheel.relay.machine.order import NO_SEQUENCE_ID, Contiguity, Sight, Spot, sequence_id
from timewheel.relay.machine.window import WINDOW_BYTES, Item, Outcome, Window

LATE_RUN = 50
"""Number of on-time hops after a late hop that still go by the late lane; another late hop restarts the count.

Each change of lane waits for a round trip. A relay that lags by a tenth of a window finds every tenth timer late: with
a change there and back for each, it would forward some hundred timers a second, lag more, and never catch up.
"""

_ASK_AGAIN = AskAgain()
_AWAIT_ALL = AwaitAll()
_AWAIT_ROOM = AwaitRoom()


class Forwarding:
    """The messages of a partition between a subscribe and the end of that subscription.

    Args:
        next_hop: Decides hops.
        out_of_order: Keeps the broker from starving a due topic.
        known: The spot up to which this process has confirmed all messages before (`confirmed`); None at first.
        beginning: Of the last subscription, if it ended before its beginning was believed; a new one if None.
        confirmed_behind: Messages behind that spot which this process has confirmed: they are not sent again.
        first_chunk: Returns the position at which a receipt's message begins; None if the message is not chunked.
        window_limit: Maximum number of messages under way.
        window_bytes: Their maximum bytes, except for a single message (broker-facts: windows-in-bytes).
        counts: Counters to continue; new counters if None.
        linger_ms: Time that a hop waits for others to the same topic, see `Gathering`.
        arrivals: Bounds the times at which messages arrived; without any if None.
    """

    __slots__ = (
        "_ackable",
        "_beginning",
        "_confirmed_before",
        "_contiguity",
        "_first_chunk",
        "_head",
        "_joined",
        "_late_run",
        "_look",
        "_next_hop",
        "_out_of_order",
        "_previous",
        "_stopped",
        "_sweep_to",
        "_unnamed",
        "_window",
        "_window_bytes",
        "_withdrawable",
        "arrivals",
        "confirmed_to",
        "counts",
        "gathering",
        "head_release_ms",
        "window_limit",
    )

    def __init__(
        self,
        next_hop: NextHop,
        out_of_order: OutOfOrder,
        *,
        known: Spot | None = None,
        beginning: Beginning | None = None,
        confirmed_behind: Mapping[Position, Outcome] | None = None,
        first_chunk: Callable[[Any], Position | None] = lambda _: None,
        window_limit: int = 1_000,
        window_bytes: int = WINDOW_BYTES,
        counts: Counts | None = None,
        linger_ms: int = 0,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._next_hop = next_hop
        self._out_of_order = out_of_order
        self.window_limit = window_limit
        self._window_bytes = window_bytes
        # After the messages that this process has confirmed, the beginning is right by itself.
        self._beginning = (beginning or Beginning()) if known is None else None
        self._contiguity = Contiguity(known)
        self._confirmed_before: dict[Position, Outcome] = dict(confirmed_behind or {})
        self._first_chunk = first_chunk
        self._window = Window()
        self._head: Item | None = None
        # The newest item of the window, and whether it joined a group.
        self._withdrawable: Item | None = None
        self._joined = False
        self.gathering = Gathering(linger_ms)
        self.arrivals = arrivals or Arrivals(0, 0)
        self._unnamed = False
        self._late_run = 0
        self._sweep_to: Position | None = None
        self._stopped: Stop | None = None
        self._look: Examine | None = None
        # The end of the confirmed prefix and the message before it: see `acknowledge`.
        self._ackable: tuple[Position, Any] | None = None
        self._previous: tuple[Position, Any] | None = None
        self.confirmed_to = known
        self.counts = Counts() if counts is None else counts
        self.head_release_ms: int | None = None

    @property
    def in_flight(self) -> int:
        """Messages that are unconfirmed, or confirmed behind an unconfirmed message."""
        return len(self._window)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the messages in flight."""
        return self._window.size

    @property
    def newest_release_ms(self) -> int | None:
        """Release time of the newest message, the head or a message under way; None without a timer.

        Other threads read this, so that no hop has to report it.
        """
        item = self._head or (self._withdrawable if self._window else None)
        reading = None if item is None else item.reading
        return self._next_hop.release_ms(reading) if isinstance(reading, Envelope) else None

    @property
    def unanswered(self) -> int:
        """Messages of which it is unknown whether they are stored."""
        return self._window.unanswered

    @property
    def confirmed_behind(self) -> Mapping[Position, Outcome]:
        """Messages confirmed behind an unconfirmed message, and so not acknowledged; outlives the subscription."""
        behind: dict[Position, Outcome] = {item.spot.position: item.outcome for item in self._window.confirmed}
        return self._confirmed_before | behind

    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Decision:
        """Decide about a received message, after `Receive`; parameters as for `Machine.received`."""
        assert self._head is None, "a message while another one is the head"
        if self._beginning is not None:
            sign = self._beginning.see(position, now_ms)
            if sign is not Sign.BEGUN:
                return self.ask_again(now_ms) if sign is Sign.ASK else RECEIVE
            self._beginning = None
        spot = Spot(position, batch_size)
        highest = self._contiguity.highest
        sight = self._contiguity.see(spot)
        if sight is Sight.HOLE and (first := self._first_chunk(receipt)) is not None:
            sight = self._contiguity.see(spot, first)
        if sight is Sight.AGAIN:
            return self._seen_again(position, receipt)
        self._head = Item(spot, reading, receipt, size)
        if sight is not Sight.NEXT:
            assert highest is not None
            self._look = Examine(highest, position)
        return self.tick(now_ms)

    @property
    def has_begun(self) -> bool:
        """True if the beginning of the subscription is known."""
        return self._beginning is None

    def ask_again(self, now_ms: int) -> AskAgain:
        """Return the command to ask the broker once more, after a silence, or after messages that cannot be used."""
        if self._beginning is not None:
            self._beginning.asked(now_ms)
        return _ASK_AGAIN

    def tick(self, now_ms: int) -> Decision:
        """Decide again: time has passed, confirmations came in, or a sweep began."""
        if self._stopped is not None:
            return self._stopped
        head = self._head
        if head is None:
            return RECEIVE
        window = self._window
        if self._look is not None or len(window) >= self.window_limit or window.size >= self._window_bytes:
            return self._look or _AWAIT_ROOM
        if self._confirmed_before and (outcome := self._confirmed_before.pop(head.spot.position, None)) is not None:
            return self._drop(head, outcome)
        reading = head.reading
        if not isinstance(reading, Envelope):
            return self._without_envelope(head)
        arrived_by_ms = self.arrivals.arrived_by(head.spot.position, now_ms)
        decision = self._next_hop.held(reading, now_ms, arrived_by_ms)
        if isinstance(decision, Hop):
            return self._forward(head, decision, now_ms)
        if isinstance(decision, NotYet):
            return self._hold(head, reading, decision)
        return (
            self._drop(head, "dropped")
            if isinstance(decision, Drop)
            else self._store_dead_letter(head, decision.reason)
        )

    def confirmed(self, ordinal: int) -> None:
        """Record that the publish of the command with this ordinal is stored."""
        grown = self._window.confirm(ordinal)
        if not grown:
            return
        counts = self.counts
        for item in grown:
            counts.add(item.outcome)
        if len(grown) > 1:
            before = grown[-2]
            self._previous = before.spot.position, before.receipt
        elif self._ackable is not None:
            self._previous = self._ackable
        newest = grown[-1]
        self.confirmed_to = newest.spot
        self._ackable = newest.spot.position, newest.receipt

    def failed(self, ordinal: int) -> Position:
        """Record a failed publish; as in `Machine`."""
        return self._window.fail(ordinal).spot.position

    def acknowledge(self, last: Position | None = None) -> Any | None:
        """Return the receipt that may be acknowledged cumulatively now; None without a new receipt.

        The newest message of all is kept back until the message behind it was seen, or until the topic is known to end
        with it. So a hole behind it is met again by the relay that takes over, which lacks our memory (broker-facts:
        holes-in-positions).

        Args:
            last: The topic's last position, if the driver has asked for it.

        Returns:
            A receipt.
        """
        ackable = self._ackable
        if ackable is None:
            return None
        highest = self._contiguity.highest
        assert highest is not None
        if ackable[0] < highest.position or (last is not None and last <= ackable[0]):
            self._ackable = self._previous = None
            return ackable[1]
        previous, self._previous = self._previous, None
        return None if previous is None else previous[1]

    @property
    def keeps_back(self) -> bool:
        """True if only the newest message's acknowledgement is outstanding: time to ask for the last position."""
        return self._ackable is not None and not self._window

    def found(self, position: Position) -> None:
        """Take the answer to `Examine`."""
        look = self._look
        assert look is not None, "nobody looked"
        if position == look.before:
            assert self._head is not None
            self._look, self._contiguity.highest = None, self._head.spot
        else:
            between = f"{look.after.position.text} is followed by {look.before.text}"
            self._stopped = Stop(f"a hole: {between}, and {position.text} can be read", *look)

    def withdraw(self) -> None:
        """Make the message of the last command the head again, since the command was not executed; decide anew."""
        assert self._withdrawable is not None, "nothing to withdraw"
        self._window.withdraw()
        self._head, self._withdrawable = self._withdrawable, None
        if self._joined:
            self.gathering.leave()

    def refused(self, reason: str) -> None:
        """Make the message of the last command the head again, as no timer, since the command can never be executed."""
        self.withdraw()
        assert self._head is not None
        self._head.reading = Unreadable(reason)

    def sweep(self, last: Position) -> None:
        """Begin a sweep at a slot's release time: no message up to ``last`` that is due later may block others."""
        # All messages of the last entry, at any batch index.
        self._sweep_to = last._replace(batch_index=1 << 31)

    def _forward(self, head: Item, hop: Hop, now_ms: int) -> Decision:
        by_late_lane = hop.is_late or (self._unnamed and self._late_run > 0)
        sequence = NO_SEQUENCE_ID if by_late_lane else sequence_id(head.spot.position)
        unnamed = sequence == NO_SEQUENCE_ID
        if unnamed != self._unnamed and self._must_drain(unnamed=unnamed):
            return _AWAIT_ALL
        if hop.is_late:
            self._late_run = LATE_RUN
        elif self._late_run:
            self._late_run -= 1
        ordinal = self._push(head, "late" if by_late_lane else "forwarded")
        gathering, latest_ms = self.gathering, hop.latest_ms
        if latest_ms is not None and not unnamed and head.size < LARGE_BYTES:
            self._joined = True
            gathering.join(latest_ms, now_ms)
            return Forward(ordinal, hop.topic, 0, sequence, hop.envelope, True, gathering.is_due(now_ms))
        asked_ms = self._out_of_order.asked_of(hop)
        # In the late lane the client may make batches, where a relay holds the messages at the destination.
        batches = unnamed and not hop.is_due and not asked_ms
        asks = gathering.is_due(now_ms)
        return Forward(ordinal, hop.topic, asked_ms, sequence, hop.envelope, False, asks, batches, hop.leaves_plan)

    def _hold(self, head: Item, envelope: Envelope, decision: NotYet) -> Decision:
        self.head_release_ms = decision.until_ms
        if self._sweep_to is not None and head.spot.position <= self._sweep_to:
            return self._refile(head, envelope)
        return HoldUntil(decision.until_ms, self.gathering.slack_ms(decision.room_ms))

    def _without_envelope(self, head: Item) -> Decision:
        if isinstance(head.reading, PassedOver):
            self._head = None
            return RECEIVE
        if isinstance(head.reading, Probe):
            return self._drop(head, "probe")
        return self._store_dead_letter(head, why_dead(head.reading))

    def _drop(self, head: Item, outcome: Outcome) -> Decision:
        """Send a message nowhere, and have it acknowledged in its turn."""
        self.confirmed(self._push(head, outcome))
        return RECEIVE

    def _store_dead_letter(self, head: Item, reason: str) -> Decision:
        if self._must_drain(unnamed=True):
            return _AWAIT_ALL
        return StoreDeadLetter(self._push(head, "dead"), reason)

    def _refile(self, head: Item, envelope: Envelope) -> Decision:
        if self._must_drain(unnamed=True):
            return _AWAIT_ALL
        return Refile(self._push(head, "refiled"), envelope.hopped(envelope.entered_ms))

    def _must_drain(self, *, unnamed: bool) -> bool:
        # A later message of the named lane must not raise its destination's mark above a message that is still under
        # way by the other lane: sent again by the named lane, that message would be taken for a duplicate.
        if unnamed != self._unnamed and self._window:
            return True
        self._unnamed = unnamed
        return False

    def _push(self, head: Item, outcome: Outcome) -> int:
        self._head, self._withdrawable = None, head
        self._joined = False
        self.head_release_ms = None
        head.outcome = outcome
        return self._window.push(head)

    def _seen_again(self, position: Position, receipt: Any) -> Decision:
        self.counts.skipped += 1
        confirmed = self.confirmed_to
        # A message still under way is confirmed in its own time. A confirmed message is received again because the
        # acknowledgement was lost: acknowledge it again, unless a newer receipt is waiting.
        if (
            confirmed is not None
            and position <= confirmed.position
            and (self._ackable is None or self._ackable[0] < position)
        ):
            self._previous, self._ackable = self._ackable, (position, receipt)
        return RECEIVE
