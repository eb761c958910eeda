"""What stands around a handler: a seam on which the inbox sits, and on which users put what all their handlers need."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from timewheel.consumers.arguments import check_duration
from timewheel.consumers.message import DelayedMessage
from timewheel.events import AroundFailed
from timewheel.wire.hooks import Hooks

__all__ = ["Around", "Arounds", "Later", "Skip"]

MOST_LATER = dt.timedelta(minutes=10)
"""A timer that is put off stays in the consumer's hands."""
_MILLISECOND = dt.timedelta(milliseconds=1)


class Skip(Exception):
    """Raise it in `Around.before` or in a handler: the timer is not to be handled. It is acknowledged.

    Args:
        reason: Why, for whoever stands around it.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Later(Exception):
    """Raise it in `Around.before` or in a handler: not now. This consumer hands it out again after a while.

    Until then the timer stays in this consumer's hands, unacknowledged; so it is for short whiles. If this process
    ends, another one has it at once.

    Args:
        after: How long, at most ten minutes.

    Raises:
        TypeError: It is no timedelta.
        ValueError: It is negative, or too long.
    """

    def __init__(self, after: dt.timedelta) -> None:
        check_duration("Later: after", after)
        if not dt.timedelta(0) <= after <= MOST_LATER:
            raise ValueError(
                f"Later({after!r}): from 0 to {MOST_LATER}, since the timer stays in this consumer's hands"
            )
        self.after = after
        super().__init__(after)

    @property
    def after_ms(self) -> int:
        """Milliseconds."""
        return -(-self.after // _MILLISECOND)


class Around:
    """Derive from this, override what you need, and hand an instance to ``DelayedConsumer(around=[...])``.

    Of several, the first is the outermost: ``before`` is called in their order, ``after`` and ``failed`` in the
    reverse. All three run on the worker that handles the timer, also where the handler is ``async def``; several timers
    are handled at once, so an instance is used by several threads. It applies to `DelayedConsumer.run`.
    """

    def before(self, message: DelayedMessage) -> None:
        """The timer is about to be handled. What this raises counts as raised by the handler; see `Skip`, `Later`."""

    def after(self, message: DelayedMessage) -> None:
        """The handler has returned. What this raises is told to the hooks; the timer is acknowledged all the same."""

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        """The timer was not handled, though ``before`` had returned: the handler, or a ``before`` further in, raised.

        Args:
            message: The timer.
            error: What was raised; `Skip` and `Later` are among it. It goes on to whoever is further out.
        """


class Arounds:
    """Calls a handler within what stands around it.

    Args:
        arounds: The outermost first.
        hooks: Told what ``after`` and ``failed`` raise.
    """

    __slots__ = ("_arounds", "_hooks")

    def __init__(self, arounds: Sequence[Around], hooks: Hooks) -> None:
        self._arounds = tuple(arounds)
        self._hooks = hooks

    def __call__(self, call: Callable[[DelayedMessage], object], message: DelayedMessage) -> None:
        """Handle one timer; what is raised before or by the handler is raised here."""
        self.enter(message)
        try:
            call(message)
        except BaseException as error:
            self.leave(message, error)
            raise
        self.leave(message)

    def enter(self, message: DelayedMessage) -> None:
        """Call each ``before``; where one raises, tell those further out, and raise it here."""
        for entered, around in enumerate(self._arounds):
            try:
                around.before(message)
            except BaseException as error:
                for outer in reversed(self._arounds[:entered]):
                    self._tell(outer, message, error)
                raise

    def leave(self, message: DelayedMessage, error: BaseException | None = None) -> None:
        """Call each ``after``, or each ``failed``, once the handler has ended.

        Args:
            message: The timer.
            error: What the handler raised; None: it returned.
        """
        for around in reversed(self._arounds):
            self._tell(around, message, error)

    def _tell(self, around: Around, message: DelayedMessage, error: BaseException | None) -> None:
        try:
            if error is None:
                around.after(message)
            else:
                around.failed(message, error)
        except Exception as raised:  # noqa: BLE001 - the timer's fate is decided; others must be told too
            what = "after" if error is None else "failed"
            self._hooks.emit(
                AroundFailed(around=type(around).__name__, method=what, timer_id=message.timer_id, error=repr(raised))
            )
