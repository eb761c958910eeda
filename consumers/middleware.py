"""Hooks around a handler: the inbox uses them, and users add code that all of their handlers need."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from timewheel.client.hooks import Hooks
from timewheel.events import MiddlewareFailed

from .errors import check_duration
from .message import DelayedMessage

MAX_LATER = dt.timedelta(minutes=10)
"""Longest time that a timer can be put off, since it stays in flight in this consumer."""
_MILLISECOND = dt.timedelta(milliseconds=1)


class SkipTimer(Exception):
    """Raise this in `Middleware.before` or in a handler to acknowledge the timer without handling it.

    Args:
        reason: The reason, for the outer `Middleware` objects.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Postpone(Exception):
    """Raise this in `Middleware.before` or in a handler to have this consumer hand out the timer again after a while.

    Until then the timer stays in this consumer, unacknowledged; so use it for short delays. If this process ends, the
    broker redelivers the timer to another consumer at once.

    Args:
        after: Delay before the timer is handed out again, at most ten minutes.

    Raises:
        TypeError: ``after`` is no timedelta.
        ValueError: ``after`` is negative, or too long.
    """

    def __init__(self, after: dt.timedelta) -> None:
        check_duration("Postpone: after", after)
        if not dt.timedelta(0) <= after <= MAX_LATER:
            raise ValueError(
                f"Postpone({after!r}): from 0 to {MAX_LATER}, since the timer stays in this consumer's hands"
            )
        self.after = after
        super().__init__(after)

    @property
    def after_ms(self) -> int:
        """The delay in milliseconds, rounded up."""
        return -(-self.after // _MILLISECOND)


class Middleware:
    """Base class for code around handlers; pass instances to ``DelayedConsumer(middleware=[...])``.

    Override the methods you need. The first instance is the outermost: ``before`` methods are called in list order,
    ``after`` and ``failed`` in reverse order. All three run on the worker that handles the timer, also where the
    handler is ``async def``; several timers are handled at the same time, so several threads use an instance. It
    applies to `DelayedConsumer.run`.
    """

    def before(self, message: DelayedMessage) -> None:
        """Run before the handler. An exception here counts as raised by the handler; see `SkipTimer`, `Postpone`."""

    def after(self, message: DelayedMessage) -> None:
        """Run after the handler has returned. An exception goes to the hooks; the timer is still acknowledged."""

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        """Run if the handler or an inner ``before`` has raised, after this ``before`` has returned.

        Args:
            message: The timer.
            error: The exception, which may be `SkipTimer` or `Postpone`. It propagates to the outer `Middleware`
                objects.
        """


class MiddlewareChain:
    """Calls a handler within its `Middleware` objects."""

    def __init__(self, middlewares: Sequence[Middleware], hooks: Hooks) -> None:
        self._middlewares = tuple(middlewares)
        self._hooks = hooks

    def __call__(self, call: Callable[[DelayedMessage], object], message: DelayedMessage) -> None:
        """Handle a timer; raise the exceptions of ``before`` and of the handler."""
        self.enter(message)
        try:
            call(message)
        except BaseException as error:
            self.leave(message, error)
            raise
        self.leave(message)

    def enter(self, message: DelayedMessage) -> None:
        """Call each ``before``; if a ``before`` raises, call ``failed`` of the outer middleware, and raise again."""
        for entered, middleware in enumerate(self._middlewares):
            try:
                middleware.before(message)
            except BaseException as error:
                for outer in reversed(self._middlewares[:entered]):
                    self._report(outer, message, error)
                raise

    def leave(self, message: DelayedMessage, error: BaseException | None = None) -> None:
        """Call each ``after``, or each ``failed``, once the handler has ended."""
        for middleware in reversed(self._middlewares):
            self._report(middleware, message, error)

    def _report(self, middleware: Middleware, message: DelayedMessage, error: BaseException | None) -> None:
        try:
            if error is None:
                middleware.after(message)
            else:
                middleware.failed(message, error)
        except Exception as raised:  # noqa: BLE001 - the outcome is decided; the other middleware must run too
            what = "after" if error is None else "failed"
            self._hooks.emit(
                MiddlewareFailed(
                    middleware=type(middleware).__name__, method=what, timer_id=message.timer_id, error=repr(raised)
                )
            )
