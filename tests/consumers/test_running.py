"""Handling on worker threads: an error beside the handler ends the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.consumers.support import NOW_MS
from tests.consumers.test_async_running import timer_of
from timewheel.client.hooks import Hooks
from timewheel.consumers.consumer import Run
from timewheel.consumers.message import DelayedMessage, InFlight
from timewheel.core import SystemClock

DEADLINE_S = 20


class Ends:
    """In place of `Outcomes`: fails at one of its methods, and keeps the timers that were given back."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.given_back_timers: list[InFlight] = []

    def returned(self, *_: object) -> None:
        self._fail_at("returned")

    def raised(self, *_: object) -> None:
        self._fail_at("raised")

    def taken(self, timer: InFlight) -> DelayedMessage:
        self._fail_at("taken")
        return DelayedMessage(timer, NOW_MS)

    def given_back(self, timer: InFlight) -> None:
        self.given_back_timers.append(timer)

    def _fail_at(self, method: str) -> None:
        if method == self.failing:
            raise AttributeError(method)


class Receiver:
    """Hands out one timer, then nothing."""

    def __init__(self, timer: InFlight, stopping: threading.Event) -> None:
        self.waiting = [timer]
        self.stopping = stopping

    def next(self, _: int) -> InFlight | None:
        if self.waiting:
            return self.waiting.pop()
        assert self.stopping.wait(DEADLINE_S), "the worker ended, and the run goes on"
        return None


@pytest.mark.parametrize("failing", ["taken", "raised", "returned"])
def test_an_error_beside_the_handler_ends_the_run_which_raises_it(failing: str) -> None:
    """Else the worker alone would end, and no timer would be handled any more, while the consumer is ready."""
    ends, stopping, timer = Ends(failing), threading.Event(), timer_of(0)
    receiver: Any = Receiver(timer, stopping)
    outcomes: Any = ends

    def handle(message: DelayedMessage) -> None:
        if failing == "raised":
            raise ValueError(message.timer_id)

    run = Run(
        receiver,
        taken=ends.taken,
        middlewares=None,
        outcomes=outcomes,
        clock=SystemClock(),
        hooks=Hooks(()),
        is_stopping=stopping.is_set,
        stop=stopping.set,
    )
    with pytest.raises(AttributeError, match=failing):
        run.until_stopped(handle, 1, 1_000)
    assert ends.given_back_timers == [timer]
