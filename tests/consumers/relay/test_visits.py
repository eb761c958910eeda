"""When slots are visited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import moments_ms, plans
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
    assert [visit.take_sweep(now_ms) for now_ms in (999, 1_000, 1_001, 1_999)] == [False, True, False, False]
    assert not visit.is_over(1_999)
    assert not visit.is_over(2_000), "the second sweep is still to be done"
    assert visit.take_sweep(2_500)
    assert visit.is_over(2_500)


def test_a_visit_that_runs_into_the_next_goes_on() -> None:
    visit = Visit(2_000, (2_000,))
    visit.prolong(Visit(5_000, (4_000, 5_000)))
    assert visit.take_sweep(2_000)
    assert not visit.is_over(2_000)
    assert visit.next_moment_ms(9_000) == 4_000
