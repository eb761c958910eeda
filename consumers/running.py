"""Runs handlers on worker threads: timers with the same key one after the other, and an orderly end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from timewheel.client.hooks import Hooks
from timewheel.consumers.handlers import Handler, HandlerCalls
from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.message import DelayedMessage, key_of
from timewheel.consumers.middleware import MiddlewareChain
from timewheel.consumers.outcomes import Outcomes
from timewheel.consumers.receiving.receiver import SLICE_MS, Receiver
from timewheel.consumers.workers import Workers
from timewheel.core.clock import Clock
from timewheel.events import HandlersLeftBehind


class Run:
    """A call of `DelayedConsumer.run`.

    Args:
        receiver: Source of due timers; takes their outcomes.
        taken: Makes the message for a handler when it begins; None if the handler must not begin, and the timer is
            already dealt with.
        middlewares: Code around each handler; None if there is no such code.
        outcomes: Receives the outcomes of handlers.
        clock: The consumer's clock.
        hooks: Receive events about handlers that are left behind.
        is_stopping: Returns whether the run shall end.
        stop: Has the consumer stop.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        taken: Callable[[InFlight], DelayedMessage | None],
        middlewares: MiddlewareChain | None,
        outcomes: Outcomes,
        clock: Clock,
        hooks: Hooks,
        is_stopping: Callable[[], bool],
        stop: Callable[[], None],
    ) -> None:
        self._receiver = receiver
        self._taken = taken
        self._middlewares = middlewares
        self._outcomes = outcomes
        self._clock = clock
        self._hooks = hooks
        self._is_stopping = is_stopping
        self._stop = stop
        self._fatal: BaseException | None = None

    def until_stopped(self, handler: Handler, workers: int, drain_ms: int) -> None:
        """Handle timers until the run shall end; then wait for the handlers that have begun.

        Args:
            handler: The user's handler.
            workers: Maximum number of timers handled at the same time.
            drain_ms: Time that the end waits for handlers, milliseconds.

        Raises:
            BaseException: A handler raised an exception that is no `Exception`, or its outcome could not be
                decided.
            pulsar.PulsarException: Receiving failed.
        """
        with HandlerCalls(handler, self._clock) as call:
            calls = call if self._middlewares is None else partial(self._middlewares, call)
            pool: Workers[InFlight] = Workers(workers, lambda timer: self._handle(calls, timer), self._clock)
            try:
                self._feed(pool)
            finally:
                self._drain(pool, drain_ms)
        if self._fatal is not None:
            raise self._fatal

    def _feed(self, pool: Workers[InFlight]) -> None:
        while not self._is_stopping():
            timer = self._receiver.next(SLICE_MS)
            if timer is not None and not self._put(pool, timer):
                self._return([timer])

    def _put(self, pool: Workers[InFlight], timer: InFlight) -> bool:
        key = key_of(timer.arrival.message)
        while not self._is_stopping():
            if pool.put(timer, key, SLICE_MS):
                return True
        return False

    def _drain(self, pool: Workers[InFlight], drain_ms: int) -> None:
        self._return(pool.drain(drain_ms))
        if pool.running:
            self._hooks.emit(HandlersLeftBehind(handlers=pool.running))

    def _return(self, timers: Iterable[InFlight]) -> None:
        for timer in timers:
            self._outcomes.given_back(timer)

    def _handle(self, call: Callable[[DelayedMessage], None], timer: InFlight) -> None:
        try:
            message = self._taken(timer)
            if message is None:
                return
            try:
                call(message)
            except Exception as error:  # noqa: BLE001 - after any error of a handler, its timer is delivered again
                self._outcomes.raised(timer, message, error)
            else:
                self._outcomes.returned(timer)
        except BaseException as error:  # noqa: BLE001 - raised again by `until_stopped`
            # sys.exit() in a handler means the process, and an error around the handler would end this worker alone:
            # `run` ends with it, on the thread that called it.
            self._fatal = self._fatal or error
            self._stop()
            self._outcomes.given_back(timer)
