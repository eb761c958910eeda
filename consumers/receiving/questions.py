"""When the log of cut-offs is asked, and what follows from its silence; one question at a time for all that is due."""

from __future__ import annotations

from typing import Protocol

from timewheel.consumers.commands import Command
from timewheel.consumers.engine import Engine
from timewheel.core.clock import Clock
from timewheel.core.life_cycle import WhenBlind

__all__ = ["BLIND_AFTER_MS", "Log", "Questions"]

APART_MS = 5
"""Between two questions, counted from when they are asked: a busy consumer asks for many timers at once."""
BLIND_AFTER_MS = 2_000
"""After that a question counts as not answered."""
LOOKS_MS = ((20, 1), (1_000, 10))
"""How often it is looked whether there is an answer: for the first 20 ms each millisecond, and so on."""
LAST_LOOKS_MS = 50
ASKED_AGAIN_MS = 5
"""A handler that begins later than this after the log was asked has it asked anew, for those that begin after it."""
STALE_MS = 15
"""After this a handler waits for the answer before it begins: so old is a cancel at most that it does not know of."""


class Log(Protocol):
    """What is asked."""

    topic: str

    def ask(self) -> int:
        """Begin a question; its number."""
        ...

    def is_answered(self, question: int) -> bool:
        """Whether there is an answer."""
        ...

    def await_answer(self, question: int, timeout_ms: int) -> bool:
        """Wait for an answer; False if the time passed first."""
        ...

    def age_ms(self) -> int:
        """How long ago the newest question was asked that has an answer."""
        ...


class Questions:
    """For the receiving thread alone, and under the lock that guards the engine: nothing here waits or tells anybody,
    but for `refreshed`, which is for any thread, as is `is_fresh`.

    Args:
        log: Is asked.
        when_blind: What becomes of timers when there is no answer.
        clock: Tells how long a question has waited.
    """

    __slots__ = ("_asked_ms", "_clock", "_log", "_question", "_when_blind")

    def __init__(self, log: Log, when_blind: WhenBlind, clock: Clock) -> None:
        self._log = log
        self._when_blind = when_blind
        self._clock = clock
        self._question: int | None = None
        self._asked_ms: int | None = None

    @property
    def topic(self) -> str:
        """Of the log."""
        return self._log.topic

    @property
    def blind_ms(self) -> int:
        """How long a question has waited in vain; 0: there is none, or it may still be answered in time."""
        if self._question is None or self._asked_ms is None:
            return 0
        waited_ms = self._clock.monotonic_ms() - self._asked_ms
        return waited_ms if waited_ms >= BLIND_AFTER_MS else 0

    def step(self, engine: Engine, now_ms: int) -> list[Command]:
        """Take an answer, and ask for what is due by now.

        Args:
            engine: Has what is due.
            now_ms: UTC milliseconds.
        """
        commands: list[Command] = []
        if self._question is not None:
            if self._log.is_answered(self._question):
                self._question = None
                commands = engine.answered(now_ms)
            elif self._when_blind == "deliver" and self.blind_ms:
                # What has become due since goes with them: nobody knows when there will be an answer.
                commands = engine.unanswered()
                engine.asked()
                commands += engine.unanswered()
        if engine.unasked and self._may_ask():
            engine.asked()
            self._question = self._log.ask()
            self._asked_ms = self._clock.monotonic_ms()
        return commands

    def is_fresh(self) -> bool:
        """Whether a handler may begin by what is known: what was confirmed less than `STALE_MS` ago may be missing."""
        age_ms = self._log.age_ms()
        if ASKED_AGAIN_MS <= age_ms < STALE_MS:
            self._log.ask()
        return age_ms < STALE_MS

    def refreshed(self) -> bool:
        """Wait for the log if it was read too long ago; False: it does not answer, and what would begin is held."""
        if self.is_fresh():
            return True
        question = self._log.ask()
        # Of one that has been silent for so long no worker waits for an answer.
        is_silent = self._log.age_ms() >= BLIND_AFTER_MS or not self._log.await_answer(question, BLIND_AFTER_MS)
        return not is_silent or self._when_blind == "deliver"

    def wait_ms(self, engine: Engine) -> int | None:
        """For how long at most nothing has to be done here; None: for ever."""
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
