"""The outcome of a timer by the result of its handler."""

from __future__ import annotations

from timewheel.client.hooks import Hooks
from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.middleware import Postpone, SkipTimer
from timewheel.consumers.receiving.receiver import Receiver
from timewheel.consumers.retry import ParkTimer, Retries, RetryLater
from timewheel.events import HandlerFailed


class Outcomes:
    """Passes outcomes to the receiver, which reports failed acknowledgements to the hooks.

    Args:
        receiver: Executes the outcomes.
        retries: Decides about timers whose handler raises.
        hooks: Receive events about handlers that fail.
    """

    __slots__ = ("_hooks", "_receiver", "_retries")

    def __init__(self, receiver: Receiver, retries: Retries, hooks: Hooks) -> None:
        self._receiver = receiver
        self._retries = retries
        self._hooks = hooks

    def returned(self, timer: InFlight) -> None:
        """Acknowledge a timer that was handled."""
        self._receiver.done(timer, quietly=True)

    def given_back(self, timer: InFlight) -> None:
        """Give a timer back, so that another consumer may have it: no handler began, or none is to blame."""
        self._receiver.failed(timer, quietly=True)

    def raised(self, timer: InFlight, message: DelayedMessage, error: Exception) -> None:
        """Decide about a timer whose handler or `Middleware` raised.

        Args:
            timer: The timer as it was handed out.
            message: The message as the handler saw it.
            error: The exception.
        """
        if isinstance(error, SkipTimer):
            self._receiver.skipped(timer)
        elif isinstance(error, Postpone):
            self._receiver.postponed(timer, error.after_ms)
        else:
            self._failed(timer, message, error)

    def _failed(self, timer: InFlight, message: DelayedMessage, error: Exception) -> None:
        redirect = self._retries.after(error, message.attempt)
        if redirect is None or not isinstance(error, RetryLater | ParkTimer):
            self._hooks.emit(HandlerFailed(timer_id=message.timer_id, error=repr(error)))
        if redirect is None:
            self._receiver.failed(timer, quietly=True)
        else:
            self._receiver.redirected(timer, redirect)
