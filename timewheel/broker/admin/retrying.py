"""The calls that may be repeated, as a table, and for how long. A call that is not in the table is not repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import WaitBaseT

from timewheel.core.clock import Clock, pause
from timewheel.core.errors import AdminError, AdminUnreachable


class Repeat(Enum):
    """Effect of a second call after a first call whose outcome is unknown."""

    READ = "changes nothing"
    WRITE = "leaves what the first would have left"
    NEVER = "adds to what the first did"


class _NoAnswer(Enum):
    NOT_SENT = "no connection was made"
    UNKNOWN = "the connection broke or timed out after the call was sent"


# 503: the broker does not own the topic yet, or is starting. 429: refused before processing. 502 and 504 come from a
# proxy. 500 answers a write that may be half done, and reads while a topic moves.
# Never: 401, 403, 404, 409 and 412, which concern the call itself.
_REPEATED: Mapping[Repeat, frozenset[int | _NoAnswer]] = {
    Repeat.READ: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 500, 502, 503, 504}),
    Repeat.WRITE: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 502, 503, 504}),
    Repeat.NEVER: frozenset({_NoAnswer.NOT_SENT, 429}),
}


def may_repeat(repeat: Repeat, error: BaseException) -> bool:
    """Return whether a call that ended with this error may be repeated at once."""
    if isinstance(error, AdminUnreachable) and error.wrong_url:
        return False
    if isinstance(error, AdminUnreachable):
        outcome: int | _NoAnswer | None = _NoAnswer.UNKNOWN if error.sent else _NoAnswer.NOT_SENT
    elif isinstance(error, AdminError):
        outcome = error.status
    else:
        outcome = None
    return outcome in _REPEATED[repeat]


def attempts(clock: Clock, *, again: Callable[[BaseException], bool], within_ms: int, pauses: WaitBaseT) -> Retrying:
    """Build a retry loop that uses a clock.

    Args:
        clock: Waits between attempts, and measures the time left.
        again: Returns whether a call that ended with this error may be repeated.
        within_ms: No attempt begins later than this, counted from now; 0: there is a single attempt.
        pauses: Pauses between attempts, a wait of tenacity.
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
