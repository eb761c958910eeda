"""The relay of a partition of a broker-held tier, as a pure state machine: the way of the source article.

Each message is relayed by itself. It stays under the broker's delay and is delivered when it may leave, or a tick
earlier. It is published onward and acknowledged individually once that is confirmed. At least once: consumers drop the
copies that a crash makes. There is no head and no order, so there is no lane, lease, hole or sweep either. The commands
and events are those of `relay_held`. For a `native` plan all messages leave at once: its subscription is a Failover
subscription, on which the broker delays no messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from timewheel.client.positions import Position
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.next_hop import Drop, NextHop, ToDeadLetter
from timewheel.core.rng import Random
from timewheel.relay.machine.backoff import Silence
from timewheel.relay.machine.interface import (
    AWAIT_MS,
    LEAVE,
    RECEIVE,
    RECEIVE_IDLE,
    Acknowledge,
    AskAgain,
    Command,
    Counts,
    Forward,
    Machine,
    Refile,
    State,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.order import NO_SEQUENCE_ID, WINDOW_BYTES, Spot
from timewheel.relay.machine.readings import PassedOver, Reading, Unreadable, why_dead

_ASK_AGAIN = AskAgain()


class _Message(NamedTuple):
    """A message from its arrival to its confirmation."""

    position: Position
    receipt: Any
    size: int


@dataclass(eq=False)
class BrokerHeld(Machine):
    """A subscription of a partition; arguments as for `Forwarding`."""

    cumulative = False
    left = None
    begins_anew = False

    next_hop: NextHop
    out_of_order: OutOfOrder
    _: KW_ONLY
    window_limit: int
    counts: Counts
    rng: Random
    window_bytes: int = WINDOW_BYTES

    def __post_init__(self) -> None:
        # Only there: on a Shared subscription it would have messages redelivered whose acknowledgement is under way.
        self._silence = Silence(self.rng) if self.next_hop.is_native else None
        self._ordinal = 0
        self._under_way: dict[int, tuple[_Message, Literal["forwarded", "dead"]]] = {}
        self._bytes = 0
        self._head: tuple[Reading, _Message] | None = None
        self._newest: Reading = None
        self.state = State.RECEIVING

    @property
    def confirmed_to(self) -> Spot | None:
        return None

    @property
    def head_release_ms(self) -> int | None:
        return None

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    @property
    def in_flight_bytes(self) -> int:
        return self._bytes

    @property
    def newest_release_ms(self) -> int | None:
        reading = self._newest
        if not isinstance(reading, Envelope) or not (self._head or self._under_way):
            return None
        return self.next_hop.release_ms(reading)

    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Command:
        del batch_size
        if self._silence is not None:
            self._silence.broken()
        self._head = reading, _Message(position, receipt, size)
        self._newest = reading
        return self.done(now_ms)

    def nothing_came(self, now_ms: int) -> Command:
        if self._silence is not None and not self._under_way and self._silence.is_too_long(now_ms):
            return _ASK_AGAIN
        return self.done(now_ms)

    def confirmed(self, ordinals: Iterable[int]) -> Acknowledge | None:
        receipts = []
        for ordinal in ordinals:
            message, outcome = self._under_way.pop(ordinal)
            self._bytes -= message.size
            self.counts.add(outcome)
            receipts.append(message.receipt)
        return Acknowledge(tuple(receipts)) if receipts else None

    def failed(self, ordinal: int) -> Position:
        return self._withdraw(ordinal).position

    def refused(self, reason: str, now_ms: int) -> Command:
        self._head = Unreadable(reason), self._withdraw(self._ordinal)
        return self.done(now_ms)

    def done(self, now_ms: int) -> Command:
        if self._head is None:
            self.state = State.RECEIVING if self._under_way else State.IDLE
            return RECEIVE if self._under_way else RECEIVE_IDLE
        if len(self._under_way) >= self.window_limit or self._bytes >= self.window_bytes:
            self.state = State.CROWDED
            return Wait(AWAIT_MS, 1)
        self.state = State.RECEIVING
        reading, message = self._head
        if isinstance(reading, PassedOver):
            self._head = None
            return Acknowledge((message.receipt,))
        if not isinstance(reading, Envelope):
            return self._store_dead_letter(message, why_dead(reading))
        decision = self.next_hop.delivered(reading, now_ms)
        if isinstance(decision, Drop):
            self._head = None
            self.counts.add("dropped")
            return Acknowledge((message.receipt,))
        if isinstance(decision, ToDeadLetter):
            return self._store_dead_letter(message, decision.reason)
        deliver_at_ms = self.out_of_order.asked_of(decision)
        ordinal = self._push(message, "forwarded")
        return Forward(ordinal, decision.topic, deliver_at_ms, NO_SEQUENCE_ID, decision.envelope)

    def stopping(self, left_ms: int, undone: Command | None = None) -> Command:
        if isinstance(undone, Forward | StoreDeadLetter | Refile):
            self._withdraw(undone.ordinal)
        if self._under_way and left_ms > 0:
            self.state = State.DRAINING
            return Wait(left_ms, 1)
        self.state = State.LEFT
        return LEAVE

    def _store_dead_letter(self, message: _Message, reason: str) -> Command:
        return StoreDeadLetter(self._push(message, "dead"), reason)

    def _push(self, message: _Message, outcome: Literal["forwarded", "dead"]) -> int:
        self._head = None
        self._ordinal += 1
        self._under_way[self._ordinal] = message, outcome
        self._bytes += message.size
        return self._ordinal

    def _withdraw(self, ordinal: int) -> _Message:
        message, _ = self._under_way.pop(ordinal)
        self._bytes -= message.size
        return message
