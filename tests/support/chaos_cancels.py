"""Cancels in a chaos test: half of the timers, at random moments of their lives, many shortly before they are due."""

from __future__ import annotations

import heapq
import random
import threading
from functools import partial
from typing import Any

from tests.support.chaos_ledger import now_ms
from timewheel.core.cut_offs import Answer, Cancellation
from timewheel.core.errors import TimewheelError
from timewheel.core.plan import Plan
from timewheel.producers import DelayedProducer, Timer

__all__ = ["Cancels"]

SHARE = 0.5
CLOSE_MS = (5, 150)
"""Before the due time, for a third of them."""
JOIN_TIMEOUT_S = 60.0


class Cancels:
    """Cancels timers from a thread of its own, as they are handed in.

    Args:
        client: A `pulsar.Client`.
        plan: With ``[cancel]``.
        seed: Of all choices.

    Attributes:
        answers: What was said, by timer id.
        unknown: Timers whose cancel has no known outcome, or none yet.
    """

    def __init__(self, client: Any, plan: Plan, seed: int) -> None:
        self.answers: dict[str, Answer] = {}
        self.unknown: set[str] = set()
        self._random = random.Random(seed)
        self._producer = DelayedProducer(client, plan)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[int, str, Timer]] = []
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="chaos-cancels", daemon=True)
        self._thread.start()

    @property
    def certain(self) -> set[str]:
        """Timers whose cancel was certain."""
        return {timer_id for timer_id, answer in list(self.answers.items()) if answer is Answer.CERTAIN}

    @property
    def meant(self) -> set[str]:
        """Timers that were to be cancelled, whatever became of that."""
        return {*list(self.answers), *list(self.unknown)}

    def __call__(self, timer: Timer) -> None:
        """A timer is stored."""
        with self._lock:
            if self._ended or self._random.random() >= SHARE:
                return
            is_close = self._random.random() < 1 / 3
            at_ms = (
                timer.due_ms - self._random.randint(*CLOSE_MS)
                if is_close
                else self._random.randint(now_ms(), max(timer.due_ms, now_ms()))
            )
            heapq.heappush(self._waiting, (at_ms, timer.id, timer))
            self._changed.notify()

    def stop(self) -> None:
        """Begin no more; wait for what is under way."""
        with self._lock:
            self._ended = True
            self._changed.notify()
        self._thread.join(JOIN_TIMEOUT_S)
        self._producer.close()

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            self.unknown.add(timer.id)
            try:
                self._producer.cancel_async(timer, partial(self._told, timer))
            except TimewheelError:
                continue  # what became of it is not known; that is what it stays

    def _next(self) -> Timer | None:
        with self._lock:
            while not self._ended:
                wait_ms = self._waiting[0][0] - now_ms() if self._waiting else 1_000
                if wait_ms <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(wait_ms / 1_000)
        return None

    def _told(self, timer: Timer, _: TimewheelError | None, cancellation: Cancellation | None) -> None:
        if cancellation is not None:
            self.answers[timer.id] = cancellation.answer
            self.unknown.discard(timer.id)
