"""Timing of questions to the log of cancellations, and effects of its silence; one question at a time."""

from __future__ import annotations

from typing import Protocol

from timewheel.consumers.commands import Command
from timewheel.consumers.engine import Engine
from timewheel.core.clock import Clock
from timewheel.core.plan import WhenBlind

APART_MS = 5
"""Time between the starts of two questions: a busy consumer asks about many timers at once."""
BLIND_AFTER_MS = 2_000
"""Time after which a question counts as not answered."""
LOOKS_MS = ((20, 1), (1_000, 10))
"""Pauses between looks for an answer: for the first 20 ms one millisecond, and so on."""
LAST_LOOKS_MS = 50
ASKED_AGAIN_MS = 5
"""Age of the last answered question from which a starting handler asks anew, for handlers that begin after it."""
STALE_MS = 15
"""Age from which a handler waits for an answer before it begins: the longest time that a cancel stays unnoticed."""


class Log(Protocol):
    """The log of cancellations, as a consumer asks it."""

    topic: str

    def ask(self) -> int:
        """Begin a question, and return its number."""
        ...

    def is_answered(self, question: int) -> bool:
        """True if the question is answered."""
        ...

    def await_answer(self, question: int, timeout_ms: int) -> bool:
        """Wait for an answer; return False if the time passed first."""
        ...

    def age_ms(self) -> int:
        """Return how long ago the newest answered question was asked."""
        ...


class Questions:
    """Asks questions for the receiving thread alone, under the lock that guards the engine.

    No method waits or calls other parts, except `refreshed`, which any thread may call, as it may `is_fresh`.

    Args:
        log: The log of cancellations.
        on_log_unavailable: Decides about timers without an answer.
        clock: Measures how long a question has waited.
    """

    __slots__ = ("_asked_ms", "_clock", "_log", "_on_log_unavailable", "_question")

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
        """Take an answer, and ask about the timers that are due by now.

        Args:
            engine: Holds the due timers.
            now_ms: UTC milliseconds.
        """
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
