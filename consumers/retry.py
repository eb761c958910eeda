"""Whether and when a timer is tried again whose handler failed: the policy, and what handlers raise to say so."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from timewheel.consumers.arguments import check_duration
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.onward import MAX_REASON_CHARS, Onward, Parked, TriedAgain
from timewheel.core.chance import Chance
from timewheel.core.clock import Clock
from timewheel.core.durations import format_duration, spelled
from timewheel.core.plan import Plan

__all__ = [
    "NO_TOPICS",
    "Backoff",
    "Exponential",
    "Fixed",
    "Park",
    "Retries",
    "RetryLater",
    "RetryPolicy",
    "after_failure",
]

MAX_ATTEMPTS = 100_000
NO_TOPICS = (
    "the plan has no topics for what is tried again: write retry = true in it, and run `timewheel topics ensure PLAN`"
)
_MILLISECOND = dt.timedelta(milliseconds=1)


class RetryLater(Exception):
    """Raise it in a handler: the timer is to be handled again by this subscription, after a while.

    It counts as an attempt. Nothing waits in this process; however long it takes, others are not held up.

    Args:
        after: How long; None: as the consumer's `RetryPolicy` says.
        reason: Why, for whoever finds the timer parked at the end.

    Raises:
        TypeError: ``after`` is no timedelta.
    """

    def __init__(self, after: dt.timedelta | None = None, reason: str = "") -> None:
        if after is not None:
            check_duration("RetryLater: after", after)
        self.after = after
        self.reason = reason
        super().__init__(after, reason)


class Park(Exception):
    """Raise it in a handler: trying again does not help, an operator shall look at it.

    Args:
        reason: Why, as a sentence.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same back-off.

    Args:
        wait: How long.

    Raises:
        TypeError: It is no timedelta.
    """

    wait: dt.timedelta

    def __post_init__(self) -> None:
        check_duration("Fixed: wait", self.wait)

    def __call__(self, attempt: int, error: Exception, chance: Chance) -> dt.timedelta:
        """The same for every attempt."""
        del attempt, error, chance
        return self.wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """A back-off that grows, up to a cap, and is drawn at random from its upper part.

    Args:
        first: After the first attempt.
        factor: By which each is longer than the one before; at least 1.
        cap: The longest.
        jitter: Which part of it is drawn: 0 nothing, 1 all of it. Timers that failed together come back apart.

    Raises:
        TypeError: ``first`` or ``cap`` is no timedelta.
        ValueError: One of them is out of range.
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

    def __call__(self, attempt: int, error: Exception, chance: Chance) -> dt.timedelta:
        """How long after this attempt, which is counted from 0."""
        del error
        # In logarithms: the power itself is beyond any number after some hundred attempts.
        steps = math.log(self.cap / self.first) / math.log(self.factor) if self.factor > 1 else math.inf
        whole = self.cap if attempt >= steps else self.first * self.factor**attempt
        return whole * (1 - self.jitter * chance.random())


Backoff = Fixed | Exponential | Callable[[int, Exception, Chance], dt.timedelta]
"""Of the attempt, counted from 0, what it raised, and chance: how long until the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What becomes of timers whose handler raises an exception.

    Args:
        max_attempts: How often a timer is handled at most, the first time included; then it is parked.
        backoff: How long until the next attempt.

    Raises:
        ValueError: ``max_attempts`` is no whole number from 1 to 100,000: a timer that is tried for ever is never seen
            by anybody.
    """

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=Exponential)

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"RetryPolicy: max_attempts ({attempts!r}) must be a whole number from 1 to {MAX_ATTEMPTS:,}"
            )


def after_failure(
    policy: RetryPolicy, attempt: int, error: Exception, *, now_ms: int, max_delay_ms: int, chance: Chance
) -> Onward:
    """Decide on a timer whose handler raised something.

    Args:
        policy: The consumer's.
        attempt: Which it was, counted from 0.
        error: What was raised; `RetryLater` and `Park` say themselves what they want.
        now_ms: UTC milliseconds.
        max_delay_ms: The plan's: nothing is put off for longer.
        chance: For back-offs.
    """
    if isinstance(error, Park):
        return Parked(error.reason[:MAX_REASON_CHARS])
    wish = error if isinstance(error, RetryLater) else None
    told = repr(error)[:MAX_REASON_CHARS] if wish is None else wish.reason[:MAX_REASON_CHARS]
    made = attempt + 1
    if made >= policy.max_attempts:
        times = "once" if made == 1 else f"{made:,} times"
        return Parked(f"it was tried {times}, and no more is allowed", told)
    after: object = wish.after if wish is not None else None
    if after is None:
        try:
            after = policy.backoff(attempt, error, chance)
        except Exception as broken:  # noqa: BLE001 - the user's own code; the timer must not be lost by it
            return Parked(f"its back-off could not be told: {broken!r}"[:MAX_REASON_CHARS], told)
    if not isinstance(after, dt.timedelta) or after < dt.timedelta(0):
        return Parked(f"its back-off is {after!r}, which is no duration from 0"[:MAX_REASON_CHARS], told)
    whole_ms, rest = divmod(after, _MILLISECOND)
    after_ms = whole_ms + bool(rest)
    if after_ms > max_delay_ms:
        longest = format_duration(max_delay_ms)
        return Parked(f"its back-off is {spelled(after_ms)}, and the plan's max_delay is {longest}", told)
    return TriedAgain(now_ms + after_ms)


class Retries:
    """What one consumer does with timers whose handlers raise.

    Args:
        policy: The consumer's; None: only what handlers ask for by `RetryLater` and `Park`.
        plan: Says whether there are topics for it, and how long a delay may be.
        clock: Time.
        chance: For back-offs.

    Raises:
        SubscribeRefused: There is a policy, and no topic for what it tries again.
    """

    def __init__(self, policy: RetryPolicy | None, plan: Plan, clock: Clock, chance: Chance) -> None:
        if policy is not None and not plan.keeps_back:
            raise SubscribeRefused("retry", policy, NO_TOPICS)
        self._policy = policy
        self._asked = policy or RetryPolicy()
        self._plan = plan
        self._clock = clock
        self._chance = chance

    def goes_on(self, error: Exception) -> bool:
        """Whether what a handler raised leads to another attempt, or to where timers are parked."""
        return self._plan.keeps_back and (self._policy is not None or isinstance(error, RetryLater | Park))

    def after(self, error: Exception, attempt: int) -> Onward | None:
        """What becomes of a timer; None: the broker shall deliver it again.

        Args:
            error: What its handler raised.
            attempt: Which it was, counted from 0.
        """
        if not self.goes_on(error):
            return None
        return after_failure(
            self._asked,
            attempt,
            error,
            now_ms=self._clock.now_ms(),
            max_delay_ms=self._plan.max_delay_ms,
            chance=self._chance,
        )
