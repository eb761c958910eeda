"""The policy for timers whose handler failed, and the exceptions by which handlers ask for a retry or parking."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from timewheel.core.arguments import check_kind, is_async
from timewheel.core.clock import Clock
from timewheel.core.durations import format_duration, spelled
from timewheel.core.errors import BadArgument
from timewheel.core.plan import Plan
from timewheel.core.rng import Random

from .errors import SubscribeRefused, check_duration
from .message import MAX_REASON_CHARS, Parked, Redirect, ToRetry

MAX_ATTEMPTS = 100_000
NO_TOPICS = "the plan has no retry topics: write retry = true in it, and run `timewheel topics ensure PLAN`"
_MILLISECOND = dt.timedelta(milliseconds=1)


class RetryLater(Exception):
    """Raise this in a handler to have the timer handled again by this subscription, after a while.

    It counts as an attempt. The timer does not wait in this process; even a long delay does not hold up other timers.

    Args:
        after: The delay; None uses the consumer's `RetryPolicy`.
        reason: The reason, for the operator who may find the timer parked in the end.

    Raises:
        TypeError: ``after`` is no timedelta.
    """

    def __init__(self, after: dt.timedelta | None = None, reason: str = "") -> None:
        if after is not None:
            check_duration("RetryLater: after", after)
        self.after = after
        self.reason = reason
        super().__init__(after, reason)


class ParkTimer(Exception):
    """Raise this in a handler to park the timer for an operator, because a retry would not help.

    Args:
        reason: The reason, as a sentence.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class FixedBackoff:
    """A constant back-off.

    Args:
        wait: The delay.

    Raises:
        TypeError: ``wait`` is no timedelta.
    """

    wait: dt.timedelta

    def __post_init__(self) -> None:
        check_duration("Fixed: wait", self.wait)

    def __call__(self, attempt: int, error: Exception, rng: Random) -> dt.timedelta:
        """Return the same delay for every attempt."""
        del attempt, error, rng
        return self.wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """A back-off that grows, up to a cap, and is drawn at random from its upper part.

    Args:
        first: Delay after the first attempt.
        factor: Ratio of each delay to the delay before; at least 1.
        cap: The longest delay.
        jitter: Random part of the delay, from 0 (none) to 1 (all). Timers that failed together are retried apart.

    Raises:
        TypeError: ``first`` or ``cap`` is no timedelta.
        ValueError: An argument is out of range.
    """

    first: dt.timedelta = dt.timedelta(seconds=10)
    factor: float = 2.0
    cap: dt.timedelta = dt.timedelta(hours=1)
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_duration("Exponential: first", self.first)
        check_duration("Exponential: cap", self.cap)
        if not dt.timedelta(0) < self.first <= self.cap:
            raise ValueError(f"Exponential: first ({self.first}) must be above 0 and at most cap ({self.cap})")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"Exponential: factor ({self.factor}) must be a number from 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Exponential: jitter ({self.jitter}) must be from 0 to 1")

    def __call__(self, attempt: int, error: Exception, rng: Random) -> dt.timedelta:
        """Return the delay after this attempt, which is counted from 0."""
        del error
        # In logarithms: the power itself is beyond any number after some hundred attempts.
        steps = math.log(self.cap / self.first) / math.log(self.factor) if self.factor > 1 else math.inf
        whole = self.cap if attempt >= steps else self.first * self.factor**attempt
        return whole * (1 - self.jitter * rng.random())


Backoff = FixedBackoff | ExponentialBackoff | Callable[[int, Exception, Random], dt.timedelta]
"""Returns the delay until the next attempt, from the attempt (counted from 0), its exception, and randomness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The treatment of timers whose handler raises an exception.

    Args:
        max_attempts: Maximum number of attempts, including the first; then the timer is parked.
        backoff: Delay until the next attempt.

    Raises:
        BadArgument: ``backoff`` cannot be called.
        ValueError: ``max_attempts`` is no whole number from 1 to 100,000: a timer that is retried for ever would never
            reach an operator.
    """

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=ExponentialBackoff)

    def __post_init__(self) -> None:
        wanted = "a function or a back-off is needed, such as FixedBackoff(timedelta(seconds=10))"
        check_kind("backoff", self.backoff, ("__call__",), wanted)
        if is_async(self.backoff):
            raise BadArgument("backoff", self.backoff, f"it is called on the timer's thread, not awaited: {wanted}")
        attempts: object = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"RetryPolicy: max_attempts ({attempts!r}) must be a whole number from 1 to {MAX_ATTEMPTS:,}"
            )


class Retries:
    """Decides about timers whose handlers raise, for a consumer."""

    def __init__(self, policy: RetryPolicy | None, plan: Plan, clock: Clock, rng: Random) -> None:
        if policy is not None and not plan.keeps_back:
            raise SubscribeRefused("retry", policy, NO_TOPICS)
        self._policy = policy
        self._asked = policy or RetryPolicy()
        self._plan = plan
        self._clock = clock
        self._rng = rng

    def goes_on(self, error: Exception) -> bool:
        """True if this exception leads to another attempt or to parking."""
        return self._plan.keeps_back and (self._policy is not None or isinstance(error, RetryLater | ParkTimer))

    def after(self, error: Exception, attempt: int) -> Redirect | None:
        """Decide about a timer whose handler raised an exception; None to have the broker redeliver it."""
        if not self.goes_on(error):
            return None
        if isinstance(error, ParkTimer):
            return Parked(error.reason[:MAX_REASON_CHARS])
        wish = error if isinstance(error, RetryLater) else None
        told = repr(error)[:MAX_REASON_CHARS] if wish is None else wish.reason[:MAX_REASON_CHARS]
        made = attempt + 1
        if made >= self._asked.max_attempts:
            times = "once" if made == 1 else f"{made:,} times"
            return Parked(f"it was tried {times}, and no more is allowed", told)
        after: object = wish.after if wish is not None else None
        now_ms = self._clock.now_ms()  # before the user's code, which may take its time
        if after is None:
            try:
                after = self._asked.backoff(attempt, error, self._rng)
            except Exception as broken:  # noqa: BLE001 - the user's own code; the timer must not be lost by it
                return Parked(f"its back-off could not be computed: {broken!r}"[:MAX_REASON_CHARS], told)
        if not isinstance(after, dt.timedelta) or after < dt.timedelta(0):
            return Parked(f"its back-off is {after!r}, which is no duration from 0"[:MAX_REASON_CHARS], told)
        whole_ms, rest = divmod(after, _MILLISECOND)
        after_ms = whole_ms + bool(rest)
        if after_ms > self._plan.max_delay_ms:
            longest = format_duration(self._plan.max_delay_ms)
            return Parked(f"its back-off is {spelled(after_ms)}, and the plan's max_delay is {longest}", told)
        return ToRetry(now_ms + after_ms)
