"""The relay of a partition of a relay-held topic, as a pure state machine: event and time in, command out.

docs/state-machines.txt has its table. `forwarding` decides about messages, this module about time: waits, leases,
sweeps, acknowledging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from timewheel.client.positions import Position
from timewheel.core.rng import Random
from timewheel.relay.machine.arrivals import Arrivals
from timewheel.relay.machine.backoff import Backoff
from timewheel.relay.machine.commands import (
    AWAIT_MS,
    IDLE_MS,
    LEAVE,
    NEVER,
    PROBED,
    RECEIVE,
    RECEIVE_IDLE,
    SEND_GROUPS,
    Acknowledge,
    AskLast,
    AwaitAll,
    AwaitRoom,
    Command,
    Decision,
    Examine,
    Forward,
    GiveBack,
    HoldUntil,
    PutProbe,
    Reading,
    Receive,
    Refile,
    SendGroups,
    Stop,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.emptiness import Emptiness, is_proven
from timewheel.relay.machine.forwarding import Forwarding
from timewheel.relay.machine.interface import Machine
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.silence import Silence
from timewheel.relay.machine.states import State
from timewheel.relay.machine.visits import Sweeps, Visit

ACK_EVERY = 100
"""Confirmed messages per cumulative acknowledgement while the pipeline runs; a pause acknowledges at once."""
LEASE_FIRST_MS = 50
LEASE_LONGEST_MS = 2_000
ASK_LAST_AGAIN_MS = 200
_ASK_LAST = AskLast()
_GIVE_BACK = GiveBack()
_PUT_PROBE = PutProbe()


class RelayHeld(Machine):
    """A subscription of a partition.

    Args:
        forwarding: Decides about its messages.
        visit: Returns the visit to a slot of a ring; None to stay.
        lease_idle_ms: A longer pause gives the names of producers back.
        rng: Randomness for `Backoff`.
    """

    cumulative = True

    __slots__ = (
        "_asked_in_vain",
        "_asked_ms",
        "_emptiness",
        "_forwarding",
        "_gathering",
        "_gave_back",
        "_idle_since_ms",
        "_last",
        "_lease_backoff",
        "_lease_idle_ms",
        "_must_wait",
        "_room",
        "_silence",
        "_sweeps",
        "_unacknowledged",
        "_visit",
        "begins_anew",
        "left",
        "state",
    )

    def __init__(
        self,
        forwarding: Forwarding,
        *,
        visit: Callable[[], Visit | None],
        lease_idle_ms: int,
        rng: Random,
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
        visit = self._visit()
        may_leave = not self._emptiness.probing and self._sweeps.is_over(visit, now_ms)
        if now_ms - self._idle_since_ms >= self._lease_idle_ms and self._may_give_back:
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
        self._asked_in_vain = forwarding.keeps_back
        self.state, self._last = State.IDLE, None
        return forwarding.ask_again(now_ms) if self._silence.is_too_long(now_ms) else RECEIVE_IDLE

    def _hold(self, head: HoldUntil, now_ms: int) -> Command:
        """Hold the head until its release."""
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
        return None if receipt is None else Acknowledge((receipt,))

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
