"""Executes the engine's decisions: waits for messages and for time, hands out due timers, acknowledges."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

import pulsar

from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.positions import Position
from timewheel.core.clock import Clock
from timewheel.core.plan import WhenBlind
from timewheel.events import (
    AcknowledgeFailed,
    EnvelopeUnreadable,
    InboxNotNotified,
    TimerFarTooEarly,
    TimersWaitForCancellations,
    TimerTooNew,
)

from .counts import ConsumerCounts
from .engine import Acknowledge, Command, Deliver, Engine, Lost, NegativeAcknowledge, Release, Republish
from .message import Arrival, InFlight, Mark, Redirect
from .republisher import Republisher
from .source import Partition, Source

BURST_MS = 10.0  # part of the rate that may be taken at once: waits are whole milliseconds, and threads wake late


class Pace:
    """Spreads timers evenly (generic cell rate algorithm, ITU-T I.371)."""

    def __init__(self, per_s: float) -> None:
        self._every_ms = 1_000 / per_s
        self._next_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """Return the wait before the next timer may be taken, on a clock that never goes back; 0 for none."""
        return max(math.ceil(self._next_ms - now_ms - BURST_MS), 0)

    def take(self, now_ms: int) -> None:
        """Record that a timer is taken."""
        self._next_ms = max(self._next_ms, float(now_ms)) + self._every_ms


class DueQueue:
    """Ordered by due time, equal due times in order of arrival; a message without a due time comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, InFlight]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, timer: InFlight) -> None:
        """Add a timer."""
        heapq.heappush(self._heap, (timer.due_ms, next(self._numbers), timer))

    def first(self) -> InFlight:
        """Return the first timer without removing it; the queue must not be empty."""
        return self._heap[0][2]

    def pop(self) -> InFlight:
        """Remove and return the first timer; the queue must not be empty."""
        return heapq.heappop(self._heap)[2]

    def late_ms(self, now_ms: int) -> int:
        """Return how late the first timer is; 0 if the queue is empty, or its first message has no due time."""
        return now_ms - self._heap[0][0] if self._heap and self._heap[0][0] else 0


APART_MS = 5  # time between the starts of two questions: a busy consumer asks about many timers at once
BLIND_AFTER_MS = 2_000  # time after which a question counts as not answered
LOOKS_MS = ((20, 1), (1_000, 10))  # pauses between looks for an answer: for the first 20 ms one millisecond, and so on
LAST_LOOKS_MS = 50
ASKED_AGAIN_MS = 5
"""Age of the last answered question from which a starting handler asks anew, for handlers that begin after it."""
STALE_MS = 15
"""Age from which a handler waits for an answer before it begins: the longest time that a cancel stays unnoticed."""


class Log(Protocol):
    """The log of cancellations, as a consumer asks it; see `CancellationLog`."""

    topic: str

    def ask(self) -> int: ...
    def is_answered(self, question: int) -> bool: ...
    def await_answer(self, question: int, timeout_ms: int) -> bool: ...
    def age_ms(self) -> int: ...


class Questions:
    """Asks the log of cancellations, one question at a time: the receiving thread alone, under the engine's lock.

    No method waits or calls other parts, except `refreshed`, which any thread may call, as it may `is_fresh`.
    """

    def __init__(self, log: Log, on_log_unavailable: WhenBlind, clock: Clock) -> None:
        self._log = log
        self._on_log_unavailable = on_log_unavailable
        self._clock = clock
        self._question: int | None = None
        self._asked_ms: int | None = None

    @property
    def topic(self) -> str:
        """Topic of the log."""
        return self._log.topic

    @property
    def log_unavailable_ms(self) -> int:
        """How long a question has waited in vain; 0 without a question, or while the answer may still be in time."""
        if self._question is None or self._asked_ms is None:
            return 0
        waited_ms = self._clock.monotonic_ms() - self._asked_ms
        return waited_ms if waited_ms >= BLIND_AFTER_MS else 0

    def step(self, engine: Engine, now_ms: int) -> list[Command]:
        """Take an answer, and ask about the timers that are due by now."""
        commands: list[Command] = []
        if self._question is not None:
            if self._log.is_answered(self._question):
                self._question = None
                commands = engine.answered(now_ms)
            elif self._on_log_unavailable == "deliver" and self.log_unavailable_ms:
                # Timers that have become due since are handed out too: the time of the next answer is unknown.
                commands = engine.unanswered()
                engine.asked()
                commands += engine.unanswered()
        if engine.unasked and self._may_ask():
            engine.asked()
            self._question = self._log.ask()
            self._asked_ms = self._clock.monotonic_ms()
        return commands

    def is_fresh(self) -> bool:
        """True if a handler may begin without a new answer: cancellations newer than `STALE_MS` may be missing."""
        age_ms = self._log.age_ms()
        if ASKED_AGAIN_MS <= age_ms < STALE_MS:
            self._log.ask()
        return age_ms < STALE_MS

    def refreshed(self) -> bool:
        """Wait for the log if it was read too long ago; False if it does not answer: starting handlers must wait."""
        if self.is_fresh():
            return True
        question = self._log.ask()
        # After such a long silence no worker waits for an answer.
        is_silent = self._log.age_ms() >= BLIND_AFTER_MS or not self._log.await_answer(question, BLIND_AFTER_MS)
        return not is_silent or self._on_log_unavailable == "deliver"

    def wait_ms(self, engine: Engine) -> int | None:
        """Return the time until the next step is needed here; None for never."""
        if self._question is not None and self._asked_ms is not None:
            waited_ms = self._clock.monotonic_ms() - self._asked_ms
            return next((pause_ms for until_ms, pause_ms in LOOKS_MS if waited_ms < until_ms), LAST_LOOKS_MS)
        return self._apart_ms() if engine.unasked else None

    def _may_ask(self) -> bool:
        return self._question is None and self._apart_ms() <= 0

    def _apart_ms(self) -> int:
        if self._asked_ms is None:
            return 0
        return max(self._asked_ms + APART_MS - self._clock.monotonic_ms(), 0)


LONG_OVERDUE_MS = 1_000  # lateness from which arriving timers are sorted by due time; no timer is on time any more
MAX_SORTED = 500  # timers sorted at once: they are unacknowledged while they wait here
GATHER_MS = 20
MAX_GATHER_MS = 500  # time limit for judging the gathered timers
MAX_GATHERING_MS = 200  # time limit of a round of gathering: meanwhile no timer is handed out, nor is a stop noticed
MAX_IN_VAIN = 4
"""Messages in a row that are copies or not yet due when they are gathered: then no more overdue timers are expected."""
JUST_HANDED_MS = 5
"""Age up to which the decision about a timer still counts when its handler begins: idle workers ask no second time."""
LOOK_MS = 20
"""Pause between looks at the connections while timers are here: a connection that is lost is back after some 100 ms."""
SLICE_MS = 200  # the longest single wait: how late a stop from a signal, or a jump of the clock, may be noticed


class Receiver:
    """One thread at a time waits in `next`; any thread may report that a timer is done or failed."""

    def __init__(
        self,
        source: Source,  # source of messages; started by the caller, closed by `close`
        engine: Engine,  # decides; no other part may use it
        republisher: Republisher,  # publishes timers that arrived far too early; closed by `close`
        *,
        pace: Pace | None,  # limits the rate of timers; None hands them out as they become due
        questions: Questions | None,  # asks whether due timers were cancelled; None if timers cannot be cancelled
        sorts: bool,  # whether long overdue timers are sorted by due time
        redelivery_delay_ms: int,  # time after which the client has a negatively acknowledged message redelivered
        clock: Clock,  # source of time
        hooks: Hooks,  # receive alarms
        # called for each timer that was to be tried again or parked, before it is acknowledged, with whether the new
        # message is stored. None if no caller needs it.
        on_settled: Callable[[InFlight, bool], None] | None = None,
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
        """Alarms about a state, not about messages: suppressed alarms are useless once the state is over."""
        self._state = threading.Lock()  # guards the engine
        self._engine = engine
        self._never = threading.Condition(self._state)  # to let time pass while no message may be received
        self._receiving = threading.Lock()  # one thread at a time waits in the client; guards the due timers
        self._due = DueQueue()
        self._is_catching_up = False
        self._gathers_until_ms = 0
        self._look_again_ms = 0
        self._woken_ms = -1  # of the monotonic clock
        self._closed = False

    @property
    def counts(self) -> ConsumerCounts:
        """The counters so far."""
        with self._state:
            counts = self._engine.counts
        counts.replaced = self._source.replaced
        return counts

    def next(self, slice_ms: int, left_ms: int | None = None) -> InFlight | None:
        """Return the next due timer; None if there was none within the slice, or after `close`.

        ``left_ms`` is the time after which the caller has something else to do; None: it only looks around.
        """
        with self._receiving:
            if self._closed:
                return None
            now_ms = self._clock.monotonic_ms()
            deadline_ms, until_ms = now_ms + slice_ms, None if left_ms is None else now_ms + left_ms
            has_tried = False
            while True:
                wait_ms: int | None = deadline_ms - now_ms
                if not self._due or now_ms != self._woken_ms:
                    # Nothing changes with time within a millisecond, in which many timers may be handed out.
                    self._woken_ms = now_ms
                    wait_ms = self._wake(deadline_ms, until_ms)
                    self._catch_up()
                self._drop_overdue()
                if self._due and self._others_may_come_first():
                    if wait_ms is None:
                        return None
                    with self._state:
                        self._clock.wait(self._never, min(wait_ms, GATHER_MS))
                    now_ms = self._clock.monotonic_ms()
                    continue
                if self._due and (self._pace is None or not self._waits_for_pace(self._pace, wait_ms)):
                    return self._due.pop()
                if wait_ms is None or (has_tried and now_ms >= deadline_ms):
                    return None
                if not self._due and self._receive_one(wait_ms):
                    self._catch_up()
                has_tried = True
                now_ms = self._clock.monotonic_ms()

    def _catch_up(self) -> None:
        """After an outage, receive more and hand out the earliest due time first: brokers deliver in storage order.

        Not where the client has an ack timeout: it would run for the timers that wait here.
        """
        if not self._sorts or self._due.late_ms(self._clock.now_ms()) < LONG_OVERDUE_MS:
            self._is_catching_up = False
            return
        # At first messages under way may arrive; from then on only messages already received are taken.
        wait_ms = 0 if self._is_catching_up else GATHER_MS
        if not self._is_catching_up:
            self._is_catching_up = True
            self._gathers_until_ms = self._clock.monotonic_ms() + MAX_GATHER_MS
        until_ms = self._clock.monotonic_ms() + MAX_GATHERING_MS
        in_vain = 0
        while len(self._due) < MAX_SORTED and in_vain < MAX_IN_VAIN and self._clock.monotonic_ms() < until_ms:
            before = self._gathered()
            if not self._receive_one(wait_ms):
                break
            in_vain = 0 if self._gathered() > before else in_vain + 1

    def _gathered(self) -> int:
        """Return the number of due timers here, judged or not: only the receiving thread adds some, or takes them."""
        return len(self._due) + self._engine.clearing

    def _others_may_come_first(self) -> bool:
        """True if some gathered timers still wait for the log of cancellations; at the beginning only."""
        if not self._is_catching_up or self._clock.monotonic_ms() >= self._gathers_until_ms:
            return False
        with self._state:
            return self._engine.clearing > 0

    def _drop_overdue(self) -> None:
        """Drop timers that became overdue while they waited for the pace, or for timers with earlier due times."""
        while self._due and self._engine.has_overdue:
            with self._state:
                commands = self._engine.still_due(self._due.first(), self._clock.now_ms(), is_asked=True)
            if commands is None:
                return
            self._execute_quietly(commands)
            self._due.pop()

    def _waits_for_pace(self, pace: Pace, max_ms: int | None) -> bool:
        """Return whether a due timer may not be handed out yet; waits a while for that, receiving no messages."""
        now_ms = self._clock.monotonic_ms()
        wait_ms = pace.wait_ms(now_ms)
        if not wait_ms:
            pace.take(now_ms)
            return False
        if max_ms:
            with self._state:
                self._clock.wait(self._never, min(wait_ms, max_ms))
        return True

    def is_known(self, timer: InFlight) -> bool:
        """True if `begins` need not wait: timers cannot be cancelled, or the log was asked a moment ago."""
        return self._questions is None or self._is_just_handed(timer) or self._questions.is_fresh()

    def begins(self, timer: InFlight, *, is_known: bool = False) -> bool:
        """Return whether a handler may begin with a timer that was handed out; if not, the timer is already dealt with.

        Called at the last moment: while the timer waited for its turn, it may have been cancelled, or have become
        overdue, or its connection may have been lost.
        """
        is_asked = True
        if self._engine.judges and not self._is_just_handed(timer):
            is_asked = is_known or self._questions is None or self._questions.refreshed()
        now_ms = self._clock.now_ms()
        with self._state:
            commands = self._let_go(timer.arrival.origin)
            decided = self._engine.begins(timer, now_ms, is_asked=is_asked)
        self._execute_quietly(commands + (decided or []))
        return decided is None

    def _is_just_handed(self, timer: InFlight) -> bool:
        return 0 <= self._clock.now_ms() - timer.handed_ms < JUST_HANDED_MS

    def look(self) -> None:
        """Look at the connections in place of `next`, which cannot be called: a timer waits for room."""
        with self._receiving:
            self._execute_quietly(self._look())

    def _look(self) -> list[Command]:
        """Look at all connections, and let go of timers that the broker gives away."""
        commands: list[Command] = []
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._look_again_ms:
            return commands
        self._look_again_ms = now_ms + LOOK_MS
        for partition in self._source.partitions:
            with self._state:
                commands += self._let_go(partition)
            if partition.inspect():
                self._source.replace(partition)
        return commands

    def _let_go(self, partition: Partition) -> list[Command]:
        # Within one step of the engine: a message that comes after the loss must not be let go with those before.
        return self._engine.disconnected(partition) if partition.is_lost() else []

    @staticmethod
    def _outdated(arrival: Arrival) -> Command | None:
        """Return the command for a message that came before a loss of its connection; None if it may wait here.

        It is not in the engine yet, so it was not let go with those that came before it.
        """
        session = arrival.origin.session_now()
        if session is None or arrival.session is None:
            return Lost(arrival)
        # It may have come on the new connection, just after the loss was seen: then only a request brings it again.
        return None if arrival.session == session else NegativeAcknowledge(arrival)

    def done(self, timer: InFlight, *, quietly: bool = False) -> None:
        """Acknowledge a timer that is handled."""
        with self._state:
            commands = self._engine.done(timer)
        (self._execute_quietly if quietly else self._execute)(commands)

    def failed(self, timer: InFlight, *, quietly: bool = False) -> None:
        """Have a timer redelivered; arguments and errors as in `done`."""
        with self._state:
            commands = self._engine.failed(timer)
        (self._execute_quietly if quietly else self._execute)(commands)

    def postponed(self, timer: InFlight, after_ms: int) -> None:
        """Keep a timer in flight and hand it out again later; a failing acknowledgement is reported to the hooks."""
        with self._state:
            commands = self._engine.postponed(timer, self._clock.now_ms(), after_ms)
        self._execute_quietly(commands)

    def redirected(self, timer: InFlight, redirect: Redirect) -> None:
        """Publish a timer onward, to be tried again or parked, and then acknowledge it."""
        with self._state:
            commands = self._engine.redirected(timer, redirect, self._clock.now_ms())
        self._execute_quietly(commands)

    def skipped(self, timer: InFlight) -> None:
        """Acknowledge a timer that no handler completed; a failing acknowledgement is reported to the hooks."""
        with self._state:
            commands = self._engine.done(timer, is_skipped=True)
        self._execute_quietly(commands)

    def at_position(self, position: Position) -> InFlight | None:
        """Return the timer in flight whose message has this position, if any."""
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

    def _wake(self, deadline_ms: int, until_ms: int | None) -> int | None:
        """Let the engine act on the time; return how long it may wait now, None if the deadline has passed."""
        # Wake-up times follow the wall clock, waits are measured by the monotonic clock: a jump of the wall clock is
        # noticed after a slice.
        commands = self._settled() + self._look()
        now_ms = self._clock.now_ms()
        with self._state:
            commands += self._engine.tick(now_ms)
            wake_ms = self._engine.next_wake_ms()
            waits_ms = [] if wake_ms is None else [max(wake_ms - now_ms, 1)]
            holds = bool(self._engine.in_flight)
            if self._questions is not None:
                commands += self._questions.step(self._engine, now_ms)
                look_ms = self._questions.wait_ms(self._engine)
                waits_ms += [] if look_ms is None else [max(look_ms, 1)]
        self._execute_quietly(commands)
        self._report_if_log_unavailable()
        self._alarms.flush()
        monotonic_ms = self._clock.monotonic_ms()
        left_ms = deadline_ms - monotonic_ms
        if left_ms < 0:
            return None
        waits_ms += [] if until_ms is None else [max(until_ms - monotonic_ms, 0)]
        return self._clock.idle_ms(min(waits_ms, default=None), min(left_ms, LOOK_MS) if holds else left_ms)

    def _report_if_log_unavailable(self) -> None:
        """Emit the alarm without the engine's lock: a hook may read the counters."""
        if self._questions is not None and (log_unavailable_ms := self._questions.log_unavailable_ms):
            self._waiting_alarms.raised(
                TimersWaitForCancellations(topic=self._questions.topic, waited_ms=log_unavailable_ms)
            )

    def _receive_one(self, wait_ms: int) -> bool:
        """Take a message, if it arrives in time and there is room; return whether a message was taken."""
        if self._engine.full:
            with self._state:
                # No message may be taken (broker-facts: bounded-local-hold): the held timers are due soon, or are being
                # published again.
                self._clock.wait(self._never, wait_ms)
                return False
        arrival = self._source.receive(wait_ms)
        if arrival is None:
            return False
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        with self._state:
            commands = self._let_go(arrival.origin)
            if (outdated := self._outdated(arrival)) is None:
                commands += self._engine.received(arrival, now_ms, monotonic_ms)
            else:
                commands.append(outdated)
        far = outdated is None and self._engine.far_too_early(arrival, now_ms)
        if far or arrival.envelope_error is not None:
            self._raise_alarm(arrival, now_ms)
        self._execute_quietly(commands)
        return True

    def _settled(self) -> list[Command]:
        """Return the commands that follow from confirmed or failed re-publications."""
        commands: list[Command] = []
        for timer, published in self._republisher.outcomes():
            now_ms = self._clock.now_ms()
            with self._state:
                commands += (
                    self._engine.published(timer, now_ms) if published else self._engine.not_published(timer, now_ms)
                )
        return commands

    def _settle(self, timer: InFlight, is_stored: bool) -> None:
        """Settle a timer that is tried again or parked, on the republisher's thread; this never hands out a timer."""
        if is_stored:
            self._report_settled(timer, is_stored=True)
        now_ms = self._clock.now_ms()
        with self._state:
            commands = self._engine.published(timer, now_ms) if is_stored else self._engine.not_published(timer, now_ms)
        self._execute_quietly(commands)

    def _report_settled(self, timer: InFlight, *, is_stored: bool) -> None:
        """Call ``on_settled``; its exception must neither keep the timer from its end nor stop the calling thread."""
        if self._on_settled is None:
            return
        try:
            self._on_settled(timer, is_stored)
        except Exception as error:  # noqa: BLE001 - a store may be the user's own
            envelope = timer.arrival.envelope
            timer_id = None if envelope is None else envelope.timer_id
            self._hooks.emit(InboxNotNotified(timer_id=timer_id, error=repr(error)))

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
            self._execute_one(command)

    def _execute_one(self, command: Command) -> None:
        # No `match`: patterns of classes cost more than most commands.
        if isinstance(command, Deliver):
            self._due.push(command.timer)  # only the receiving thread's commands hand out
        elif isinstance(command, Acknowledge):
            arrival = command.arrival
            arrival.origin.answered(arrival.position, self._clock.monotonic_ms())
            arrival.origin.acknowledge(arrival.message)
        elif isinstance(command, NegativeAcknowledge):
            arrival = command.arrival
            arrival.origin.answered(arrival.position, self._clock.monotonic_ms() + self._redelivery_delay_ms)
            arrival.origin.consumer.negative_acknowledge(arrival.message)
        elif isinstance(command, Lost):
            command.arrival.origin.answered(command.arrival.position, self._clock.monotonic_ms())
        elif isinstance(command, Release):
            self._report_settled(command.timer, is_stored=False)
        elif isinstance(command, Republish):
            self._republisher.submit(command.timer)

    def _execute_quietly(self, commands: Iterable[Command]) -> None:
        """Execute commands without a caller to raise to: a failing acknowledgement only means a redelivery."""
        for command in commands:
            try:
                self._execute_one(command)
            except pulsar.PulsarException as error:
                self._hooks.emit(AcknowledgeFailed(error=str(error)))
