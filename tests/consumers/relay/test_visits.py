"""When slots are visited."""

from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import moments_ms, plans
from timewheel.consumers.relay.driver.visiting import Visiting
from timewheel.consumers.relay.machine.visits import OPEN_AHEAD_MS, Visit, last_times, next_times
from timewheel.core.plan import Plan
from timewheel.core.routing import Hold, Router, release_at
from timewheel.core.steps import steps


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
    visit = Visit(2_000, (1_000, 2_000))
    assert visit.next_moment_ms(9_000) == 1_000
    assert visit.swept(999) is visit
    once = visit.swept(1_000)
    assert once == Visit(2_000, (2_000,), 1_000)
    assert once.swept(1_999) is once
    assert not once.is_over(1_999)
    assert not once.is_over(2_000), "the second sweep is still to be done"
    twice = once.swept(2_500)
    assert twice == Visit(2_000, (), 2_000)
    assert twice.is_over(2_500)


def test_a_visit_that_runs_into_the_next_goes_on() -> None:
    visit = Visit(2_000, (2_000,)).prolonged(Visit(5_000, (4_000, 5_000))).swept(2_000)
    assert not visit.is_over(2_000)
    assert visit.next_moment_ms(9_000) == 4_000


def test_a_session_that_comes_after_another_sweeps_again_what_that_one_had_begun() -> None:
    """Its machine forgot up to where: a straggler behind a later turn waited for a slot more."""
    assert Visit(2_000, (1_000, 2_000)).resumed() == Visit(2_000, (1_000, 2_000))
    failed = Visit(2_000, (1_000, 2_000)).swept(1_500)
    assert failed.resumed() == Visit(2_000, (1_000, 2_000))
    assert failed.resumed().swept(1_600).sweeps_ms == (2_000,)


@given(st.lists(st.sampled_from(["begin", "take", "resume", "end"]), max_size=40))
def test_one_visit_at_a_time_whatever_happens_to_it(happenings: list[str]) -> None:
    visiting, running, now_ms = Visiting(), False, 0
    for happening in happenings:
        now_ms += 700
        if happening == "begin":
            assert visiting.begin(Visit(now_ms + 2_000, (now_ms + 1_000, now_ms + 2_000))) == (not running)
            running = True
        elif happening == "take":
            assert not (visiting.take_sweep(now_ms) and visiting.take_sweep(now_ms)), "each is told once"
        elif happening == "resume":
            visiting.resume()
        elif running and visiting.end(now_ms, unfinished=False):
            running = False
        assert (visiting.now is not None) == running


def test_no_sweep_is_lost_between_the_thread_that_prolongs_and_the_one_that_sweeps() -> None:
    """The keeper prolonged what the session had just read, and a sweep came twice or never."""
    visits, taken = 4_000, []
    visiting = Visiting()
    visiting.begin(Visit(0, (0,)))

    def prolong() -> None:
        for number in range(1, visits):
            visiting.begin(Visit(number, (number,)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=prolong)
    try:
        thread.start()
        while thread.is_alive() or (visit := visiting.now) is None or visit.sweeps_ms:
            visit = visiting.now
            assert visit is not None
            if visit.sweeps_ms and visiting.take_sweep(visit.sweeps_ms[0]):
                taken.append(visit.sweeps_ms[0])
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert taken == list(range(visits))
