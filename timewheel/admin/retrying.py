"""What may be asked again, as a table; what is not in the table is not asked again. And for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import WaitBaseT

from timewheel.core.clock import Clock, pause
from timewheel.core.errors import AdminError, AdminUnreachable

__all__ = ["Repeat", "attempts", "may_repeat"]


class Repeat(Enum):
    """What a second call does after a first one whose outcome is unknown."""

    READ = "changes nothing"
    WRITE = "leaves what the first would have left"
    NEVER = "adds to what the first did"


class _NoAnswer(Enum):
    NOT_SENT = "no connection was made"
    UNKNOWN = "the connection broke or timed out after the call was sent"


# 503: the broker does not own the topic yet, or is starting. 429: refused before it is looked at. 502 and 504 come from
# a proxy. 500 is what a broker says of a write that it may have half done, and of reads while a topic moves.
# Never: 401, 403, 404, 409 and 412, which say something about the call itself.
_REPEATED: Mapping[Repeat, frozenset[int | _NoAnswer]] = {
    Repeat.READ: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 500, 502, 503, 504}),
    Repeat.WRITE: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 502, 503, 504}),
    Repeat.NEVER: frozenset({_NoAnswer.NOT_SENT, 429}),
}


def may_repeat(repeat: Repeat, error: BaseException) -> bool:
    """Whether a call that ended with this error may be made again at once."""
    if isinstance(error, AdminUnreachable):
        outcome: int | _NoAnswer | None = _NoAnswer.UNKNOWN if error.sent else _NoAnswer.NOT_SENT
    elif isinstance(error, AdminError):
        outcome = error.status
    else:
        outcome = None
    return outcome in _REPEATED[repeat]


def attempts(clock: Clock, *, again: Callable[[BaseException], bool], within_ms: int, pauses: WaitBaseT) -> Retrying:
    """Attempts at one call, by this clock.

    Args:
        clock: Waits between two attempts, and tells when there is no more time for one.
        again: Whether a call that ended with this error may be made again.
        within_ms: No attempt begins later than this, counted from now; 0: there is one attempt.
        pauses: How long to wait between two attempts; tenacity's.
    """
    last_begin_ms = clock.monotonic_ms() + within_ms

    def too_late(state: RetryCallState) -> bool:
        return clock.monotonic_ms() + state.upcoming_sleep * 1000 >= last_begin_ms

    return Retrying(
        retry=retry_if_exception(again),
        stop=too_late,
        wait=pauses,
        sleep=lambda pause_s: pause(clock, round(pause_s * 1000)),
        reraise=True,
    )
