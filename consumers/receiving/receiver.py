"""Executes the engine's decisions: waits for messages and for time, hands out what is due, acknowledges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pulsar

from timewheel.consumers.commands import Acknowledge, Command, Hand, LetGo, NegativeAcknowledge, Republish
from timewheel.consumers.counts import ConsumerCounts
from timewheel.consumers.engine import Engine
from timewheel.consumers.in_hand import Arrival, InHand, Mark
from timewheel.consumers.onward import Onward
from timewheel.consumers.pace import Pace
from timewheel.consumers.receiving.due_queue import DueQueue
from timewheel.consumers.receiving.questions import Questions
from timewheel.consumers.receiving.republisher import Republisher
from timewheel.consumers.receiving.source import Source
from timewheel.core.clock import Clock
from timewheel.events import (
    AcknowledgeFailed,
    EnvelopeUnreadable,
    InboxNotTold,
    TimerFarTooEarly,
    TimersWaitForCutOffs,
    TimerTooNew,
)
from timewheel.wire.alarms import Alarms
from timewheel.wire.hooks import Hooks
from timewheel.wire.positions import Position

__all__ = ["SLICE_MS", "Receiver"]

LONG_OVERDUE_MS = 1_000
"""What comes later than this is put in order with what else has come; nothing is on time any more."""
MOST_SORTED = 500
"""So many are put in order at once: they are unacknowledged while they wait here."""
GATHER_MS = 20
MOST_GATHER_MS = 500
"""For what was gathered to be judged."""
MOST_GATHERING_MS = 200
"""For one round of gathering: meanwhile nothing else is handed out, nor is a stop looked at."""
MOST_IN_VAIN = 4
"""Messages in a row that are not due when they are gathered, or are copies: what is overdue is at its end."""
JUST_HANDED_MS = 5
"""For so long a decision about a timer counts when its handler begins: where workers are idle, no more is asked."""
SLICE_MS = 200
"""The longest single wait: what a stop from a signal, or a jump of the clock, may have to wait for."""


class Receiver:
    """One thread at a time waits in `next`; any may say that a timer is done or failed.

    Args:
        source: Where messages come from; started by the caller, closed by `close`.
        engine: Decides; nobody else may touch it.
        republisher: For what came far too early; closed by `close`.
        pace: At which timers are handed out; None: as they become due.
        questions: Asks whether what is due was cancelled; None: nothing can be.
        sorts: Whether long overdue timers are put in order of their due times.
        redelivery_delay_ms: After which the client has a negatively acknowledged message delivered again.
        clock: Time.
        hooks: Told of alarms.
        on_settled: Told of each timer that was to be tried again or parked, and whether that is stored; before it is
            acknowledged. None: nobody needs to know.
    """

    def __init__(
        self,
        source: Source,
        engine: Engine,
        republisher: Republisher,
        *,
        pace: Pace | None,
        questions: Questions | None,
        sorts: bool,
        redelivery_delay_ms: int,
        clock: Clock,
        hooks: Hooks,
        on_settled: Callable[[InHand, bool], None] | None = None,
    ) -> None:
        self._source = source
        self._republisher = republisher
        republisher.settles = self._settle
        self._pace = pace
        self._questions = questions
        self._sorts = sorts
        self._redelivery_delay_ms = redelivery_delay_ms
        self._clock = clock
        self._hooks = hooks
        self._on_settled = on_settled
        self._alarms = Alarms(hooks, clock)
        self._waiting_alarms = Alarms(hooks, clock)
        """Of a state, not of messages: what was held back of them is of no use once it is over."""
        self._state = threading.Lock()  # guards the engine
        self._engine = engine
        self._never = threading.Condition(self._state)  # to let time pass while nothing may be received
        self._receiving = threading.Lock()  # one thread waits in the client at a time; guards what is due
        self._due = DueQueue()
        self._is_catching_up = False
        self._gathers_until_ms = 0
        self._closed = False

    @property
    def counts(self) -> ConsumerCounts:
        """What was seen and done so far."""
        with self._state:
            return self._engine.counts

    def next(self, timeout_ms: int) -> InHand | None:
        """The next timer that is due; None if there was none in time, or after `close`.

        Args:
            timeout_ms: At most `SLICE_MS`, so that the caller can look whether it should stop.
        """
        with self._receiving:
            if self._closed:
                return None
            deadline_ms = self._clock.monotonic_ms() + timeout_ms
            while True:
                wait_ms = self._wake(deadline_ms)
                self._catch_up()
                self._drop_overdue()
                if self._due and self._others_may_come_first():
                    if wait_ms is None:
                        return None
                    with self._state:
                        self._clock.wait(self._never, min(wait_ms, GATHER_MS))
                    continue
                if self._due and (self._pace is None or not self._waits_for_pace(self._pace, wait_ms)):
                    return self._due.pop()
                if wait_ms is None:
                    return None
                if not self._due:
                    self._receive_one(wait_ms)

    def _catch_up(self) -> None:
        """After an outage a broker delivers as it has stored: look further, and hand out what was due first.

        Not where the client has things delivered again after a while: what waits here might be meant.
        """
        if not self._sorts or self._due.late_ms(self._clock.now_ms()) < LONG_OVERDUE_MS:
            self._is_catching_up = False
            return
        # At first what is on its way may arrive; from then on only what is there is taken.
        wait_ms = 0 if self._is_catching_up else GATHER_MS
        if not self._is_catching_up:
            self._is_catching_up = True
            self._gathers_until_ms = self._clock.monotonic_ms() + MOST_GATHER_MS
        until_ms = self._clock.monotonic_ms() + MOST_GATHERING_MS
        in_vain = 0
        while len(self._due) < MOST_SORTED and in_vain < MOST_IN_VAIN and self._clock.monotonic_ms() < until_ms:
            before = self._gathered()
            if not self._receive_one(wait_ms):
                break
            in_vain = 0 if self._gathered() > before else in_vain + 1

    def _gathered(self) -> int:
        """Timers that are due here, judged or not."""
        with self._state:
            return len(self._due) + self._engine.clearing

    def _others_may_come_first(self) -> bool:
        """Whether some of what was gathered still waits for the log of cut-offs; at the beginning only."""
        if not self._is_catching_up or self._clock.monotonic_ms() >= self._gathers_until_ms:
            return False
        with self._state:
            return self._engine.clearing > 0

    def _drop_overdue(self) -> None:
        """What had to wait for its turn for too long: for the pace, or for others that were due before it."""
        while self._due and self._engine.has_overdue and not self._begins(self._due.first(), is_asked=True):
            self._due.pop()

    def _waits_for_pace(self, pace: Pace, most_ms: int | None) -> bool:
        """Whether what is due may not be handed out yet; waits for that a while, and meanwhile nothing is received."""
        now_ms = self._clock.monotonic_ms()
        wait_ms = pace.wait_ms(now_ms)
        if not wait_ms:
            pace.take(now_ms)
            return False
        if most_ms:
            with self._state:
                self._clock.wait(self._never, min(wait_ms, most_ms))
        return True

    def is_known(self, timer: InHand) -> bool:
        """Whether `begins` need not wait: nothing can be cancelled, or it was asked a moment ago."""
        return self._questions is None or self._is_just_handed(timer) or self._questions.is_fresh()

    def begins(self, timer: InHand, *, is_known: bool = False) -> bool:
        """Whether a handler may begin with a timer that was handed out; if not, all that follows is done.

        For whoever takes it, at the last moment: while it waited for its turn, it may have been cancelled, or have
        become overdue.

        Args:
            timer: As it was handed out.
            is_known: What `is_known` has just said; if not, this may wait for the log of cut-offs.
        """
        if not self._engine.judges or self._is_just_handed(timer):
            return True
        is_asked = is_known or self._questions is None or self._questions.refreshed()
        return self._begins(timer, is_asked=is_asked)

    def _is_just_handed(self, timer: InHand) -> bool:
        return 0 <= self._clock.now_ms() - timer.handed_ms < JUST_HANDED_MS

    def _begins(self, timer: InHand, *, is_asked: bool) -> bool:
        now_ms = self._clock.now_ms()
        with self._state:
            commands = self._engine.begins(timer, now_ms, is_asked=is_asked)
        self._execute_quietly(commands or ())
        return commands is None

    def done(self, timer: InHand, *, quietly: bool = False) -> None:
        """A timer is handled.

        Args:
            timer: As it was handed out.
            quietly: Tell a failing acknowledgement to the hooks, not to the caller.

        Raises:
            pulsar.PulsarException: The client could not take the acknowledgement. The timer is remembered all the same.
        """
        with self._state:
            commands = self._engine.done(timer)
        (self._execute_quietly if quietly else self._execute)(commands)

    def failed(self, timer: InHand, *, quietly: bool = False) -> None:
        """A timer is to be delivered again; as `done`."""
        with self._state:
            commands = self._engine.failed(timer)
        (self._execute_quietly if quietly else self._execute)(commands)

    def postponed(self, timer: InHand, after_ms: int) -> None:
        """A timer stays in hand, and is handed out again after a while; an acknowledgement that fails is told."""
        with self._state:
            commands = self._engine.postponed(timer, self._clock.now_ms(), after_ms)
        self._execute_quietly(commands)

    def moved_on(self, timer: InHand, onward: Onward) -> None:
        """A timer is published as something else, to be tried again or parked, and then acknowledged."""
        with self._state:
            commands = self._engine.moved_on(timer, onward, self._clock.now_ms())
        self._execute_quietly(commands)

    def skipped(self, timer: InHand) -> None:
        """A timer is done with, though no handler had it to its end; an acknowledgement that fails is told."""
        with self._state:
            commands = self._engine.done(timer, is_skipped=True)
        self._execute_quietly(commands)

    def at_position(self, position: Position) -> InHand | None:
        """The timer in hand whose message is stored there."""
        with self._state:
            return self._engine.at_position(position)

    def close(self) -> None:
        """Close source and republisher; waits a slice for a thread that is in the client."""
        self._closed = True
        self._republisher.close()
        with self._receiving:
            self._execute_quietly(self._settled())
            self._source.close()
        self._alarms.flush(at_end=True)

    def _wake(self, deadline_ms: int) -> int | None:
        """Let the engine act on the time; returns how long it may wait now, None if the deadline has passed."""
        # What is waited for is told by the wall clock, how long is measured by the monotonic one: a jump of the wall
        # clock is noticed after a slice.
        commands = self._settled()
        now_ms = self._clock.now_ms()
        with self._state:
            commands += self._engine.tick(now_ms)
            wake_ms = self._engine.next_wake_ms()
            waits_ms = [] if wake_ms is None else [max(wake_ms - now_ms, 1)]
            if self._questions is not None:
                commands += self._questions.step(self._engine, now_ms)
                look_ms = self._questions.wait_ms(self._engine)
                waits_ms += [] if look_ms is None else [max(look_ms, 1)]
        self._execute_quietly(commands)
        self._tell_if_blind()
        self._alarms.flush()
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if left_ms < 0:
            return None
        return min([left_ms, *waits_ms])

    def _tell_if_blind(self) -> None:
        """Without the engine's lock: a hook may ask for counts."""
        if self._questions is not None and (blind_ms := self._questions.blind_ms):
            self._waiting_alarms.raised(TimersWaitForCutOffs(topic=self._questions.topic, waited_ms=blind_ms))

    def _receive_one(self, wait_ms: int) -> bool:
        """Take a message, if one comes in time and there is room; whether one was taken."""
        with self._state:
            if self._engine.full:
                # Nothing more may be taken (broker-facts: bounded-local-hold): what is held is due soon, or is being
                # published again.
                self._clock.wait(self._never, wait_ms)
                return False
        arrival = self._source.receive(wait_ms)
        if arrival is None:
            return False
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        with self._state:
            commands = self._engine.received(arrival, now_ms, monotonic_ms)
            far = self._engine.far_too_early(arrival, now_ms)
        if far or arrival.envelope_error is not None:
            self._raise_alarm(arrival, now_ms)
        self._execute_quietly(commands)
        return True

    def _settled(self) -> list[Command]:
        """What follows from re-publications that were answered."""
        commands: list[Command] = []
        for timer, published in self._republisher.outcomes():
            now_ms = self._clock.now_ms()
            with self._state:
                commands += (
                    self._engine.published(timer, now_ms) if published else self._engine.not_published(timer, now_ms)
                )
        return commands

    def _settle(self, timer: InHand, is_stored: bool) -> None:
        """On the republisher's thread, of a timer that is tried again or parked: it is never handed out by this."""
        if is_stored:
            self._tell_settled(timer, is_stored=True)
        now_ms = self._clock.now_ms()
        with self._state:
            commands = self._engine.published(timer, now_ms) if is_stored else self._engine.not_published(timer, now_ms)
        self._execute_quietly(commands)

    def _tell_settled(self, timer: InHand, *, is_stored: bool) -> None:
        """What it raises must not keep the timer from its end, nor the thread that tells it from its work."""
        if self._on_settled is None:
            return
        try:
            self._on_settled(timer, is_stored)
        except Exception as error:  # noqa: BLE001 - a store may be the user's own
            envelope = timer.arrival.envelope
            timer_id = None if envelope is None else envelope.timer_id
            self._hooks.emit(InboxNotTold(timer_id=timer_id, error=repr(error)))

    def _raise_alarm(self, arrival: Arrival, now_ms: int) -> None:
        topic = str(arrival.message.topic_name())
        if arrival.mark is Mark.TOO_NEW:
            self._alarms.raised(TimerTooNew(topic=topic, error=arrival.envelope_error))
        elif arrival.envelope is None:
            self._alarms.raised(EnvelopeUnreadable(topic=topic, error=arrival.envelope_error))
        else:
            self._alarms.raised(
                TimerFarTooEarly(
                    topic=topic,
                    early_ms=arrival.envelope.due_ms - now_ms,
                    remedy="is delayed delivery enabled on the topic, and is this machine's clock right?",
                )
            )

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Hand(timer):
                    self._due.push(timer)  # only the receiving thread's commands hand out
                case Acknowledge(arrival):
                    origin = arrival.origin
                    origin.answered(arrival.position, self._clock.monotonic_ms())
                    origin.consumer.acknowledge(arrival.message)
                case NegativeAcknowledge(arrival):
                    origin = arrival.origin
                    origin.answered(arrival.position, self._clock.monotonic_ms() + self._redelivery_delay_ms)
                    origin.consumer.negative_acknowledge(arrival.message)
                case LetGo(timer):
                    self._tell_settled(timer, is_stored=False)
                case Republish(timer):
                    self._republisher.submit(timer)

    def _execute_quietly(self, commands: Iterable[Command]) -> None:
        """Where no caller asked for it: an acknowledgement that fails only means that the message comes again."""
        for command in commands:
            try:
                self._execute((command,))
            except pulsar.PulsarException as error:
                self._hooks.emit(AcknowledgeFailed(error=str(error)))
