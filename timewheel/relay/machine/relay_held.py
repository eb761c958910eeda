"""The relay of a partition of a relay-held topic, as a pure state machine: event and time in, command out.

docs/state-machines.txt has its table. `Forwarding` decides about messages: it knows lanes and holes, but not waiting,
and handles the broker's behaviour (broker-facts: exact-hops, nominal-release-time, late-lane, holes-in-positions,
received-again, guard-and-skew, slot-sweep). `RelayHeld` decides about time: waits, leases, sweeps, acknowledging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from timewheel.client.positions import Position
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.grouping import LARGE_BYTES, PARTS_OF_ROOM
from timewheel.core.next_hop import Drop, Hop, NextHop, NotYet
from timewheel.core.rng import Random
from timewheel.relay.machine.backoff import Backoff, Emptiness, Silence, is_proven
from timewheel.relay.machine.interface import (
    AWAIT_MS,
    IDLE_MS,
    LEAVE,
    NEVER,
    PROBED,
    RECEIVE,
    RECEIVE_IDLE,
    SEND_GROUPS,
    Acknowledge,
    AskAgain,
    AskLast,
    AwaitAll,
    AwaitRoom,
    Command,
    Counts,
    Decision,
    Examine,
    Forward,
    GiveBack,
    HoldUntil,
    Machine,
    Nominal,
    PutProbe,
    Receive,
    Refile,
    SendGroups,
    State,
    Stop,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.order import (
    NO_SEQUENCE_ID,
    WINDOW_BYTES,
    Arrivals,
    Beginning,
    Contiguity,
    Item,
    Outcome,
    Sight,
    Sign,
    Spot,
    Window,
    sequence_id,
)
from timewheel.relay.machine.readings import PassedOver, Probe, Reading, Unreadable, why_dead
from timewheel.relay.machine.visits import Sweeps, Visit

LOOKS_PER_LINGER = 4


class Gathering:
    """How long the hops of a group wait for each other, at most ``linger_ms`` (broker-facts: batched-hops).

    All groups of a partition leave together: at the time of the first group that must leave.
    """

    def __init__(self, linger_ms: int) -> None:
        self._linger_ms = linger_ms
        self.members = 0
        """Hops that joined since groups were last sent. A driver sends full groups unasked: there may be fewer."""
        self.send_at_ms: int | None = None  # UTC milliseconds; None without a group

    def slack_ms(self, room_ms: int) -> int:
        """Return how much later than its release time a hop may be examined, so that many are examined together.

        After its release it may wait for ``room_ms`` without being late.
        """
        return min(self._linger_ms, room_ms // PARTS_OF_ROOM) // LOOKS_PER_LINGER

    def join(self, latest_ms: int, now_ms: int) -> None:
        """Record that another hop waits for others, which would be late after ``latest_ms``."""
        self.members += 1
        at_ms = now_ms + min(self._linger_ms, (latest_ms - now_ms) // PARTS_OF_ROOM)
        if self.send_at_ms is None or at_ms < self.send_at_ms:
            self.send_at_ms = at_ms

    def leave(self) -> None:
        """Record that the newest hop does not leave after all."""
        self.members -= 1
        if not self.members:
            self.send_at_ms = None

    def sent(self) -> None:
        self.members, self.send_at_ms = 0, None

    def is_due(self, now_ms: int) -> bool:
        """True if the groups must leave now."""
        at_ms = self.send_at_ms
        # Before the first bound, the clock was set back.
        return at_ms is not None and not at_ms - self._linger_ms <= now_ms < at_ms


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
        out_of_order: Keeps the broker from starving a due topic.
        known: The spot up to which this process has confirmed all messages before (`confirmed`); None at first.
        beginning: Of the last subscription, if it ended before its beginning was believed.
        confirmed_behind: Messages behind that spot which this process has confirmed: they are not sent again.
        first_chunk: Returns the position at which a receipt's message begins; None if the message is not chunked.
        window_limit: Maximum number of messages under way.
        window_bytes: Their maximum bytes, except for a single message (broker-facts: windows-in-bytes).
        counts: Counters to continue.
        linger_ms: See `Gathering`.
        arrivals: Bounds the times at which messages arrived.
    """

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
        return self._window.fail(ordinal).spot.position

    def acknowledge(self, last: Position | None = None) -> Any | None:
        """Return the receipt that may be acknowledged cumulatively now; None without a new receipt.

        The newest message of all is kept back until the message behind it was seen, or until the topic is known to end
        with it, by its last position if the driver has asked for it. So a hole behind it is met again by the relay that
        takes over, which lacks our memory (broker-facts: holes-in-positions).
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
        nominal = hop.nominal or (None if hop.is_late else hop)
        is_small = head.size < LARGE_BYTES
        if latest_ms is not None and not unnamed and is_small:
            self._joined = True
            gathering.join(latest_ms, now_ms)
            return Forward(ordinal, hop.topic, 0, sequence, hop.envelope, True, gathering.is_due(now_ms))
        asked_ms = self._out_of_order.asked_of(hop)
        # In the late lane the client may make batches, where a relay holds the messages at the destination.
        batches = unnamed and not hop.is_due and not asked_ms
        asks = gathering.is_due(now_ms)
        before = None
        if unnamed and nominal is not None and (number := sequence_id(head.spot.position)) != NO_SEQUENCE_ID:
            nominal_ms = asked_ms if nominal is hop else nominal.deliver_at_ms
            before = Nominal(nominal.topic, nominal_ms, number, nominal.latest_ms is not None and is_small)
        return Forward(
            ordinal, hop.topic, asked_ms, sequence, hop.envelope, False, asks, batches, hop.leaves_plan, before
        )

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


ACK_EVERY = 100
"""Confirmed messages per cumulative acknowledgement while the pipeline runs; a pause acknowledges at once."""
LEASE_FIRST_MS = 50
LEASE_LONGEST_MS = 2_000
ASK_LAST_AGAIN_MS = 200
FORGOTTEN_AFTER_MS = 90_000
"""Quiet time after which a broker has written the last acknowledgement down, as it does within 60 s. If it was killed
before, it delivers the messages again, but the client hides what it has acknowledged itself (broker-facts:
lost-acknowledgements): only another subscription sees them.
"""
_ASK_LAST = AskLast()
_GIVE_BACK = GiveBack()
_PUT_PROBE = PutProbe()


class RelayHeld(Machine):
    """A subscription of a partition; a pause longer than ``lease_idle_ms`` gives the names of producers back."""

    cumulative = True

    def __init__(
        self, forwarding: Forwarding, *, visit: Callable[[], Visit | None], lease_idle_ms: int, rng: Random
    ) -> None:
        self._forwarding = forwarding
        self._gathering = forwarding.gathering
        self._visit = visit
        self._room = max(forwarding.window_limit // 4, 1)
        self._lease_idle_ms = lease_idle_ms
        self._lease_backoff = Backoff(LEASE_FIRST_MS, LEASE_LONGEST_MS, rng)
        self._silence = Silence(rng)
        self._emptiness = Emptiness(rng)
        self._sweeps = Sweeps()
        self._unacknowledged = 0
        self._has_acknowledged = False
        self._idle_since_ms: int | None = None
        self._gave_back = False
        self._must_wait = False  # a relay that was refused a lease waits once before the next attempt
        self._last: Position | None = None  # the topic's last position, asked for since the silence began, and its time
        self._asked_ms = 0
        self._asked_in_vain = False  # another relay went on behind our newest: wait until a message arrives
        self.state = State.RECEIVING
        self.left: Visit | None = None
        self.begins_anew = False

    @property
    def confirmed_to(self) -> Spot | None:
        return self._forwarding.confirmed_to

    @property
    def in_flight(self) -> int:
        return self._forwarding.in_flight

    @property
    def head_release_ms(self) -> int | None:
        return self._forwarding.head_release_ms

    @property
    def arrivals(self) -> Arrivals:
        return self._forwarding.arrivals

    # Events: the results of the last command.

    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Command:
        if self.state is not State.RECEIVING:
            self._wake()
        decision = self._forwarding.received(position, batch_size, reading, receipt, now_ms, size)
        return decision if type(decision) is Forward else self._reported(decision, now_ms)

    def nothing_came(self, now_ms: int) -> Command:
        self.state = State.CLEARING
        return self._clear(now_ms)

    def confirmed(self, ordinals: Iterable[int]) -> Acknowledge | None:
        confirm = self._forwarding.confirmed
        for ordinal in ordinals:
            if ordinal == PROBED:
                self._emptiness.probed()
                continue
            confirm(ordinal)
            self._unacknowledged += 1
        return self._acknowledgement() if self._unacknowledged >= ACK_EVERY else None

    def failed(self, ordinal: int) -> Position:
        return self._forwarding.failed(ordinal)

    def refused(self, reason: str, now_ms: int) -> Command:
        self._forwarding.refused(reason)
        return self._reported(self._forwarding.tick(now_ms), now_ms)

    def done(self, now_ms: int) -> Command:
        if self._gathering.is_due(now_ms):
            return self._send_groups()
        if self.state is State.CLEARING:
            return self._clear(now_ms)
        if self.state is State.IDLE:
            return RECEIVE_IDLE
        if self._must_wait:
            return self._wait_for_lease()
        return self._reported(self._forwarding.tick(now_ms), now_ms)

    def last_position(self, last: Position, now_ms: int) -> Command:
        if self.state is State.DRAINING:
            self._last = last
            return self._drain(0)
        if self.state is State.SWEEPING:
            self._sweep(last)
            return self._reported(self._forwarding.tick(now_ms), now_ms)
        self._last = last
        if self._sweeps.is_due(self._visit(), self._asked_ms):
            self._sweep(last)
        return self._clear(now_ms)

    def no_last_position(self) -> Command:
        if self.state is State.DRAINING:
            return self._leave(None)
        if self.state is State.SWEEPING:
            return Wait(ASK_LAST_AGAIN_MS, NEVER)
        self.state, self._last = State.IDLE, None
        return RECEIVE_IDLE

    def found(self, position: Position, now_ms: int) -> Command:
        self._forwarding.found(position)
        return self.done(now_ms)

    def lease_held(self) -> Command:
        self._forwarding.withdraw()
        self.state = State.WAITING_FOR_LEASE
        self._must_wait = True
        return self._wait_for_lease()

    def lease_taken(self) -> None:
        self.state = State.RECEIVING
        self._gave_back = False
        self._lease_backoff.reset()

    def stopping(self, left_ms: int, undone: Command | None = None) -> Command:
        self.state = State.DRAINING
        if isinstance(undone, Acknowledge):
            return undone
        if isinstance(undone, SendGroups):
            return self._send_groups()
        if isinstance(undone, Forward | StoreDeadLetter | Refile):
            self._forwarding.withdraw()  # it was never sent: no confirmation of it could end the drain
        return self._drain(left_ms)

    # Decisions

    def _reported(self, decision: Decision, now_ms: int) -> Command:
        if isinstance(decision, HoldUntil):
            return self._hold(decision, now_ms)
        if isinstance(decision, AwaitRoom | AwaitAll):
            # A quarter of the window, also where few large messages fill it.
            room = min(self._room, max(self._forwarding.in_flight // 4, 1))
            return self._await(room if isinstance(decision, AwaitRoom) else 1)
        if isinstance(decision, Stop):
            return self._stop(decision)
        if self.state is State.WAITING_FOR_LEASE and isinstance(decision, Forward) and not decision.named:
            return self._begin_anew()
        if isinstance(decision, Examine):
            self.state = State.LOOKING
            return self._send_groups() if self._gathering.members else decision  # an examination may take long
        if not (isinstance(decision, Forward) and self.state is State.WAITING_FOR_LEASE):
            # Only the send shows whether a lease is there.
            self.state = State.RECEIVING
            self._gave_back = False
        return decision

    def _wake(self) -> None:
        """Reset after a message that ends a silence."""
        self.state = State.RECEIVING
        self._idle_since_ms = None
        self._gave_back = self._asked_in_vain = False
        self._silence.broken()

    def _await(self, count: int) -> Command:
        if self.state is not State.WAITING_FOR_LEASE:
            self.state = State.CROWDED
        if self._gathering.members:
            return self._send_groups()
        # Confirmations may have come in meanwhile: wait for no more than are under way.
        return Wait(AWAIT_MS, min(count, self._forwarding.unanswered))

    def _stop(self, stop: Stop) -> Command:
        """Stop at a hole: finish the messages before it. Each send is answered, by its time-out at the latest."""
        if self._gathering.members:
            return self._send_groups()
        self.state = State.STOPPED
        if unanswered := self._forwarding.unanswered:
            return Wait(AWAIT_MS, unanswered)
        return self._acknowledgement() or stop

    def _clear(self, now_ms: int) -> Command:
        """Do the next task, until none is left."""
        forwarding = self._forwarding
        acknowledgement = self._acknowledgement(self._last)
        if acknowledgement is not None:
            return acknowledgement
        if forwarding.in_flight:
            self.state, self._last = State.RECEIVING, None
            return self._receive(now_ms)
        if self._idle_since_ms is None or now_ms < self._idle_since_ms:  # the clock was set back
            self._idle_since_ms = now_ms
        quiet_ms = now_ms - self._idle_since_ms
        visit = self._visit()
        may_leave = not self._emptiness.probing and self._sweeps.is_over(visit, now_ms)
        if quiet_ms >= self._lease_idle_ms and self._may_give_back:
            return self._give_back()
        if self._last is None:
            keeps_back = forwarding.keeps_back and not self._asked_in_vain
            if keeps_back or may_leave or self._sweeps.is_due(visit, now_ms):
                return self._ask_last(now_ms)
        elif may_leave:
            if is_proven(self._last, forwarding.confirmed_to):
                return self._leave(visit)
            if self._emptiness.take_probe(now_ms):
                self._gave_back = False
                return _PUT_PROBE
        self.begins_anew = visit is None and self._has_acknowledged and quiet_ms >= FORGOTTEN_AFTER_MS
        return self._leave(None) if self.begins_anew else self._idle(now_ms)

    def _idle(self, now_ms: int) -> Command:
        self._asked_in_vain = self._forwarding.keeps_back
        self.state, self._last = State.IDLE, None
        return self._forwarding.ask_again(now_ms) if self._silence.is_too_long(now_ms) else RECEIVE_IDLE

    def _hold(self, head: HoldUntil, now_ms: int) -> Command:
        until_ms, slack_ms = head
        visit, sweeps = self._visit(), self._sweeps
        if sweeps.is_due(visit, now_ms):
            self.state = State.SWEEPING
            return self._ask_last(now_ms)
        self.state = State.HOLDING
        acknowledgement = self._acknowledgement()
        if acknowledgement is not None:
            return acknowledgement
        in_flight, send_at_ms = self._forwarding.in_flight, self._gathering.send_at_ms
        if send_at_ms is not None:
            if until_ms >= send_at_ms:
                return self._send_groups()  # no message joins them before they must leave
            slack_ms = min(slack_ms, send_at_ms - 1 - until_ms)
        until_ms += slack_ms
        if sweeps.is_over(visit, now_ms):
            if not in_flight:
                return self._leave(visit)  # the head is due a turn later
        elif visit is not None:
            until_ms = sweeps.next_moment_ms(visit, until_ms)
        if until_ms - now_ms > self._lease_idle_ms and self._may_give_back:
            return self._give_back()
        return Wait(until_ms - now_ms, 1)

    def _wait_for_lease(self) -> Command:
        acknowledgement = self._acknowledgement()
        if acknowledgement is not None:
            return acknowledgement
        if self._may_give_back:
            # A waiting relay holds no names: else two relays could wait for each other.
            return self._give_back()
        if self._gathering.members:
            return self._send_groups()
        self._must_wait = False
        return Wait(self._lease_backoff.next_ms(), NEVER)

    def _begin_anew(self) -> Command:
        """Begin anew: the head has become late while another relay has the lease.

        That relay has most likely sent it long since: without a lease it would be stored twice (broker-facts:
        late-lane). Waiting messages are redelivered.
        """
        self._forwarding.withdraw()
        if self._forwarding.unanswered:
            return Wait(AWAIT_MS, self._forwarding.unanswered)
        acknowledgement = self._acknowledgement()
        if acknowledgement is not None:
            return acknowledgement
        self.begins_anew = True
        return self._leave(None)

    def _drain(self, left_ms: int) -> Command:
        """Take no new messages; wait for sends under way, up to the deadline, and leave the rest unacknowledged."""
        forwarding = self._forwarding
        if self._gathering.members and left_ms > 0:
            return self._send_groups()
        if forwarding.unanswered and left_ms > 0:
            return Wait(left_ms, 1)
        acknowledgement = self._acknowledgement(self._last)
        if acknowledgement is not None:
            return acknowledgement
        if forwarding.keeps_back and self._last is None:
            return _ASK_LAST
        return self._leave(None)

    def _receive(self, now_ms: int) -> Command:
        """Receive while sends are under way. If all of them wait in groups, frequent receives gain nothing."""
        gathering = self._gathering
        if gathering.send_at_ms is None or self._forwarding.unanswered > gathering.members:
            return RECEIVE
        if gathering.is_due(now_ms):
            return self._send_groups()
        return Receive(min(gathering.send_at_ms - now_ms, IDLE_MS))

    def _send_groups(self) -> Command:
        self._gathering.sent()
        return SEND_GROUPS

    def _acknowledgement(self, last: Position | None = None) -> Acknowledge | None:
        receipt = self._forwarding.acknowledge(last)
        self._unacknowledged = 0
        if receipt is None:
            return None
        self._has_acknowledged = True
        return Acknowledge((receipt,))

    @property
    def _may_give_back(self) -> bool:
        # Closing a producer fails its sends under way.
        return not (self._gave_back or self._forwarding.in_flight or self._emptiness.probing)

    def _give_back(self) -> Command:
        self._gave_back = True
        return _GIVE_BACK

    def _ask_last(self, now_ms: int) -> Command:
        self._asked_ms = now_ms
        return _ASK_LAST

    def _sweep(self, last: Position) -> None:
        self._sweeps.begin(self._asked_ms)  # messages sent later than that may stand behind `last`
        self._forwarding.sweep(last)

    def _leave(self, visit: Visit | None) -> Command:
        self.state, self.left = State.LEFT, visit
        return LEAVE
