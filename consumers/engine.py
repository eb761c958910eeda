"""The consumer's decisions, pure: takes an event and the time, returns the commands to execute.

docs/state-machines.txt has the table of a timer's life in a consumer.

An extra copy is acknowledged when its timer is *handled*, never before: until then it may be the only stored copy.
"""

from __future__ import annotations

import datetime as dt
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import Literal, NamedTuple, get_args

from timewheel.client.positions import Position
from timewheel.core.cancellations import is_too_late
from timewheel.core.durations import spelled
from timewheel.core.envelope import Envelope, first_wanted_ms

from .counts import ConsumerCounts
from .message import MAX_REASON_CHARS, Arrival, InFlight, Mark, Parked, Redirect, Stage, too_late_to_know

DEFAULT_HANDLED = 100_000
"""Timers remembered: some 20 MB with generated ids, and ten times the number of acknowledged ranges that a broker
stores by default.
"""


def timer_key(envelope: Envelope) -> str:
    """Return the key of a timer that is to be handled once: (timer id, generation, attempt), as text.

    The text itself, never a hash of it: a collision would lose the second timer.
    """
    attempt = envelope.life.attempt
    if attempt:
        return f"{envelope.generation}.{attempt}:{envelope.timer_id}"
    return f"{envelope.generation}:{envelope.timer_id}"


class HandledWindow:
    """The last keys, in memory; the oldest key is forgotten first.

    After a reload of a due topic, the broker redelivers acknowledged messages that it forgot; a consumer that remembers
    the timer drops it. The window is this process's memory: it knows neither the timers that another replica handled,
    nor those handled before a crash.
    """

    def __init__(self, size: int = DEFAULT_HANDLED) -> None:
        self.size = size
        self._keys: set[str] = set()
        self._order: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remember a key."""
        if key in self._keys:
            return
        if len(self._order) >= self.size:
            self._keys.discard(self._order.popleft())
        self._keys.add(key)
        self._order.append(key)


class LocalWheel:
    """Keys of held timers, each with its wake-up time; bounded (broker-facts: bounded-local-hold).

    A heap, not hashed buckets: the hold is short and exact to the millisecond, so a bucket per tick would have to be
    sorted again.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._heap: list[tuple[int, int, str]] = []
        # key -> sequence number of its entry in the heap; an entry with another number is dead.
        self._live: dict[str, int] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: object) -> bool:
        return key in self._live

    def push(self, key: str, wake_ms: int) -> None:
        """Hold a key until ``wake_ms`` (UTC milliseconds); a key that is already held is moved."""
        if key not in self._live and len(self._live) >= self.capacity:
            raise OverflowError(f"the local wheel holds {self.capacity} timers and is full")
        self._sequence += 1
        self._live[key] = self._sequence
        heapq.heappush(self._heap, (wake_ms, self._sequence, key))
        # Dead entries never outnumber live ones by more than the live ones, so memory is bounded too.
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, key: str) -> bool:
        """Forget a key; False if it is not held."""
        return self._live.pop(key, None) is not None

    def next_wake_ms(self) -> int | None:
        """Return the wake-up time of the first key; None when empty."""
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield every key whose time has come, the earliest first, equal times in order of arrival."""
        while True:
            self._drop_dead()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            key = heapq.heappop(self._heap)[2]
            del self._live[key]
            yield key

    def pop_all(self) -> tuple[str, ...]:
        """Remove and return all keys, in order."""
        keys = tuple(entry[2] for entry in sorted(self._heap) if self._live.get(entry[2]) == entry[1])
        self._heap.clear()
        self._live.clear()
        return keys

    def _drop_dead(self) -> None:
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)


WhenOverdue = Literal["deliver", "drop", "park"]


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """Decides whether timers may be handed out, where they may be cancelled."""

    is_cancelled: Callable[[Envelope], bool]  # returns whether a timer is cancelled, as far as this process knows now
    keep_ms: int  # time after its due time that a timer's cancellation is certainly remembered


@dataclass(frozen=True, slots=True)
class Overdue:
    """The outcome of timers that arrive too late to be useful, for instance after an outage.

    Args:
        after: Lateness from which a timer is overdue; for a timer that is tried again, by its attempt's due time.
        then: ``"drop"`` it (it is acknowledged and counted), ``"park"`` it, or ``"deliver"`` it all the same.

    Raises:
        ValueError: A value is out of range.
    """

    after: dt.timedelta
    then: WhenOverdue = "park"

    def __post_init__(self) -> None:
        after: object = self.after
        if not isinstance(after, dt.timedelta) or after <= dt.timedelta(0):
            raise ValueError(f"Overdue: after ({after!r}) must be a duration above 0")
        if self.then not in get_args(WhenOverdue):
            raise ValueError(f"Overdue: then ({self.then!r}) must be one of {', '.join(get_args(WhenOverdue))}")

    def is_met(self, late_ms: int) -> bool:
        """True if a timer with this lateness is overdue."""
        return dt.timedelta(milliseconds=late_ms) > self.after


@unique
class Verdict(Enum):
    """The verdict about a due timer that is not parked."""

    HAND = "hand"
    """A handler may have the timer."""
    ASK = "ask"
    """The timer may have been cancelled: the log of cancellations must be asked first."""
    CANCELLED = "cancelled"
    """The timer was cancelled or replaced."""
    OVERDUE = "overdue"
    """The timer is too late to be useful."""


def verdict_on(
    envelope: Envelope | None, now_ms: int, judge: DeliveryPolicy | None, overdue: Overdue | None
) -> Verdict | Parked:
    """Decide about a timer that is due."""
    if envelope is None or (judge is None and overdue is None):
        return Verdict.HAND
    if judge is not None and judge.is_cancelled(envelope):
        # No question needed: a cancellation is never taken back.
        return Verdict.CANCELLED
    late_ms = now_ms - envelope.due_ms
    if overdue is not None and overdue.then != "deliver" and overdue.is_met(late_ms):
        if overdue.then == "drop":
            return Verdict.OVERDUE
        use = spelled(overdue.after // dt.timedelta(milliseconds=1))
        return Parked(f"it came {spelled(late_ms)} after its due time, and is useful for {use} only")
    if judge is None:
        return Verdict.HAND
    if is_too_late(envelope, now_ms, judge.keep_ms):
        return too_late_to_know(now_ms - first_wanted_ms(envelope), judge.keep_ms)
    return Verdict.ASK


MAX_FAILURES = 3
"""Failed publishes in a row of a timer that arrived far too early; after them the timer waits in the broker."""
MAX_GIVEN_BACK = 10
"""Redeliveries, by the broker's count, of a message that can only be given back; after them it is parked."""
SHARE = 4
"""Divisor of the room to hold timers, for two limits: timers whose publish failed, and messages given back.

The second limit is for each redelivery delay.
"""


class GivingBack:
    """Decides about messages that a consumer can neither hand out nor publish.

    They wait in the broker, and are redelivered. But a broker limits the unacknowledged messages of a consumer, and
    redelivers those before all others: so their number is bounded, and a message that was redelivered too often is
    parked.
    """

    def __init__(self, max_held: int, hold_bound_ms: int, *, parks: bool, redelivery_delay_ms: int) -> None:
        self._most = max(max_held // SHARE, 1)
        self._hold_bound_ms = hold_bound_ms
        self._parks = parks
        self._redelivery_delay_ms = redelivery_delay_ms
        self._failing = 0  # timers in flight whose last publish failed
        self._given_back = 0
        self._since_ms = 0

    def waits(self, timer: InFlight, *, is_full: bool) -> bool:
        """Return whether a timer whose publish failed waits here for another publish, perhaps to the parking topic.

        Otherwise the timer goes back to the broker.
        """
        self._failing += not timer.failures
        timer.failures += 1
        is_crowd = self._failing > self._most
        if timer.redirect is not None:
            # The timer has no room reserved here, unlike a timer that arrived early.
            return not is_full and not is_crowd
        if not is_crowd and timer.failures < MAX_FAILURES:
            return True
        if not self._parks_by_now(timer.arrival):
            return False
        self.forgets(timer)
        timer.redirect = Parked("it came far too early, and could not be published again")
        return True

    def forgets(self, timer: InFlight) -> None:
        """Reset the failed publishes of a timer that leaves or is to be parked."""
        self._failing -= 1
        timer.failures = 0

    def too_new(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> InFlight | None:
        """Decide about a message of a later version: park it, hand it out as unreadable, or (None) have it redelivered.

        Redelivery may reach a consumer of that version; its number is limited, since any producer can write any
        version.
        """
        if monotonic_ms - self._since_ms >= self._redelivery_delay_ms:
            self._since_ms, self._given_back = monotonic_ms, 0
        self._given_back += 1
        is_crowd = self._given_back > self._most
        if not is_crowd and not self._parks_by_now(arrival):
            return None
        timer = InFlight(arrival.place_key, arrival, monotonic_ms)
        if self._parks:
            timer.redirect = Parked(f"no consumer here reads it: {arrival.envelope_error}"[:MAX_REASON_CHARS])
        else:
            timer.postponed_ms, timer.not_before_ms = now_ms, now_ms + self._hold_bound_ms
        return timer

    def without_id(self, arrival: Arrival, redirect: Redirect) -> Parked | None:
        """Decide about a message without id that its handler wants parked or retried; None to have it redelivered."""
        if isinstance(redirect, Parked):
            return redirect if self._parks else None
        if not self._parks_by_now(arrival):
            return None
        came = f"the broker delivered it again {arrival.redeliveries} times (limit {MAX_GIVEN_BACK})"
        return Parked(f"it has no envelope to be tried again by, and {came}")

    def _parks_by_now(self, arrival: Arrival) -> bool:
        return self._parks and arrival.redeliveries >= MAX_GIVEN_BACK


class Deliver(NamedTuple):
    """Give a timer to a handler."""

    timer: InFlight


class Acknowledge(NamedTuple):
    """Acknowledge a message."""

    arrival: Arrival


class NegativeAcknowledge(NamedTuple):
    """Have a message redelivered."""

    arrival: Arrival


class Republish(NamedTuple):
    """Publish a timer again, under its due time or to be parked, and report the outcome; acknowledge only then."""

    timer: InFlight


class Release(NamedTuple):
    """Release the claim on a timer that is not tried again or parked after all, at least not by its copy in flight."""

    timer: InFlight


class Drop(NamedTuple):
    """Ignore a message."""

    arrival: Arrival


class Lost(NamedTuple):
    """Forget a message that the broker has taken back, and delivers again."""

    arrival: Arrival


Command = Deliver | Acknowledge | NegativeAcknowledge | Republish | Release | Drop | Lost


def let_go(timer: InFlight | None) -> list[Command]:
    """Return the command for a timer that was to be tried again or parked, and ends otherwise."""
    return [] if timer is None or timer.redirect is None else [Release(timer)]


MAX_REPUBLISHING = 1_000  # unconfirmed re-publications; more of them would only queue in the client

_ELSEWHERE = frozenset({Stage.HANDED, Stage.BEGUN, Stage.REPUBLISHING, Stage.CLEARING})
"""A handler, the republisher or a question has the timer, and will report its outcome."""

_WAITING = frozenset({Stage.HELD, Stage.TOO_EARLY, Stage.CLEARING, Stage.HANDED})
"""Nothing was done with the timer yet, unless a handler wants it tried again or parked."""


class Engine:
    """Decides for a subscription; every method takes the time and returns commands, in order."""

    __slots__ = ("_ack_timeout_ms", "_asked", "_counts", "_extras", "_giving_back", "_handled", "_hold_bound_ms",
                 "_in_flight", "_judge", "_max_held", "_overdue", "_republishing", "_unasked", "_wheel",
                 "has_overdue", "judges")  # fmt: skip

    def __init__(
        self,
        *,
        # the longest time that a message is held before its due time (`timewheel.core.early_delivery.hold_bound_ms`)
        hold_bound_ms: int,
        max_held: int,  # maximum number of messages that wait here; at that number the caller stops receiving (`full`)
        handled: HandledWindow,  # remembers the handled timers
        ack_timeout_ms: int | None = None,  # time after which the client has a message redelivered; None for never
        # judges timers that may have been cancelled; None if timers cannot be cancelled
        judge: DeliveryPolicy | None = None,
        overdue: Overdue | None = None,  # decides about late timers; None delivers them
        parks: bool = False,  # whether the subscription has a parking topic, for an operator
        redelivery_delay_ms: int = 60_000,  # time after which a message that was given back is redelivered
    ) -> None:
        self._hold_bound_ms = hold_bound_ms
        self._max_held = max_held
        self._handled = handled
        self._ack_timeout_ms = ack_timeout_ms
        self._judge = judge
        self._overdue = overdue
        self.has_overdue = overdue is not None  # whether some timers arrive too late to be useful
        self.judges = judge is not None or self.has_overdue  # whether some due timers must not be handled
        self._unasked: list[InFlight] = []
        self._asked: list[InFlight] = []
        self._wheel = LocalWheel(max_held)
        self._in_flight: dict[str, InFlight] = {}
        self._giving_back = GivingBack(max_held, hold_bound_ms, parks=parks, redelivery_delay_ms=redelivery_delay_ms)
        self._republishing = 0
        self._extras = 0
        self._counts = ConsumerCounts()

    @property
    def held_count(self) -> int:
        """Messages that wait here: held, too early, being published again, being judged, and extra copies."""
        return len(self._wheel) + self._republishing + self._extras + len(self._unasked) + len(self._asked)

    @property
    def in_flight(self) -> int:
        """Timers that were received, and are not dealt with; those that handlers have, too."""
        return len(self._in_flight)

    @property
    def full(self) -> bool:
        """True if no message may be received until another leaves."""
        return self.held_count >= self._max_held

    @property
    def counts(self) -> ConsumerCounts:
        """A copy of the counters."""
        return replace(self._counts, held=self.held_count)

    def next_wake_ms(self) -> int | None:
        """Return when `tick` has work, UTC milliseconds; None if no timer waits."""
        return self._wheel.next_wake_ms()

    def at_position(self, position: Position) -> InFlight | None:
        """Return the timer in flight whose message has this position, if any."""
        return next((timer for timer in self._in_flight.values() if timer.arrival.position == position), None)

    def far_too_early(self, arrival: Arrival, now_ms: int) -> bool:
        """True if a message arrived earlier than anything that was requested (broker-facts: bounded-local-hold)."""
        return arrival.envelope is not None and arrival.envelope.due_ms - now_ms > self._hold_bound_ms

    def received(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> list[Command]:
        """Decide about a new message; only to be called while not `full`."""
        counts = self._counts
        counts.received += 1
        envelope = arrival.envelope
        if (mark := arrival.mark) is not None:
            counts.came(mark)
            if mark is not Mark.NATIVE:
                return [Acknowledge(arrival)] if mark is Mark.NUDGE else self._too_new(arrival, now_ms, monotonic_ms)
        if envelope is None:
            # Never lose, never guess: a message without a due time goes to the handler as Pulsar delivered it.
            counts.came(arrival.envelope_error)
            key = arrival.place_key
        else:
            key = timer_key(envelope)
        if key in self._handled:
            counts.already_handled += 1
            return [Acknowledge(arrival)]
        if self._judge is not None and envelope is not None and self._judge.is_cancelled(envelope):
            counts.cancelled += 1
            waiting = self._in_flight.get(key)
            dropped = [] if waiting is None or waiting.stage in _ELSEWHERE else self._settle(waiting)
            return [Acknowledge(arrival), *dropped]
        known = self._in_flight.get(key)
        timer = InFlight(key, arrival, monotonic_ms)
        if known is not None:
            if not known.timed_out(arrival, monotonic_ms, self._ack_timeout_ms):
                return self._received_again(known, arrival, monotonic_ms)
            counts.timed_out += 1
            timer.extras = known.extras
        self._in_flight[key] = timer
        if envelope is not None and envelope.due_ms > now_ms:
            counts.early += 1
            counts.far_too_early += self.far_too_early(arrival, now_ms)
        return self._place(timer, now_ms)

    def disconnected(self, origin: object) -> list[Command]:
        """Let go of all timers from a partition that wait here: its connection was lost, so the broker gives them away.

        A timer whose handler has begun, or that is published again, goes on; its redelivery here is dropped.
        """
        commands: list[Command] = []
        for timer in [*self._in_flight.values()]:
            if timer.stage not in _WAITING or timer.redirect is not None:
                continue
            lost = [arrival for arrival in timer.arrivals if arrival.origin is origin]
            kept = [arrival for arrival in timer.arrivals if arrival.origin is not origin]
            commands += map(Lost, lost)
            if not kept:
                self._forget(timer.key)
                self._counts.let_go += 1
            elif lost:
                timer.arrival = kept[0]
                self._extras -= len(timer.extras) - len(kept) + 1
                timer.extras = {arrival.position: arrival for arrival in kept[1:]}
        return commands

    def tick(self, now_ms: int) -> list[Command]:
        """Decide about waiting timers after time passed, or the clock jumped."""
        first_ms = self._wheel.next_wake_ms()
        if first_ms is None:
            return []
        # No timer is held for longer than the bound, unless the clock went back: then every timer is decided anew.
        woken = self._wheel.pop_all() if first_ms > now_ms + self._hold_bound_ms else self._wheel.pop_due(now_ms)
        return [command for key in woken for command in self._place(self._in_flight[key], now_ms)]

    @property
    def unasked(self) -> int:
        """Number of due timers for which a question is still to be asked."""
        return len(self._unasked)

    @property
    def clearing(self) -> int:
        """Number of due timers that wait for an answer, including those whose question is still to be asked."""
        return len(self._unasked) + len(self._asked)

    def asked(self) -> None:
        """Record that the log of cancellations is asked about all `unasked` timers; one question at a time."""
        assert not self._asked, "one question at a time"
        self._asked, self._unasked = self._unasked, []

    def answered(self, now_ms: int) -> list[Command]:
        """Decide about the asked timers: the log was read up to its end at the time of the question."""
        judge, timers, self._asked = self._judge, self._asked, []
        assert judge is not None, "nobody asks where nothing can be cancelled"
        commands: list[Command] = []
        for timer in self._still_in_flight(timers):
            envelope = timer.arrival.envelope
            assert envelope is not None, "only what has an envelope can be cancelled"
            if envelope.due_ms > now_ms and not judge.is_cancelled(envelope):
                commands += self._place(timer, now_ms)
            else:
                # Judged once more: after a slow answer, the cancellation may already be forgotten.
                commands += self._due(timer, now_ms, is_asked=True)
        return commands

    def unanswered(self) -> list[Command]:
        """Hand out the asked timers: the log does not answer, and the plan has them delivered all the same."""
        timers, self._asked = self._still_in_flight(self._asked), []
        self._counts.unevaluated += len(timers)
        return [self._hand(timer, 0) for timer in timers]

    def done(self, timer: InFlight, *, is_skipped: bool = False) -> list[Command]:
        """Acknowledge a timer that is handled (maybe by another handler, after the ack timeout) or skipped."""
        current = self._forget(timer.key)
        self._counts.skipped += is_skipped
        self._counts.done += not is_skipped
        if timer.arrival.envelope is not None:
            # Before the acknowledgement: if that gets lost, the next delivery must meet a handled timer.
            self._handled.add(timer.key)
        if current is timer and not timer.extras and timer.redirect is None:
            return [Acknowledge(timer.arrival)]
        arrivals = {timer.arrival.position: timer.arrival, **timer.extras}
        if current is not None:
            arrivals |= {current.arrival.position: current.arrival, **current.extras}
        return [*let_go(current), *(Acknowledge(arrival) for arrival in arrivals.values())]

    def failed(self, timer: InFlight) -> list[Command]:
        """Give a timer back to the broker: the handler failed, or asks for the timer again."""
        if self._in_flight.get(timer.key) is not timer:
            return []  # acknowledged meanwhile, or in another handler's hands after the ack timeout
        self._forget(timer.key)
        self._counts.failed += 1
        return [NegativeAcknowledge(arrival) for arrival in timer.arrivals]

    def postponed(self, timer: InFlight, now_ms: int, after_ms: int) -> list[Command]:
        """Keep a timer in flight that the handler puts off, and hand it out again later without the broker."""
        if self._in_flight.get(timer.key) is not timer:
            return []
        if self.full:
            return self.failed(timer)  # no room to wait here: it waits in the broker
        self._counts.postponed += 1
        timer.postponed_ms = now_ms
        # At least a moment, so that the receiving thread hands it out, and not the thread that puts it off.
        timer.not_before_ms = now_ms + max(after_ms, 1)
        return self._place(timer, now_ms)

    def redirected(self, timer: InFlight, redirect: Redirect, now_ms: int) -> list[Command]:
        """Publish a timer onward: it is not handled, and must not be redelivered unchanged."""
        if self._in_flight.get(timer.key) is not timer:
            return [Release(timer)]
        has_room = self._republishing < MAX_REPUBLISHING or not self.full
        goes_on = self._giving_back.without_id(timer.arrival, redirect) if timer.arrival.envelope is None else redirect
        if goes_on is None or not has_room:
            return [Release(timer), *self.failed(timer)]  # it waits in the broker
        timer.redirect = goes_on
        return self._republish(timer, now_ms)

    def published(self, timer: InFlight, now_ms: int) -> list[Command]:
        """Record that a re-publication is confirmed, and acknowledge the original."""
        self._forget(timer.key)
        if timer.redirect is not None:
            is_parked = isinstance(timer.redirect, Parked)
            self._counts.parked += is_parked
            self._counts.retried += not is_parked
            # Only now, and by attempt: the onward message has another key, and a copy of this timer must not go onward
            # again.
            self._handled.add(timer.key)
            return [Acknowledge(arrival) for arrival in timer.arrivals]
        self._counts.republished += 1
        commands: list[Command] = [Acknowledge(timer.arrival)]
        if timer.extras:
            # An extra may be the copy that we just published, redelivered before its confirmation. From here on it is
            # the timer.
            first, *others = timer.extras.values()
            promoted = InFlight(timer.key, first, timer.received_ms, extras={other.position: other for other in others})
            self._in_flight[timer.key] = promoted
            self._extras += len(others)
            commands += self._place(promoted, now_ms)
        return commands

    def not_published(self, timer: InFlight, now_ms: int) -> list[Command]:
        """Record that a re-publication failed, or that its outcome is unknown: the timer waits and is tried again."""
        if self._in_flight.get(timer.key) is not timer or timer.stage is not Stage.REPUBLISHING:
            return []
        self._republishing -= 1
        timer.stage = Stage.TOO_EARLY
        if not self._giving_back.waits(timer, is_full=self.full):
            return [*let_go(timer), *self.failed(timer)]
        self._wait_first(timer, now_ms)
        return []

    def _too_new(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> list[Command]:
        """Leave a message of a later version, whose due time is unknown here, to a consumer of that version."""
        if arrival.place_key in self._handled:
            return [Acknowledge(arrival)]  # parked, and in a batch of which another part was redelivered
        timer = self._giving_back.too_new(arrival, now_ms, monotonic_ms)
        if timer is None or timer.key in self._in_flight:
            return [NegativeAcknowledge(arrival)]
        self._in_flight[timer.key] = timer
        return self._place(timer, now_ms)

    def _received_again(self, timer: InFlight, arrival: Arrival, monotonic_ms: int) -> list[Command]:
        if arrival.position == timer.arrival.position:
            self._counts.redelivered += 1
            commands = self._lost_unseen(timer)
            timer.arrival = arrival
            timer.received_ms = monotonic_ms
            return [Drop(arrival), *commands]
        if arrival.position not in timer.extras and 2 * (self._extras + 1) > self._max_held:
            # Half of the room is for timers.
            return [NegativeAcknowledge(arrival)]  # acknowledged at its redelivery, when the timer is handled
        self._counts.extra_copies += 1
        self._extras += arrival.position not in timer.extras
        timer.extras[arrival.position] = arrival
        return [Drop(arrival)]

    def _lost_unseen(self, again: InFlight) -> list[Command]:
        """Give back what waits here and came no later than a timer that comes again, from the same partition.

        The connection was lost for so short a time that it was not seen. They are negatively acknowledged, not only
        dropped: should the broker have sent that one message again, they come again too. Not with an ack timeout, by
        which the client has single messages delivered again.
        """
        if self._ack_timeout_ms is not None:
            return []
        origin, until_ms = again.arrival.origin, again.received_ms
        lost = [
            timer
            for timer in self._in_flight.values()
            if timer is not again
            and timer.received_ms <= until_ms
            and timer.arrival.origin is origin
            and timer.stage in _WAITING
            and timer.redirect is None
            and not timer.extras
        ]
        for timer in lost:
            self._forget(timer.key)
        self._counts.let_go += len(lost)
        return [NegativeAcknowledge(timer.arrival) for timer in lost]

    def _place(self, timer: InFlight, now_ms: int) -> list[Command]:
        """Decide about a timer that is in flight, in no wheel, and not handed out."""
        if timer.redirect is not None:
            return self._republish(timer, now_ms)
        early_ms = timer.due_ms - now_ms
        if early_ms <= 0:
            wait_ms = timer.postponed_for_ms(now_ms) if timer.not_before_ms else 0
            if not wait_ms:
                # Where timers can be neither cancelled nor overdue, each timer is handed out without a decision.
                return self._due(timer, now_ms) if self.judges else [self._hand(timer, now_ms)]
            timer.stage = Stage.HELD
            self._wheel.push(timer.key, now_ms + min(wait_ms, self._hold_bound_ms))
            return []
        if early_ms <= self._hold_bound_ms:
            timer.stage = Stage.HELD
            self._wheel.push(timer.key, timer.due_ms)
            return []
        # Published again (broker-facts: bounded-local-hold). If the broker delays no messages at all, the copy comes
        # straight back, so that publishing at once would write as fast as the disk allows. So the timer waits first, no
        # longer than any timer is held, as long as half of the room is left for timers that are nearly due.
        if timer.stage is Stage.TOO_EARLY or 2 * self.held_count >= self._max_held:
            return self._republish(timer, now_ms)
        self._wait_first(timer, now_ms)
        return []

    def begins(self, timer: InFlight, now_ms: int, *, is_asked: bool) -> list[Command] | None:
        """Decide as `still_due`; if the handler may begin, it begins."""
        commands = self.still_due(timer, now_ms, is_asked=is_asked)
        if commands is None:
            timer.stage = Stage.BEGUN
        return commands

    def still_due(self, timer: InFlight, now_ms: int, *, is_asked: bool) -> list[Command] | None:
        """Decide again about a timer that waited for its handler; None if the handler may begin.

        Unless the log of cancellations was asked lately (``is_asked``), it is asked first, as for a timer that is due.
        """
        if self._in_flight.get(timer.key) is not timer:
            return []  # let go, or in another handler's hands after the ack timeout
        verdict = verdict_on(timer.arrival.envelope, now_ms, self._judge, self._overdue)
        if verdict is Verdict.HAND or (is_asked and verdict is Verdict.ASK):
            return None
        return self._follow(timer, verdict, now_ms)

    def _due(self, timer: InFlight, now_ms: int, *, is_asked: bool = False) -> list[Command]:
        """Decide about a timer whose due time has come, and about which the log may have been asked."""
        verdict = verdict_on(timer.arrival.envelope, now_ms, self._judge, self._overdue)
        return self._follow(timer, Verdict.HAND if is_asked and verdict is Verdict.ASK else verdict, now_ms)

    def _follow(self, timer: InFlight, verdict: Verdict | Parked, now_ms: int) -> list[Command]:
        match verdict:
            case Verdict.HAND:
                return [self._hand(timer, now_ms)]
            case Verdict.ASK:
                timer.stage = Stage.CLEARING
                self._unasked.append(timer)
                return []
            case Verdict.CANCELLED:
                self._counts.cancelled += 1
                return self._settle(timer)
            case Verdict.OVERDUE:
                self._counts.overdue += 1
                self._handled.add(timer.key)
                return self._settle(timer)
        timer.redirect = verdict
        return self._republish(timer, now_ms)

    def _hand(self, timer: InFlight, now_ms: int) -> Deliver:
        timer.stage = Stage.HANDED
        timer.handed_ms = now_ms
        self._counts.handed += 1
        return Deliver(timer)

    def _republish(self, timer: InFlight, now_ms: int) -> list[Command]:
        if self._republishing >= MAX_REPUBLISHING:
            self._wait_first(timer, now_ms)
            return []
        timer.stage = Stage.REPUBLISHING
        self._republishing += 1
        return [Republish(timer)]

    def _settle(self, timer: InFlight) -> list[Command]:
        """Acknowledge all copies in flight of a timer that no handler gets, and forget the timer."""
        self._forget(timer.key)
        return [*let_go(timer), *(Acknowledge(arrival) for arrival in timer.arrivals)]

    def _still_in_flight(self, timers: list[InFlight]) -> list[InFlight]:
        """Leave out timers that were handled meanwhile, by a handler that had them before the ack timeout."""
        return [timer for timer in timers if self._in_flight.get(timer.key) is timer]

    def _wait_first(self, timer: InFlight, now_ms: int) -> None:
        timer.stage = Stage.TOO_EARLY
        self._wheel.push(timer.key, now_ms + self._hold_bound_ms)

    def _forget(self, key: str) -> InFlight | None:
        timer = self._in_flight.pop(key, None)
        if timer is not None:
            self._wheel.discard(key)
            self._extras -= len(timer.extras)
            self._republishing -= timer.stage is Stage.REPUBLISHING
            if timer.failures:
                self._giving_back.forgets(timer)
        return timer
