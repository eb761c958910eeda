"""The window that leaves so few gaps that the broker keeps them all: found by the count itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.shadow.entries import entry_of
from tests.support.plans import shadow_of
from timewheel.broker.admin.stats import AckedRange, Ledger
from timewheel.cli.shadow import written_words
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Ring, Tiered, Wheel
from timewheel.core.steps import far_ms
from timewheel.shadow.curing import SHARES, WINDOWS_MS, curing, first_plan, fitted, windows, with_window
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.survey_counters import SurveyCounters

NOW_MS = 1_800_000_000_000
DAYS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
RINGS = Wheel(rings=(Ring(slot_ms=DAY_MS, slots=10), Ring(slot_ms=7 * DAY_MS, slots=10)))


@pytest.mark.parametrize("scheme", [DAYS, RINGS])
def test_the_longest_window_is_taken_that_leaves_room_else_one_that_is_enough(scheme: Tiered | Wheel) -> None:
    plan = shadow_of(scheme)

    def after(gaps: dict[int, int]) -> int | None:
        """The window that is chosen, where all with so much time left leaves so many gaps."""
        found = curing(plan, 1_000, lambda far: next(count for least_ms, count in gaps.items() if far >= least_ms))
        return None if found is None or not isinstance(found.scheme, Tiered) else found.scheme.window_ms

    # far is the window and twice the guard: 2 h is 2 h 10 min.
    assert after({7 * HOUR_MS: 1_300, 3 * HOUR_MS: 900, 2 * HOUR_MS: 700, HOUR_MS: 500, 0: 10}) == HOUR_MS
    assert after({7 * HOUR_MS: 1_300, 3 * HOUR_MS: 900, 2 * HOUR_MS: 700, 0: 501}) == 2 * HOUR_MS
    assert after({7 * HOUR_MS: 1_300, 3 * HOUR_MS: 1_000, 0: 900}) == 6 * HOUR_MS
    assert after({0: 1_001}) is None


def test_a_plan_that_leaves_room_itself_stays() -> None:
    assert SHARES[0] == 0.5
    assert curing(shadow_of(DAYS), 1_000, lambda _far: 500) == shadow_of(DAYS)


@given(
    window_ms=st.sampled_from(WINDOWS_MS), longest_ms=st.integers(0, 10 * 365 * DAY_MS), partitions=st.integers(0, 9)
)
def test_the_plan_of_a_topic_takes_its_delays_with_any_window(window_ms: int, longest_ms: int, partitions: int) -> None:
    first = first_plan("persistent://acme/crm/reminders", ["a:b", "billing"], partitions, 500)
    assume(first.guard_ms <= window_ms)
    made = fitted(first, window_ms, longest_ms)
    assert made.max_delay_ms >= longest_ms
    assert far_ms(made) == window_ms + 2 * made.guard_ms < made.max_delay_ms
    assert (made.subscriptions, made.own_partitions, made.revision) == (("a:b", "billing"), first.own_partitions, 1)
    assert isinstance(made.scheme, Tiered)
    assert made.scheme.tiers_ms[0] == window_ms
    assert all(2 * here <= longer for here, longer in pairwise(made.scheme.tiers_ms))


def test_the_plan_of_a_topic_is_made_of_round_figures() -> None:
    made = fitted(first_plan("persistent://acme/crm/reminders", ["billing"], 3, 500), 12 * HOUR_MS, 19 * DAY_MS)
    assert made == replace(
        shadow_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, 2 * DAY_MS, 10 * DAY_MS))),
        partitions=3,
        max_delay_ms=20 * DAY_MS,
        tick_ms=500,
        guard_ms=made.guard_ms,
    )


@given(
    window_ms=st.sampled_from(WINDOWS_MS[2:-2]),
    scheme=st.sampled_from([DAYS, RINGS, Tiered(window_ms=90 * DAY_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS, 90 * DAY_MS))]),
)
def test_a_plan_takes_any_window_over_tiers_that_begin_with_it(window_ms: int, scheme: Tiered | Wheel) -> None:
    made = with_window(shadow_of(scheme), window_ms)
    assert isinstance(made.scheme, Tiered)
    assert (made.scheme.window_ms, made.scheme.tiers_ms[0]) == (window_ms, window_ms)
    assert (made.revision, made.subscriptions) == (2, ("billing",))
    assert far_ms(made) == window_ms + 2 * made.guard_ms


def test_only_windows_that_lift_more_are_tried() -> None:
    plan = shadow_of(DAYS)
    assert {far_ms(one) < far_ms(plan) for one in windows(plan)} == {True}
    shortest = min(windows(plan), key=far_ms)
    assert windows(shortest) == []


dues = st.lists(st.tuples(st.integers(-HOUR_MS, 3 * DAY_MS), st.booleans(), st.booleans()), min_size=1, max_size=40)


@given(entries=dues, far=st.sampled_from([15 * MINUTE_MS, HOUR_MS, DAY_MS]), breaks=st.sets(st.integers(0, 40)))
def test_gaps_at_any_window_are_those_that_a_plan_with_it_is_counted_with(
    entries: list[tuple[int, bool, bool]], far: int, breaks: set[int]
) -> None:
    """The count of one read says of every window what a read with that plan would say."""
    ledgers = [Ledger(ledger_id=3, entries=len(entries), size_bytes=0, offloaded=False)]
    ranges = [
        AckedRange(EntryPosition(3, number - 1), EntryPosition(3, number))
        for number, (_, is_acked, _) in enumerate(entries)
        if is_acked
    ]

    def read_with(move_decider: MoveDecider) -> SurveyCounters:
        tally = SurveyCounters(move_decider, {"billing": Acked(EntryPosition(3, -1), ranges)}, ledgers, NOW_MS)
        for number, (remaining_ms, _, is_encrypted) in enumerate(entries):
            if number in breaks:
                tally.new_stretch()
            tally.see(entry_of(3, number, deliver_at_ms=NOW_MS + remaining_ms, is_encrypted=is_encrypted))
        return tally

    there = MoveDecider(shadow_of(DAYS))
    there.far_ms = far
    for last in (None, EntryPosition(3, len(entries) - 1)):
        assert read_with(MoveDecider(shadow_of(DAYS))).gaps("billing", last, far) == read_with(there).gaps(
            "billing", last
        )
    stays = [ms < far or encrypted for ms, acked, encrypted in entries if not acked]
    assert read_with(there).stays(far) == sum(stays)


def test_a_window_that_the_plan_has_already_makes_no_revision() -> None:
    narrow = with_window(shadow_of(DAYS), 10 * MINUTE_MS)
    assert narrow.revision == 2
    assert with_window(narrow, 10 * MINUTE_MS) == narrow


@pytest.mark.parametrize("scheme", [DAYS, RINGS])
@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_written_into_a_plan_is_said_with_who_goes_by_it(scheme: Tiered | Wheel, is_written: bool) -> None:
    before = shadow_of(scheme)
    said = written_words(with_window(before, 2 * HOUR_MS), before, "my plan.toml", is_written=is_written)
    assert 'my plan.toml: revision = 2, [tiered] window = "2h", tiers = ["2h"' in said
    assert "(before: revision = 1" in said
    assert "each shadow run" in said.lower()
    assert ("Nothing was written" in said) is not is_written
