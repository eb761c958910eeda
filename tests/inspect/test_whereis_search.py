"""The search for timers in plans that were played: all are found, by few looks, at any backlog."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.inspect.test_whereis import NOW_MS, SCHEMES, plan_of
from tests.support.stored_plan import StoredPlan
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.ids import TimerIds
from timewheel.core.plan import Wheel
from timewheel.inspect.whereis import State, Wanted, whereis
from timewheel.inspect.whereis.itinerary import Span

DAYS = 33
TIMERS = 8_000
LOOKED_FOR = 100


@pytest.fixture(scope="module", params=sorted(SCHEMES))
def stored(request: pytest.FixtureRequest) -> StoredPlan:
    source = random.Random(7)
    sends = sorted(
        (NOW_MS - source.randrange(DAYS * DAY_MS), source.randrange(source.choice((HOUR_MS, 30 * DAY_MS))))
        for _ in range(TIMERS)
    )
    return StoredPlan(plan_of(SCHEMES[request.param]), NOW_MS, sends)


def found(stored: StoredPlan, *, knows_due: bool, still_there: bool = True, unit_ms: int = 1) -> Counter[int]:
    """How many looks it took, how often; the due time is known down to a unit of so many milliseconds."""
    source = random.Random(8)
    admin: Any = stored
    reads: Counter[int] = Counter()
    waiting = [one for one in stored.sent if (one.due_ms > NOW_MS + 2_000) is still_there]
    for one in source.sample(waiting, LOOKED_FOR):
        due_ms = one.due_ms // unit_ms * unit_ms if knows_due else None
        result = whereis(admin, stored.plan, Wanted.of(one.timer_id, due_ms=due_ms, due_within_ms=unit_ms - 1))
        if still_there:
            assert result.state in (State.HELD, State.DUE), (one, result)
            assert result.here is not None
            assert result.here.envelope.timer_id == one.timer_id
            assert result.due_ms == one.due_ms
        else:
            assert result.state in (State.HANDLED, State.REMOVED), (one, result)
        reads[result.cost.reads] += 1
    return reads


def test_with_its_due_time_a_timer_is_found_by_five_looks(stored: StoredPlan) -> None:
    reads = found(stored, knows_due=True)
    assert max(reads) <= 5, reads


@pytest.mark.parametrize("unit_ms", [SECOND_MS, HOUR_MS])
def test_with_a_due_time_that_was_cut_short_all_are_found(stored: StoredPlan, unit_ms: int) -> None:
    reads = found(stored, knows_due=True, unit_ms=unit_ms)
    assert max(reads) <= 10, reads


def test_without_it_there_are_more_places(stored: StoredPlan) -> None:
    reads = found(stored, knows_due=False)
    # A topic for each interval; a topic for each slot, and the due topic once for each release of a slot.
    most = {"Native": 5, "Tiered": 8, "Calendar": 35, "Wheel": 100}
    assert max(reads) <= most[type(stored.plan.scheme).__name__], reads


def test_a_handled_one_is_told_as_such(stored: StoredPlan) -> None:
    reads = found(stored, knows_due=True, still_there=False)
    # All timers of a slot leave it in one moment: among them only ids tell the order.
    most = 8 if isinstance(stored.plan.scheme, Wheel) else 5
    assert max(reads) <= most, reads


@pytest.mark.parametrize("unit_ms", [1, MINUTE_MS, DAY_MS])
def test_an_id_of_ones_own_is_found_by_its_due_time_alone(stored: StoredPlan, unit_ms: int) -> None:
    admin: Any = stored
    source = random.Random(9)
    waiting = [one for one in stored.sent if one.due_ms > NOW_MS + 2_000]
    for one in source.sample(waiting, 20):
        # It says nothing: as if somebody had given it.
        due_ms = one.due_ms // unit_ms * unit_ms
        sent = Span(0, due_ms + unit_ms - 1)
        wanted = Wanted(timer_id=one.timer_id, sent=sent, due_ms=due_ms, due_within_ms=unit_ms - 1)
        result = whereis(admin, stored.plan, wanted, max_reads=100_000)
        assert result.state in (State.HELD, State.DUE), (one, result)
        assert result.here is not None
        assert result.here.envelope.timer_id == one.timer_id
    few = whereis(admin, stored.plan, Wanted.of("sub-42", due_ms=NOW_MS + DAY_MS), max_reads=30)
    assert (few.state, few.cost.reads <= 31, few.way) == (State.NOT_FOUND, True, ())


def test_one_that_was_never_sent_is_not_found(stored: StoredPlan) -> None:
    admin: Any = stored
    never = TimerIds(lambda _: b"never!!!").new(NOW_MS - DAY_MS)
    result = whereis(admin, stored.plan, Wanted.of(never, due_ms=NOW_MS + DAY_MS + 5))
    assert result.state is State.NOT_FOUND
    assert result.searched
    assert result.cost.reads <= 500


def test_what_an_earlier_plan_delays_in_the_due_topic_is_not_held_there() -> None:
    sends = [(NOW_MS - HOUR_MS + n, 10 * DAY_MS) for n in range(20)]
    native: Any = StoredPlan(plan_of(SCHEMES["native"]), NOW_MS, sends)
    one = native.sent[7]
    wanted = Wanted(timer_id=one.timer_id, sent=Span(0, one.due_ms), due_ms=one.due_ms)
    result = whereis(native, plan_of(SCHEMES["odd tiers"]), wanted)
    assert result.here is not None
    assert (result.state, result.here.is_due, result.way) == (State.DUE, True, ())
