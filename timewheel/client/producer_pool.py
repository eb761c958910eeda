"""Pool of the client's open producers, of which a dead one is replaced.

pulsar-client reconnects by itself, but not for ever and not soon: a producer can lose its way back for good, and its
back-off grows to a minute while a broker is away (broker-facts: dead-producers). So the pool watches its producers, and
opens another one beside a producer that fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import pulsar

from timewheel.client.hooks import LOST_AFTER_MS, Alarms, Hooks
from timewheel.client.process import DaemonWorkers
from timewheel.client.reopening import ATTEMPT_MS
from timewheel.client.results import Outcome, cause_of, is_producer_closed
from timewheel.core.clock import Clock, wait_until
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import ClientMisuse
from timewheel.events import ProducerCloseFailed, ProducerReplaced

ROUND_MS = 500
"""Time between two calls of `ProducerPool.inspect`. Rounds are counted in place of time: while the process or its
dispatching thread stands still, no send becomes overdue."""
SLACK_MS = 5_000
"""Time beyond the client's own send time-out after which a send ends without an outcome. The client starts its time-out
anew at each reconnect (broker-facts: sends-without-an-outcome)."""
AWAY_ROUNDS = LOST_AFTER_MS // ROUND_MS  # a producer is replaced after this many rounds without a connection
AGAIN_ROUNDS = ATTEMPT_MS // ROUND_MS
"""Rounds after which an opening is begun once more beside the earlier attempts: each of them backs off ever longer."""
THREADS = 64  # limit on openings at the same time, and on closings; each can wait for as long as a broker is away

CLOSED = "this producer is closed: nothing can be sent any more; make a new one"

K = TypeVar("K", bound=Hashable)
Opened = Future[BaseException | None]
"""Ends when an opening has ended, with its error as the result: an exception could be left without a reader."""


class Attempt(Protocol):
    """A send that borrows a producer."""

    pooled: PooledProducer[Any]  # the producer; set by the pool
    began: int  # the pool's round in which the time of the send began; set by the pool's owner


@dataclass(slots=True, eq=False)
class PooledProducer(Generic[K]):
    """Open producer of the client."""

    key: K
    producer: Any
    opens: Callable[[], Any]  # opens another producer like this one
    send: Any  # the function of the producer that hands a message over, if the pool was given `sender_of`
    sends: dict[Any, None] = field(default_factory=dict)  # sends in flight, in their order
    last_turn: int = 0  # the pool's count of borrowings at the last use: orders producers by use without a clock
    away_rounds: int = 0  # rounds in a row without a connection


@dataclass(slots=True, eq=False)
class Opening(Generic[K]):
    """Producer that is being opened, by one attempt or by several at the same time; the first one that ends decides.

    All who wait for it share its end: if each of them tried again, it would take the client's operation time-out (30 s
    by default) for every waiter.
    """

    key: K
    opens: Callable[[], Any]
    began: int  # round of its beginning
    replaces: str | None  # reason for which it replaces an open producer; None: no producer is open
    future: Opened = field(default_factory=Future)
    has_place: bool = False


class ProducerPool(Generic[K]):
    """Opens producers on demand, keeps them open, and replaces dead ones. Thread-safe.

    Its owner lends each producer to a send, gives it back when the send has an outcome, and calls `inspect` every
    `ROUND_MS`.

    If the pool is full, the least recently used producer without sends in flight is closed for a new one; while all
    have sends in flight, the opening waits.

    Args:
        max_producers: Limit on open producers; replaced ones with sends in flight come on top.
        send_timeout_ms: The client's send time-out; 0: none, and no send becomes overdue.
        idle_ms: A producer that was not used for one to two of these periods is closed.
        name_of: Returns the topic of a key, for events.
        sender_of: Returns the function of a producer that hands a message over.
    """

    def __init__(
        self,
        *,
        max_producers: int,
        send_timeout_ms: int,
        idle_ms: int,
        name_of: Callable[[K], str],
        sender_of: Callable[[Any], Any] | None = None,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self.round = 0  # count of rounds; a send notes the round in which it began
        self.replaced = 0  # count of replaced producers
        self._max_producers = max_producers
        self._max_rounds = -(-(send_timeout_ms + SLACK_MS) // ROUND_MS) if send_timeout_ms else None
        self._idle_rounds = max(idle_ms // ROUND_MS, 1)
        self._name_of = name_of
        self._sender_of = sender_of
        self._clock = clock
        self._hooks = hooks
        self._alarms = Alarms(hooks, clock)
        self._openers = DaemonWorkers(name="timewheel-producer-open", limit=THREADS)
        self._closers = DaemonWorkers(name="timewheel-producer-close", limit=THREADS)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open: dict[K, PooledProducer[K]] = {}
        self._opening: dict[K, Opening[K]] = {}
        self._discarded: list[PooledProducer[K]] = []  # with sends in flight, which a close would end as unknown
        self._closed = False
        self._closing = 0
        self._waiters = 0
        self._turn = 0
        self._idle_turn = 0

    def __len__(self) -> int:
        """Return the number of open producers."""
        return len(self._open)

    def borrow(self, key: K, send: Attempt) -> bool:
        """Lend the open producer of a key to a send, as its ``pooled``; False: none is open, call `open` and wait."""
        with self._lock:
            pooled = self._open.get(key)
            if pooled is None:
                return False
            pooled.sends[send] = None
            self._turn += 1
            pooled.last_turn = self._turn
        send.pooled = pooled
        return True

    def give_back(self, sends: Iterable[Attempt]) -> None:
        """Take back the producers of sends that have an outcome."""
        with self._lock:
            for send in sends:
                send.pooled.sends.pop(send, None)
            if self._waiters:
                self._changed.notify_all()

    def open(self, key: K, opens: Callable[[], Any]) -> Opened:
        """Open the producer of a key, on a thread of the pool, unless it is open or being opened.

        Returns:
            A future that ends when the producer can be borrowed, with the error of ``opens`` if there was one.
        """
        with self._lock:
            if self._closed:
                raise ClientMisuse(CLOSED)
            if key in self._open:
                opened: Opened = Future()
                opened.set_result(None)
                return opened
            opening = self._opening.get(key)
            if opening is not None:
                return opening.future
            opening = self._opening[key] = Opening(key, opens, self.round, None)
        self._openers.run(lambda: self._attempt(opening))
        return opening.future

    def await_opened(self, opened: Opened, send: Attempt) -> None:
        """Wait for what `open` returned, for the time that a send has left.

        Raises:
            pulsar.Timeout: The time has passed.
            Exception: The error of the opening.
        """
        if not opened.done():
            ended: SimpleQueue[object] = SimpleQueue()
            opened.add_done_callback(ended.put)
            with suppress(Empty):
                self._clock.get(ended, self.left_ms(send))
        self.check_opened(opened)

    def check_opened(self, opened: Opened) -> None:
        """Raise the error of an opening that has ended, or a time-out if it has not."""
        if not opened.done():
            time_s = (self._max_rounds or 0) * ROUND_MS / 1_000
            raise pulsar.Timeout(f"no producer could be opened within {time_s:g} s")
        if (error := opened.result()) is not None:
            raise error

    def left_ms(self, send: Attempt) -> int:
        """Return the time that a send has left until it is overdue; at least 0."""
        if self._max_rounds is None:
            return DAY_MS
        return max(self._max_rounds - (self.round - send.began), 0) * ROUND_MS

    def failed(self, pooled: PooledProducer[K], result: Any, outcome: Outcome) -> None:
        """Take note of a send that was not stored: discard or replace its producer, if it is not of this message."""
        if outcome is Outcome.DROPPED or is_producer_closed(result):
            self.discard(pooled)  # a client that takes its name can have its messages dropped
        elif outcome is Outcome.UNKNOWN:
            self.replace(pooled, cause_of(result))

    def replace(self, pooled: PooledProducer[K], reason: str) -> None:
        """Open another producer in place of a producer that may be dead, and use this one until then."""
        with self._lock:
            if self._closed or self._open.get(pooled.key) is not pooled or pooled.key in self._opening:
                return
            opening = self._opening[pooled.key] = Opening(pooled.key, pooled.opens, self.round, reason)
            opening.has_place = True
        self._openers.run(lambda: self._attempt(opening))

    def discard(self, pooled: PooledProducer[K]) -> None:
        """Forget a producer that must not send any more, and close it, once it has no sends in flight."""
        with self._lock:
            is_open = self._open.get(pooled.key) is pooled
            if is_open:
                del self._open[pooled.key]
                self._changed.notify_all()
            is_unused = is_open and not pooled.sends
            if is_open and pooled.sends:
                self._discarded.append(pooled)
        if is_unused:
            self._close(pooled)  # at once: if its topic is deleted, it must not make it anew

    def inspect(self) -> list[Any]:
        """Count a round: replace dead producers, begin slow openings once more, close idle producers.

        Returns:
            The overdue sends, which are given back: no outcome came within the send time-out and `SLACK_MS`.
        """
        with self._lock:
            self.round += 1
            watched = list(self._open.values())
        for pooled in watched:
            pooled.away_rounds = 0 if pooled.producer.is_connected() else pooled.away_rounds + 1
        away = [pooled for pooled in watched if pooled.away_rounds >= AWAY_ROUNDS]
        with self._lock:
            overdue = self._overdue()
            slow = [opening for opening in self._opening.values() if self._is_slow(opening)]
            unused = self._taken(away)
            lost = [self._name_of(pooled.key) for pooled in unused]
            if self.round % self._idle_rounds == 0:
                unused += self._taken(pooled for pooled in watched if pooled.last_turn <= self._idle_turn)
                self._idle_turn = self._turn
            unused += [pooled for pooled in self._discarded if not pooled.sends]
            self._discarded = [pooled for pooled in self._discarded if pooled.sends]
            if unused or overdue:
                self._changed.notify_all()
        for opening in slow:
            self._openers.run(lambda opening=opening: self._attempt(opening))  # type: ignore[misc]
        for pooled in away:
            self.replace(pooled, "it had no connection")  # no effect on those that were closed
        for topic in lost:
            self._was_replaced(topic, "it had no connection")
        self._close(*unused)
        self._alarms.flush()
        return overdue

    def flush(self) -> None:
        """Send pending batches now, without a wait: the client's own flush waits as long as a broker is away."""
        with self._lock:
            busy = [pooled for pooled in self._open.values() if pooled.sends]

        def flush_all() -> None:
            for pooled in busy:
                with suppress(Exception):  # a failed send makes the flush fail too, and has an outcome of its own
                    pooled.producer.flush()

        if busy:
            threading.Thread(target=flush_all, name="timewheel-producer-flush", daemon=True).start()

    def close_all(self, timeout_ms: int) -> None:
        """Close every producer; sends in flight end with an unknown outcome at once.

        If a broker does not answer, each close waits for the client's operation time-out (30 s by default). So the
        closes run in parallel, and after ``timeout_ms`` they are no longer waited for.
        """
        with self._lock:
            every = [*self._open.values(), *self._discarded]
            openings = list(self._opening.values())
            self._open.clear()
            self._discarded.clear()
            self._opening.clear()
            self._closed = True
            self._changed.notify_all()
        for opening in openings:
            _end(opening, ClientMisuse(CLOSED))
        self._close(*every)
        with self._lock:
            wait_until(self._clock, self._changed, lambda: not self._closing, timeout_ms)
        self._alarms.flush(at_end=True)

    def _overdue(self) -> list[Any]:
        if self._max_rounds is None:
            return []
        last = self.round - self._max_rounds
        overdue = []
        for pooled in (*self._open.values(), *self._discarded):
            late = [send for send in pooled.sends if send.began < last]
            for send in late:
                del pooled.sends[send]
            overdue += late
        return overdue

    def _is_slow(self, opening: Opening[K]) -> bool:
        rounds = self.round - opening.began
        return opening.has_place and rounds > 0 and rounds % AGAIN_ROUNDS == 0

    def _taken(self, producers: Iterable[PooledProducer[K]]) -> list[PooledProducer[K]]:
        """Remove those of the producers that are open and have no sends in flight; return them, to be closed."""
        idle = [pooled for pooled in producers if not pooled.sends and self._open.get(pooled.key) is pooled]
        for pooled in idle:
            del self._open[pooled.key]
        return idle

    def _attempt(self, opening: Opening[K]) -> None:
        """Try to open a producer; runs on a thread of the pool."""
        if not self._has_place(opening):
            return
        try:
            producer = opening.opens()
            pooled = PooledProducer(opening.key, producer, opening.opens, self._sender_of and self._sender_of(producer))
        except BaseException as error:  # noqa: BLE001 - those who wait for the opening get it
            with self._lock:
                if self._opening.get(opening.key) is opening:
                    del self._opening[opening.key]
                    self._changed.notify_all()
            _end(opening, error)
            return
        with self._lock:
            older = self._open.get(opening.key)
            is_used = not self._closed and (older is None or self._opening.get(opening.key) is opening)
            if is_used:
                self._open[opening.key] = pooled
                if older is not None:
                    self._discarded.append(older)
                # If this attempt is late, those who wait for a later opening have their producer now.
                opening = self._opening.pop(opening.key, opening)
                self._changed.notify_all()
        if not is_used:
            self._close(pooled)  # an earlier attempt has won, or the pool was closed
            return
        if older is not None:
            self._was_replaced(self._name_of(opening.key), opening.replaces or "")
        _end(opening, None)

    def _has_place(self, opening: Opening[K]) -> bool:
        """Wait until there is a place for a producer; False: it is no longer needed."""
        victims: list[PooledProducer[K]] = []
        with self._lock:
            while not opening.has_place and not self._closed and not opening.future.done():
                placed = sum(other.has_place and other.replaces is None for other in self._opening.values())
                if len(self._open) + placed < self._max_producers:
                    opening.has_place, opening.began = True, self.round
                elif idle := [pooled for pooled in self._open.values() if not pooled.sends]:
                    victims += self._taken([min(idle, key=lambda pooled: pooled.last_turn)])
                else:
                    self._waiters += 1
                    try:
                        self._changed.wait()
                    finally:
                        self._waiters -= 1
            is_needed = opening.has_place and not self._closed and not opening.future.done()
        self._close(*victims)
        return is_needed

    def _was_replaced(self, topic: str, reason: str) -> None:
        with self._lock:
            self.replaced += 1
        self._alarms.raised(ProducerReplaced(topic=topic, reason=reason))

    def _close(self, *producers: PooledProducer[K]) -> None:
        """Close producers, on threads of the pool."""
        with self._lock:
            self._closing += len(producers)
        for pooled in producers:
            self._closers.run(lambda pooled=pooled: self._close_one(pooled))  # type: ignore[misc]

    def _close_one(self, pooled: PooledProducer[K]) -> None:
        try:
            pooled.producer.close()
        except Exception as error:  # noqa: BLE001 - the client has errors of its own
            self._hooks.emit(ProducerCloseFailed(topic=self._name_of(pooled.key), error=str(error)))
        finally:
            with self._lock:
                self._closing -= 1
                self._changed.notify_all()


def _end(opening: Opening[Any], error: BaseException | None) -> None:
    """End an opening, unless it has ended."""
    with suppress(InvalidStateError):
        opening.future.set_result(error)
