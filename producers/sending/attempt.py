"""Attempt: a message handed over to the client, and its result."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from timewheel.client.results import Outcome, outcome_of_result
from timewheel.producers.sending.outgoing import Outgoing
from timewheel.producers.sending.pool import PooledProducer


class Attempt:
    """Single send of a message, and the client's callback for it. It can be started again when it has finished.

    Args:
        outgoing: Message to send.
        finished: Called with this attempt when the client knows the result, on the client's own thread: it must never
            raise and never wait.

    Attributes:
        pooled: Producer that sends the message; the caller of `start` borrows it and gives it back.
        handed_over: False if the client refused the message before it could have written any of it.
        result: The client's result; None until it is known.
        message_id: The client's message id; meaningful if the result is Ok.
    """

    __slots__ = ("_finished", "_sending_thread", "handed_over", "message_id", "outgoing", "pooled", "result")

    def __init__(self, outgoing: Outgoing, finished: Callable[[Any], None]) -> None:
        self.outgoing = outgoing
        self._finished = finished
        self.pooled: PooledProducer
        self.result: Any = None
        self.message_id: Any = None
        self.handed_over = True
        self._sending_thread = 0

    def start(self) -> None:
        """Hand the message over to the client, through the producer in ``pooled``.

        Raises:
            Exception: The client could not take the message; it was not sent, and ``finished`` is not called.
        """
        self.handed_over = True
        self._sending_thread = get_ident()
        self.pooled.send(self.outgoing, self)
        self._sending_thread = 0

    def __call__(self, result: Any, message_id: Any) -> None:
        """Take the result, as the client's callback."""
        if self._sending_thread and self._sending_thread == get_ident():
            # Called from inside our own call: the client refused on the spot, so nothing was written.
            self.handed_over = False
        self.message_id = message_id
        self.result = result
        self._finished(self)

    def outcome(self) -> Outcome:
        """Classify the result; call this once the result is known."""
        return outcome_of_result(self.result, self.message_id, handed_over=self.handed_over)
