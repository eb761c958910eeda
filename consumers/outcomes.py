"""What a timer becomes by how its handler ended."""

from __future__ import annotations

from timewheel.consumers.around import Later, Skip
from timewheel.consumers.in_hand import InHand
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.receiving.receiver import Receiver
from timewheel.consumers.retry import Park, Retries, RetryLater
from timewheel.events import HandlerFailed
from timewheel.wire.hooks import Hooks

__all__ = ["Outcomes"]


class Outcomes:
    """Tells the receiver; acknowledgements that fail are told to the hooks.

    Args:
        receiver: Takes the answers.
        retries: What becomes of timers whose handler raises.
        hooks: Told of handlers that fail.
    """

    __slots__ = ("_hooks", "_receiver", "_retries")

    def __init__(self, receiver: Receiver, retries: Retries, hooks: Hooks) -> None:
        self._receiver = receiver
        self._retries = retries
        self._hooks = hooks

    def returned(self, timer: InHand) -> None:
        """It is handled."""
        self._receiver.done(timer, quietly=True)

    def given_back(self, timer: InHand) -> None:
        """No handler began, or none is to be blamed: others may have it."""
        self._receiver.failed(timer, quietly=True)

    def raised(self, timer: InHand, message: DelayedMessage, error: Exception) -> None:
        """The handler raised, or what stands around it.

        Args:
            timer: As it was handed out.
            message: As the handler saw it.
            error: What was raised.
        """
        if isinstance(error, Skip):
            self._receiver.skipped(timer)
        elif isinstance(error, Later):
            self._receiver.postponed(timer, error.after_ms)
        else:
            self._failed(timer, message, error)

    def _failed(self, timer: InHand, message: DelayedMessage, error: Exception) -> None:
        onward = self._retries.after(error, message.attempt)
        if onward is None or not isinstance(error, RetryLater | Park):
            self._hooks.emit(HandlerFailed(timer_id=message.timer_id, error=repr(error)))
        if onward is None:
            self._receiver.failed(timer, quietly=True)
        else:
            self._receiver.moved_on(timer, onward)
