"""When slots are visited."""

from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import moments_ms, plans
from timewheel.core.plan import Plan
from timewheel.core.routing import Hold, Router, release_at
from timewheel.core.steps import steps
from timewheel.relay.driver.partition import Visiting
from timewheel.relay.machine.visits import MAX_SWEEPS, OPEN_AHEAD_MS, Sweeps, Times, Visit, last_times, next_times


@given(plans("wheel"), moments_ms, st.data())
def test_every_timer_of_a_slot_meets_a_visit_at_its_release(plan: Plan, at_ms: int, data: st.DataObject) -> None:
    due_ms = at_ms + data.draw(st.integers(0, plan.max_delay_ms))
    route = Router(plan).route(due_ms, at_ms)
    if not isinstance(route, Hold):
        return
    for step in steps(plan):
        if step.kind == "slot" and release_at(step, due_ms, at_ms) == route.release_at_ms:
            times = next_times(step, due_ms // step.slot_ms % step.slots, at_ms)
            assert times.release_ms == route.release_at_ms
            assert times.open_ms == times.release_ms - OPEN_AHEAD_MS
            assert times.leave_ms == times.release_ms + step.slot_ms
            return
    raise AssertionError("held, but in no slot")


@given(plans("wheel"), moments_ms, st.data())
def test_the_last_visit_and_the_next_are_one_turn_apart(plan: Plan, at_ms: int, data: st.DataObject) -> None:
    step = steps(plan)[0]
    slot = data.draw(st.integers(0, step.slots - 1))
    last, following = last_times(step, slot, at_ms), next_times(step, slot, at_ms)
    assert last.release_ms <= at_ms < following.release_ms
    assert following.release_ms - last.release_ms == step.slots * step.slot_ms


def test_a_visit_sweeps_twice_and_is_over_after_the_second() -> None:
    visit, sweeps = Visit(2_000, (1_000, 2_000)), Sweeps()
    assert sweeps.next_moment_ms(visit, 9_000) == 1_000
    assert not sweeps.is_due(visit, 999)
    assert sweeps.is_due(visit, 1_000)
    sweeps.begin(1_000)
    assert sweeps.next_moment_ms(visit, 9_000) == 2_000
    assert not sweeps.is_due(visit, 1_999)
    assert not sweeps.is_over(visit, 1_999)
    assert not sweeps.is_over(visit, 2_000), "the second sweep is still to be done"
    assert sweeps.is_due(visit, 2_500)
    sweeps.begin(2_500)
    assert not sweeps.is_due(visit, 2_500)
    assert sweeps.is_over(visit, 2_500)
    assert not Sweeps().is_due(None, 1 << 50), "without a visit"
    assert not Sweeps().is_over(None, 1 << 50)


def test_a_visit_that_runs_into_the_next_goes_on() -> None:
    visit, sweeps = Visit(2_000, (1_000, 2_000)), Sweeps()
    sweeps.begin(2_000)
    assert sweeps.is_over(visit, 2_000)
    visit = visit.prolonged(Visit(5_000, (4_000, 5_000)))
    assert not sweeps.is_over(visit, 2_000)
    assert sweeps.next_moment_ms(visit, 9_000) == 4_000


def test_a_visit_that_never_ends_remembers_few_sweeps_and_the_last_of_them() -> None:
    visit = Visit.at(Times(0, 1_000, 2_000))
    for turn in range(1, 100):
        visit = visit.prolonged(Visit.at(Times(turn * 1_000, turn * 1_000 + 1_000, turn * 1_000 + 2_000)))
    assert len(visit.sweeps_ms) == MAX_SWEEPS
    assert visit.sweeps_ms[-1] == visit.leave_ms == 101_000


def test_a_session_that_comes_after_another_sweeps_again_what_that_one_had_begun() -> None:
    """Its machine forgot up to where: a straggler behind a later turn waited for a slot more."""
    visit, first = Visit(2_000, (1_000, 2_000)), Sweeps()
    first.begin(1_500)
    assert not first.is_due(visit, 1_600)
    assert Sweeps().is_due(visit, 1_600)


@given(st.lists(st.sampled_from(["begin", "see", "end"]), max_size=40))
def test_one_visit_at_a_time_and_none_ends_that_was_prolonged_unseen(happenings: list[str]) -> None:
    visiting, seen, running, now_ms = Visiting(), None, False, 0
    for happening in happenings:
        now_ms += 700
        if happening == "begin":
            assert visiting.begin(Visit(now_ms + 2_000, (now_ms + 1_000, now_ms + 2_000))) == (not running)
            running = True
        elif happening == "see":
            seen = visiting.now()
        elif running:
            ended = visiting.now() == seen
            assert visiting.end(seen, unfinished=False) == ended
            running = not ended
        assert (visiting.now() is not None) == running


def test_a_stop_ends_a_visit_whatever_is_left_to_do() -> None:
    visiting = Visiting()
    visiting.begin(Visit(2_000, (1_000, 2_000)))
    assert not visiting.end(None, unfinished=False)
    assert visiting.end(None, unfinished=True)
    assert visiting.now() is None


def test_no_visit_is_lost_between_the_thread_that_prolongs_and_the_one_that_ends() -> None:
    """The keeper prolonged what the session had just seen to its end, and a sweep came never."""
    visits, begun, ended = 20_000, 0, 0
    visiting = Visiting()

    def end() -> None:
        nonlocal ended
        while ended < visits:
            seen = visiting.now()
            if seen is not None and visiting.end(seen, unfinished=False):
                ended = seen.leave_ms

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=end, daemon=True)
    try:
        thread.start()
        for number in range(1, visits + 1):
            begun += visiting.begin(Visit(number, (number,)))
        thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert ended == visits, "the last was never seen to its end"
    assert visiting.now() is None
    assert begun > 1, "there were no two visits"
