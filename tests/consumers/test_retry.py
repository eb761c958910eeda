"""What becomes of a timer whose handler raised: cases in a table, and back-offs by their definition."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock
from timewheel.consumers import ExponentialBackoff, FixedBackoff, ParkTimer, Postpone, RetryLater, RetryPolicy
from timewheel.consumers.errors import SubscribeRefused, timeout_ms_of
from timewheel.consumers.message import MAX_REASON_CHARS, Parked, Redirect, ToRetry
from timewheel.consumers.retry import MAX_ATTEMPTS, Retries
from timewheel.core import Plan
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Cancel
from timewheel.core.rng import Random

NOW_MS = 1_000_000
SECOND = dt.timedelta(seconds=1)
PLAN = Plan(due_topic="persistent://public/default/t", subscriptions=("s",), retry=True)
BROKEN = ValueError("no")


def decided(policy: RetryPolicy, attempt: int = 0, error: Exception = BROKEN) -> Redirect | None:
    return Retries(policy, PLAN, ManualClock(NOW_MS), random.Random(attempt)).after(error, attempt)


def test_it_is_tried_so_often_and_then_parked() -> None:
    policy = RetryPolicy(max_attempts=3, backoff=FixedBackoff(2 * SECOND))
    assert [decided(policy, attempt) for attempt in range(4)] == [
        ToRetry(NOW_MS + 2_000),
        ToRetry(NOW_MS + 2_000),
        Parked("it was tried 3 times, and no more is allowed", "ValueError('no')"),
        # The policy has become shorter meanwhile.
        Parked("it was tried 4 times, and no more is allowed", "ValueError('no')"),
    ]
    assert decided(RetryPolicy(max_attempts=1)) == Parked("it was tried once, and no more is allowed", repr(BROKEN))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RetryLater(5 * SECOND), ToRetry(NOW_MS + 5_000)),
        (RetryLater(dt.timedelta(0)), ToRetry(NOW_MS)),
        (RetryLater(dt.timedelta(microseconds=1)), ToRetry(NOW_MS + 1)),
        (RetryLater(), ToRetry(NOW_MS + 1_000)),
        (ParkTimer("no such customer"), Parked("no such customer")),
        (
            RetryLater(31 * 86_400 * SECOND, "closed"),
            Parked("its back-off is 31d, and the plan's max_delay is 30d", "closed"),
        ),
        (RetryLater(-SECOND), Parked(f"its back-off is {-SECOND!r}, which is no duration from 0")),
    ],
)
def test_handlers_say_themselves_what_they_want(error: Exception, expected: Redirect) -> None:
    assert decided(RetryPolicy(backoff=FixedBackoff(SECOND)), error=error) == expected


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        (RetryLater, "after"),
        (Postpone, "after"),
        (FixedBackoff, "wait"),
        (ExponentialBackoff, "first"),
        (ExponentialBackoff, "cap"),
    ],
)
def test_a_number_is_no_duration_and_is_refused_where_it_is_given(kind: Callable[..., object], argument: str) -> None:
    with pytest.raises(TypeError, match=rf"{argument} = 60: a timedelta is needed, such as timedelta\(seconds=5\)"):
        kind(**{argument: 60})


def test_a_time_out_as_a_number_is_named_by_its_own_argument() -> None:
    with pytest.raises(TypeError, match="a number of milliseconds is timeout_millis="):
        timeout_ms_of(5000, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a timedelta is timeout="):
        timeout_ms_of(None, SECOND)  # type: ignore[arg-type]
    assert timeout_ms_of(SECOND, None) == timeout_ms_of(None, 1_000) == 1_000


def test_to_ask_for_it_later_counts_as_an_attempt() -> None:
    last = decided(RetryPolicy(max_attempts=2), 1, RetryLater(SECOND, "the shop is closed"))
    assert last == Parked("it was tried 2 times, and no more is allowed", "the shop is closed")


def _raises(attempt: int, error: Exception, rng: Random) -> dt.timedelta:
    raise KeyError(attempt, error, rng.random() > 1)


@pytest.mark.parametrize(
    ("backoff", "said"),
    [
        (_raises, "its back-off could not be computed: KeyError(0"),
        (lambda *_: 3, "its back-off is 3, which is no duration"),
        (lambda *_: None, "its back-off is None, which is no duration"),
        (FixedBackoff(-SECOND), "which is no duration"),
        (FixedBackoff(dt.timedelta.max), "and the plan's max_delay is 30d"),
    ],
)
def test_by_a_policy_that_cannot_say_when_it_is_parked_and_not_lost(backoff: Any, said: str) -> None:
    redirect = decided(RetryPolicy(backoff=backoff))
    assert isinstance(redirect, Parked)
    assert said in redirect.reason
    assert redirect.error == repr(BROKEN)


def test_what_is_said_of_it_has_a_bound() -> None:
    for error in (ParkTimer("x" * 10_000), RetryLater(SECOND, "x" * 10_000), ValueError("x" * 10_000)):
        redirect = decided(RetryPolicy(max_attempts=1), error=error)
        assert isinstance(redirect, Parked)
        assert max(len(redirect.reason), len(redirect.error)) <= MAX_REASON_CHARS


@given(
    first_ms=st.integers(1, DAY_MS),
    factor=st.floats(1, 100),
    cap_factor=st.floats(1, 10_000),
    attempt=st.integers(0, MAX_ATTEMPTS),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_it_grows_to_the_cap_and_is_drawn_from_its_upper_part(
    first_ms: int, factor: float, cap_factor: float, attempt: int, jitter: float, seed: int
) -> None:
    first = dt.timedelta(milliseconds=first_ms)
    cap = first * cap_factor
    backoff = ExponentialBackoff(first=first, factor=factor, cap=cap, jitter=jitter)
    try:
        whole = min(first * factor**attempt, cap)
    except OverflowError:
        whole = cap
    found = backoff(attempt, BROKEN, random.Random(seed))
    drawn = whole * (1 - jitter * random.Random(seed).random())
    assert abs(found - drawn) <= dt.timedelta(microseconds=2) + drawn * 1e-9
    assert found <= cap


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (RetryPolicy, {"max_attempts": 0}, "max_attempts"),
        (RetryPolicy, {"max_attempts": MAX_ATTEMPTS + 1}, "100,000"),
        (RetryPolicy, {"max_attempts": None}, "max_attempts"),
        (RetryPolicy, {"max_attempts": True}, "max_attempts"),
        (ExponentialBackoff, {"first": dt.timedelta(0)}, "first"),
        (ExponentialBackoff, {"first": 2 * SECOND, "cap": SECOND}, "cap"),
        (ExponentialBackoff, {"factor": 0.5}, "factor"),
        (ExponentialBackoff, {"factor": float("nan")}, "factor"),
        (ExponentialBackoff, {"factor": float("inf")}, "factor"),
        (ExponentialBackoff, {"jitter": 1.5}, "jitter"),
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_kept_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**given)


def test_without_a_policy_only_what_handlers_ask_for_is_published_anew() -> None:
    retries = Retries(None, PLAN, ManualClock(), random.Random(1))
    assert not retries.goes_on(ValueError())
    assert retries.goes_on(ParkTimer("x")) is retries.goes_on(RetryLater()) is True
    assert retries.after(BROKEN, 0) is None
    assert isinstance(retries.after(RetryLater(), 0), ToRetry)
    assert isinstance(retries.after(ParkTimer("gone"), 0), Parked)
    assert isinstance(retries.after(RetryLater(SECOND), 4), Parked), "a handler that asks for ever is heard in the end"


def test_a_plan_without_topics_for_it_refuses_a_policy() -> None:
    plan = Plan(due_topic=PLAN.due_topic, subscriptions=PLAN.subscriptions)
    with pytest.raises(SubscribeRefused, match="retry = true"):
        Retries(RetryPolicy(), plan, ManualClock(), random.Random(1))
    assert Retries(None, plan, ManualClock(), random.Random(1)).after(ParkTimer("gone"), 0) is None
    cancelling = Plan(due_topic=PLAN.due_topic, subscriptions=PLAN.subscriptions, cancel=Cancel())
    assert Retries(RetryPolicy(), cancelling, ManualClock(), random.Random(1)).goes_on(ValueError())
