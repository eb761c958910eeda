"""The consumer's decisions, pure: something happened, at this time; what is to be done?

A timer's life in one consumer; what is not in the table does not happen:

============  ====================================================  ============  =========================
stage         event                                                 next          command
============  ====================================================  ============  =========================
(unknown)     received, due                                         handed        Hand
(unknown)     received, early by at most the bound                  held          -
(unknown)     received, earlier than that                           too early     - (Republish if crowded)
(unknown)     received, handled already                             (unknown)     Acknowledge
held          tick, due                                             handed        Hand
held          tick, the clock went back: early by more than bound   too early     -
too early     tick, due within the bound                            held          -
too early     tick, still earlier than that                         republishing  Republish
republishing  published                                             (unknown)     Acknowledge
republishing  not published                                         too early     -
handed        done                                                  (unknown)     Acknowledge
handed        failed                                                (unknown)     NegativeAcknowledge
handed        received again after the ack time-out                 handed        Hand
any           received again, same position                         same          Drop
any           received again, other position                        same          Drop (kept as extra copy)
============  ====================================================  ============  =========================

An extra copy is acknowledged when its timer is *handled*, never before: until then it may be all that is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import Any, NamedTuple

from timewheel.consumers.handled import HandledTimers, timer_key
from timewheel.consumers.local_wheel import LocalWheel
from timewheel.core.envelope import Envelope
from timewheel.wire.positions import Position

__all__ = [
    "Acknowledge",
    "Arrival",
    "Command",
    "ConsumerCounts",
    "Drop",
    "Engine",
    "Hand",
    "InHand",
    "NegativeAcknowledge",
    "Republish",
    "Stage",
]


MAX_REPUBLISHING = 1_000
"""Re-publications without an answer; more would only queue in the client."""


@unique
class Stage(Enum):
    """Where a timer that is in hand stands."""

    HELD = "held"
    TOO_EARLY = "too early"
    REPUBLISHING = "republishing"
    HANDED = "handed"


class Arrival(NamedTuple):
    """One message as received.

    Args:
        message: The client's.
        origin: Whom to acknowledge it to; the engine only passes it on.
        position: Where it is stored.
        envelope: None for a message without a readable one.
        envelope_error: Why its envelope is unreadable; None if it has none or a good one.
        is_too_new: A later version of timewheel wrote it.
    """

    message: Any
    origin: Any
    position: Position
    envelope: Envelope | None
    envelope_error: str | None = None
    is_too_new: bool = False


@dataclass(slots=True, eq=False)
class InHand:
    """A timer in hand; one object per time that it is handed out, so that a late answer is told from a current one.

    Args:
        key: (timer id, generation) as text; for a message without an envelope its position.
        arrival: The newest copy received from its position. Acknowledging the newest matters in a batch, where each
            delivery counts its own acknowledgements.
        received_ms: When, on the monotonic clock.
        extras: Copies of it at other positions.
    """

    key: str
    arrival: Arrival
    received_ms: int
    stage: Stage = Stage.HELD
    extras: dict[Position, Arrival] = field(default_factory=dict)

    @property
    def due_ms(self) -> int:
        """UTC milliseconds; 0 without an envelope."""
        return self.arrival.envelope.due_ms if self.arrival.envelope else 0


class Hand(NamedTuple):
    """Give it to a handler."""

    timer: InHand


class Acknowledge(NamedTuple):
    """Acknowledge one message."""

    arrival: Arrival


class NegativeAcknowledge(NamedTuple):
    """Have one message delivered again."""

    arrival: Arrival


class Republish(NamedTuple):
    """Publish it again under its due time and report the outcome; acknowledging comes after that."""

    timer: InHand


class Drop(NamedTuple):
    """Do nothing with one message."""

    arrival: Arrival


Command = Hand | Acknowledge | NegativeAcknowledge | Republish | Drop


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer has seen and done since it was made; all but ``held`` only grow.

    Args:
        received: Messages taken from the client.
        handed: Given out; a timer that was given out twice counts twice.
        early: Received before their due time.
        far_too_early: Received earlier than anything we asked for (broker-facts: bounded-local-hold); somebody should
            look.
        republished: Of those, published again under their due time.
        already_handled: Delivered again after they were handled; dropped.
        redelivered: Delivered again from the same position while in hand; dropped.
        extra_copies: Delivered from another position while in hand; dropped.
        timed_out: Handed out again after the ack time-out.
        foreign: Without an envelope; handed out at once.
        envelope_errors: With an unreadable one; handed out at once.
        too_new: Written by a later version of timewheel; given back to the broker.
        done: Handled.
        failed: Negatively acknowledged.
        held: In hand and waiting now.
    """

    received: int = 0
    handed: int = 0
    early: int = 0
    far_too_early: int = 0
    republished: int = 0
    already_handled: int = 0
    redelivered: int = 0
    extra_copies: int = 0
    timed_out: int = 0
    foreign: int = 0
    envelope_errors: int = 0
    too_new: int = 0
    done: int = 0
    failed: int = 0
    held: int = 0


class Engine:
    """Decides for one subscription; every method takes the time and returns commands, in order.

    Args:
        hold_bound_ms: The most that a message is held before its due time (`timewheel.core.limits.hold_bound_ms`).
        max_held: The most messages that wait here; at that the caller stops receiving (`full`).
        handled: Which timers were handled.
        ack_timeout_ms: After this the client has a message delivered again; None: never.
    """

    __slots__ = ("_ack_timeout_ms", "_counts", "_extras", "_handled", "_hold_bound_ms", "_in_hand", "_max_held",
                 "_republishing", "_wheel")  # fmt: skip

    def __init__(
        self, *, hold_bound_ms: int, max_held: int, handled: HandledTimers, ack_timeout_ms: int | None = None
    ) -> None:
        self._hold_bound_ms = hold_bound_ms
        self._max_held = max_held
        self._handled = handled
        self._ack_timeout_ms = ack_timeout_ms
        self._wheel = LocalWheel(max_held)
        self._in_hand: dict[str, InHand] = {}
        self._republishing = 0
        self._extras = 0
        self._counts = ConsumerCounts()

    @property
    def held_count(self) -> int:
        """Messages that wait here: held, too early, being published again, and extra copies."""
        return len(self._wheel) + self._republishing + self._extras

    @property
    def full(self) -> bool:
        """Whether nothing more may be received until something leaves."""
        return self.held_count >= self._max_held

    @property
    def counts(self) -> ConsumerCounts:
        """A copy."""
        return replace(self._counts, held=self.held_count)

    def next_wake_ms(self) -> int | None:
        """When `tick` has something to do, UTC milliseconds."""
        return self._wheel.next_wake_ms()

    def at_position(self, position: Position) -> InHand | None:
        """The timer in hand whose message is stored there."""
        return next((timer for timer in self._in_hand.values() if timer.arrival.position == position), None)

    def far_too_early(self, arrival: Arrival, now_ms: int) -> bool:
        """Whether it came earlier than anything that was asked for (broker-facts: bounded-local-hold)."""
        return arrival.envelope is not None and arrival.envelope.due_ms - now_ms > self._hold_bound_ms

    def received(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> list[Command]:
        """A message came; only to be called while not `full`.

        Args:
            arrival: The message.
            now_ms: UTC milliseconds, which decide what is due.
            monotonic_ms: The clock that never goes back, which decides what timed out.
        """
        counts = self._counts
        counts.received += 1
        envelope = arrival.envelope
        if arrival.is_too_new:
            # Not for us to say when it is due: a consumer of that version shall have it.
            counts.too_new += 1
            return [NegativeAcknowledge(arrival)]
        if envelope is None:
            # Never lose, never guess: a message that says no due time goes to the handler as Pulsar delivered it.
            if arrival.envelope_error is None:
                counts.foreign += 1
            else:
                counts.envelope_errors += 1
            # A digit begins every timer's key, so a position never meets one.
            key = f"@{arrival.position}"
        else:
            key = timer_key(envelope)
            if key in self._handled:
                counts.already_handled += 1
                return [Acknowledge(arrival)]
        known = self._in_hand.get(key)
        timer = InHand(key, arrival, monotonic_ms)
        if known is not None:
            if not self._timed_out(known, arrival, monotonic_ms):
                return self._received_again(known, arrival, monotonic_ms)
            counts.timed_out += 1
            timer.extras = known.extras
        self._in_hand[key] = timer
        if envelope is not None and envelope.due_ms > now_ms:
            counts.early += 1
            counts.far_too_early += self.far_too_early(arrival, now_ms)
        return self._place(timer, now_ms)

    def tick(self, now_ms: int) -> list[Command]:
        """Time passed, or jumped."""
        commands: list[Command] = []
        first_ms = self._wheel.next_wake_ms()
        if first_ms is None:
            return commands
        # Nothing is held for longer than the bound, unless the clock went back: then everything is decided anew.
        woken = self._wheel.pop_all() if first_ms > now_ms + self._hold_bound_ms else self._wheel.pop_due(now_ms)
        for key in woken:
            commands += self._place(self._in_hand[key], now_ms)
        return commands

    def done(self, timer: InHand) -> list[Command]:
        """The handler is done with it (or somebody else's handler, after the ack time-out)."""
        current = self._forget(timer.key)
        self._counts.done += 1
        if timer.arrival.envelope is not None:
            # Before the acknowledgement: if that gets lost, the next delivery must meet a handled timer.
            self._handled.add(timer.key)
        arrivals = {timer.arrival.position: timer.arrival, **timer.extras}
        if current is not None:
            arrivals |= {current.arrival.position: current.arrival, **current.extras}
        return [Acknowledge(arrival) for arrival in arrivals.values()]

    def failed(self, timer: InHand) -> list[Command]:
        """The handler failed, or asks for it again."""
        if self._in_hand.get(timer.key) is not timer:
            return []  # acknowledged meanwhile, or in another handler's hands after the ack time-out
        self._forget(timer.key)
        self._counts.failed += 1
        return [NegativeAcknowledge(arrival) for arrival in (timer.arrival, *timer.extras.values())]

    def published(self, timer: InHand, now_ms: int) -> list[Command]:
        """A re-publication is confirmed."""
        self._forget(timer.key)
        self._counts.republished += 1
        commands: list[Command] = [Acknowledge(timer.arrival)]
        if timer.extras:
            # One of them may be the copy that we just published: it has come back before its confirmation. From here on
            # it is the timer.
            first, *others = timer.extras.values()
            promoted = InHand(timer.key, first, timer.received_ms, extras={other.position: other for other in others})
            self._in_hand[timer.key] = promoted
            self._extras += len(others)
            commands += self._place(promoted, now_ms)
        return commands

    def not_published(self, timer: InHand, now_ms: int) -> list[Command]:
        """A re-publication failed, or its outcome is unknown: it waits and is tried again."""
        if self._in_hand.get(timer.key) is not timer or timer.stage is not Stage.REPUBLISHING:
            return []
        self._republishing -= 1
        self._wait_first(timer, now_ms)
        return []

    def _received_again(self, timer: InHand, arrival: Arrival, monotonic_ms: int) -> list[Command]:
        if arrival.position == timer.arrival.position:
            self._counts.redelivered += 1
            timer.arrival = arrival
            timer.received_ms = monotonic_ms
        else:
            self._counts.extra_copies += 1
            self._extras += arrival.position not in timer.extras
            timer.extras[arrival.position] = arrival
        return [Drop(arrival)]

    def _timed_out(self, timer: InHand, arrival: Arrival, monotonic_ms: int) -> bool:
        return (
            self._ack_timeout_ms is not None
            and timer.stage is Stage.HANDED
            and arrival.position == timer.arrival.position
            and monotonic_ms - timer.received_ms >= self._ack_timeout_ms
        )

    def _place(self, timer: InHand, now_ms: int) -> list[Command]:
        """Decide about a timer that is in hand, in no wheel, and not handed out."""
        early_ms = timer.due_ms - now_ms
        if early_ms <= 0:
            timer.stage = Stage.HANDED
            self._counts.handed += 1
            return [Hand(timer)]
        if early_ms <= self._hold_bound_ms:
            timer.stage = Stage.HELD
            self._wheel.push(timer.key, timer.due_ms)
            return []
        # Published again (broker-facts: bounded-local-hold). If the broker delays nothing at all it comes straight
        # back, so that doing it at once would write as fast as the disk takes it: it waits first, for no longer
        # than anything is held, as long as that leaves half of the room to what is nearly due.
        crowded = 2 * self.held_count >= self._max_held
        if (timer.stage is Stage.TOO_EARLY or crowded) and self._republishing < MAX_REPUBLISHING:
            timer.stage = Stage.REPUBLISHING
            self._republishing += 1
            return [Republish(timer)]
        self._wait_first(timer, now_ms)
        return []

    def _wait_first(self, timer: InHand, now_ms: int) -> None:
        timer.stage = Stage.TOO_EARLY
        self._wheel.push(timer.key, now_ms + self._hold_bound_ms)

    def _forget(self, key: str) -> InHand | None:
        timer = self._in_hand.pop(key, None)
        if timer is not None:
            self._wheel.discard(key)
            self._extras -= len(timer.extras)
            self._republishing -= timer.stage is Stage.REPUBLISHING
        return timer
