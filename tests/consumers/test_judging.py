"""What becomes of a timer that is due: cases in a table."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.consumers.support import NOW_MS, arrival, engine, republished, said
from timewheel.consumers import Overdue
from timewheel.consumers.engine import DeliveryPolicy, Verdict, judged
from timewheel.consumers.message import Parked
from timewheel.core.envelope import Envelope, Life

KEEP_MS = 60_000
ALIVE, DEAD = DeliveryPolicy(lambda _: False, KEEP_MS), DeliveryPolicy(lambda _: True, KEEP_MS)
MINUTE = dt.timedelta(minutes=1)
PARK, DROP, DELIVER = (Overdue(MINUTE / 2, then) for then in ("park", "drop", "deliver"))


@pytest.mark.parametrize(
    ("late_ms", "judge", "overdue", "expected"),
    [
        (0, None, None, Verdict.HAND),
        (10**9, None, None, Verdict.HAND),
        (0, ALIVE, None, Verdict.ASK),
        (0, DEAD, None, Verdict.DEAD),
        (KEEP_MS, ALIVE, None, Verdict.ASK),
        (KEEP_MS + 1, ALIVE, None, Parked),
        (KEEP_MS + 1, DEAD, None, Verdict.DEAD),
        (30_000, None, PARK, Verdict.HAND),
        (30_001, None, PARK, Parked("it came 30s 1ms after its due time, and is useful for 30s only")),
        (30_001, None, DROP, Verdict.OVERDUE),
        (30_001, None, DELIVER, Verdict.HAND),
        (30_001, ALIVE, DELIVER, Verdict.ASK),
        (30_001, DEAD, DROP, Verdict.DEAD),
        (30_001, ALIVE, DROP, Verdict.OVERDUE),
        (KEEP_MS + 1, ALIVE, DELIVER, Parked),
    ],
)
def test_the_table(late_ms: int, judge: DeliveryPolicy | None, overdue: Overdue | None, expected: Any) -> None:
    found = judged(Envelope("t", NOW_MS - late_ms, 0), NOW_MS, judge, overdue)
    if expected is Parked:
        assert isinstance(found, Parked)
        assert "it may have been cancelled" in found.reason
    else:
        assert found == expected


def test_without_an_envelope_it_is_handed_out() -> None:
    assert judged(None, NOW_MS, DEAD, DROP) is Verdict.HAND


def test_an_attempt_is_overdue_by_its_own_time_and_cancelled_by_the_first() -> None:
    again = Envelope("t", NOW_MS - 1, 0, life=Life(attempt=3, first_due_ms=NOW_MS - KEEP_MS - 1, only_for="s"))
    assert judged(again, NOW_MS, None, DROP) is Verdict.HAND
    assert isinstance(judged(again, NOW_MS, ALIVE, None), Parked)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"after": dt.timedelta(0)}, "above 0"),
        ({"after": 5}, "a duration"),
        ({"after": MINUTE, "then": "burn"}, "deliver, drop, park"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Overdue(**given)


def test_an_overdue_one_is_dropped_with_its_copies_or_parked() -> None:
    under = engine(overdue=DROP)
    assert said(under.received(arrival(1, "a", NOW_MS - 30_001), NOW_MS, 0)) == [("ack", 1)]
    assert said(under.received(arrival(2, "a", NOW_MS - 30_001), NOW_MS, 0)) == [("ack", 2)]
    assert (under.counts.overdue, under.counts.already_handled, under.held_count) == (1, 1, 0)
    under = engine(overdue=PARK)
    timer = republished(under.received(arrival(1, "a", NOW_MS - 30_001), NOW_MS, 0))
    assert isinstance(timer.redirect, Parked)
    assert said(under.published(timer, NOW_MS)) == [("ack", 1)]
    assert under.counts.parked == 1
