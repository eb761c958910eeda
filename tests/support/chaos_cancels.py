"""Cancellations in a chaos test: half of the timers, at random moments, many shortly before the due time."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.chaos_ledger import now_ms
from timewheel.core.cancellations import Answer, Cancellation, CancelResult
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TimewheelError
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.producers import DelayedProducer, Timer

SHARE = 0.5
CLOSE_MS = (5, 150)  # before the due time, for a third of the cancelled timers
TAKEN_BACK_MS = (500, 3_000)  # after the cancellation was stored
JOIN_TIMEOUT_S = 60.0


class Cancels:
    """Cancels timers in a background thread, as they are passed in.

    Args:
        client: A `pulsar.Client`.
        plan: With ``[cancel]``.
        seed: Seed of all choices.
        share: The part of the timers that is cancelled.
        takes_back: Whether certain cancellations are revoked after a while, which no producer of ours does: for a
            control.

    Attributes:
        answers: Answers to cancellations, by timer id.
        unknown: Timers whose cancellation has no known outcome, or none yet.
        taken_back: Timers whose cancellation was revoked.
    """

    def __init__(self, client: Any, plan: Plan, seed: int, *, share: float = SHARE, takes_back: bool = False) -> None:
        self.answers: dict[str, Answer] = {}
        self.unknown: set[str] = set()
        self.taken_back: set[str] = set()
        self._random, self._share = random.Random(seed), share
        self._producer = DelayedProducer(client, plan)
        log = partition_topic(Names(plan).cancellations, 0)
        self._log = client.create_producer(log, batching_enabled=False) if takes_back else None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="chaos-cancels", daemon=True)
        self._thread.start()

    @property
    def certain(self) -> set[str]:
        """Timers whose cancellation was certain."""
        return {timer_id for timer_id, answer in list(self.answers.items()) if answer is Answer.CERTAIN}

    @property
    def meant(self) -> set[str]:
        """Timers with a cancellation, whatever its outcome, except revoked ones."""
        return {*list(self.answers), *list(self.unknown)} - self.taken_back

    def __call__(self, timer: Timer) -> None:
        """Take a stored timer, and schedule its cancellation at random."""
        with self._lock:
            if self._ended or self._random.random() >= self._share:
                return
            is_close = self._random.random() < 1 / 3
            at_ms = (
                timer.due_ms - self._random.randint(*CLOSE_MS)
                if is_close
                else self._random.randint(now_ms(), max(timer.due_ms, now_ms()))
            )
            self._put(at_ms, partial(self._cancel, timer))

    def stop(self) -> None:
        """Start no more cancellations; wait until those in flight have ended."""
        with self._lock:
            self._ended = True
            self._changed.notify()
        self._thread.join(JOIN_TIMEOUT_S)
        self._producer.close()

    def _put(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (at_ms, next(self._numbers), action))
        self._changed.notify()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            while not self._ended:
                wait_ms = self._waiting[0][0] - now_ms() if self._waiting else 1_000
                if wait_ms <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(wait_ms / 1_000)
        return None

    def _cancel(self, timer: Timer) -> None:
        self.unknown.add(timer.id)
        try:
            self._producer.cancel_async(timer, partial(self._reported, timer))
        except TimewheelError:
            return  # the outcome stays unknown

    def _reported(self, timer: Timer, _: TimewheelError | None, cancel_result: CancelResult | None) -> None:
        if cancel_result is None:
            return
        self.answers[timer.id] = cancel_result.answer
        self.unknown.discard(timer.id)
        if self._log is not None and cancel_result.answer is Answer.CERTAIN:
            with self._lock:
                self._put(now_ms() + self._random.randint(*TAKEN_BACK_MS), partial(self._take_back, timer))

    def _take_back(self, timer: Timer) -> None:
        assert self._log is not None
        self._log.send(Cancellation("timer", timer.id, 0, timer.due_ms + DAY_MS).line().encode())
        self.taken_back.add(timer.id)
