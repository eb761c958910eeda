"""The window that leaves so few gaps that the broker keeps them all, and what a window costs, in figures."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.plan_space import plans
from tests.support.plans import shadow_of
from tests.support.stored_entry import entry_of
from timewheel.broker.admin.stats import AckedRange, Ledger
from timewheel.cli.shadow import window_words, written_words
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold, Router, release_at
from timewheel.core.steps import far_ms, spare_ms, steps
from timewheel.shadow.curing import SHARES, WINDOWS_MS, curing, first_plan, fitted, neighbours, windows, with_window
from timewheel.shadow.machine.cursors import Acked
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.survey_counters import SurveyCounters
from timewheel.shadow.survey import Delays, Survey, survey_facts

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


SHORT = shadow_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS)))  # moves what has 70 minutes left
SHORT_FAR_MS = far_ms(SHORT)


def tally_of(plan: Plan, *delays_and_ages_ms: tuple[int, int], **changes: object) -> SurveyCounters:
    """Timers in the order of sending; those that are due are acknowledged."""
    sends = sorted(delays_and_ages_ms, key=lambda one: -one[1])
    handled = [number for number, (delay_ms, age_ms) in enumerate(sends) if delay_ms <= age_ms]
    ranges = (AckedRange(EntryPosition(3, number - 1), EntryPosition(3, number)) for number in handled)
    acked = Acked(EntryPosition(3, -1), ranges)
    ledgers = [Ledger(ledger_id=3, entries=len(sends), size_bytes=0, offloaded=False)]
    tally = SurveyCounters(MoveDecider(plan), {"s": acked}, ledgers, NOW_MS)
    for number, (delay_ms, age_ms) in enumerate(sends):
        sent_ms = NOW_MS - age_ms
        tally.see(entry_of(3, number, publish_ms=sent_ms, deliver_at_ms=sent_ms + delay_ms, **changes))
    return tally


def test_what_stays_native_an_hour_is_counted_from_what_was_sent_since_the_first_pending() -> None:
    """A timer of a day was sent ten hours ago, and 15 an hour of half a minute since: none of these waits now."""
    far, soon = (DAY_MS, 10 * HOUR_MS), [(30_000, 60_000 + number * 4 * MINUTE_MS) for number in range(149)]
    found = tally_of(SHORT, far, *soon)
    assert found.seen - found.settled == 1, "all that is due soon is handled"
    assert HOUR_MS * found.native_per_ms == pytest.approx(15, rel=0.01)
    assert found.sent_for_ms == 10 * HOUR_MS
    # Neither what is moved, nor what has no delay, nor what was moved and is back.
    others = [(DAY_MS, HOUR_MS), (0, HOUR_MS)]
    assert HOUR_MS * tally_of(SHORT, far, *soon, *others).native_per_ms == pytest.approx(15, rel=0.01)
    assert tally_of(SHORT, far, *soon, properties={"tw-id": "t", "tw-timer": "1"}).native_per_ms == 0
    assert HOUR_MS * tally_of(SHORT, far, *soon, batch_size=4).native_per_ms == pytest.approx(60, rel=0.01)


def test_of_what_was_sent_this_moment_no_rate_is_known() -> None:
    assert tally_of(SHORT, (DAY_MS, 0)).sent_for_ms == 0
    assert tally_of(SHORT, (DAY_MS, -HOUR_MS), (MINUTE_MS, 0)).native_per_ms == 0, "by a clock that is fast"


@given(st.integers(0, 2**32), st.floats(0.5, 20))
def test_it_is_the_rate_at_which_they_are_sent(seed: int, a_minute: float) -> None:
    """All that was ever sent, by a service of which nothing is known but that: as a broker keeps it."""
    rng, age_ms, sent = random.Random(seed), 5 * HOUR_MS, []
    while (age_ms := age_ms - round(rng.expovariate(a_minute) * MINUTE_MS)) > 0:
        sent.append((rng.choice([MINUTE_MS, 20 * MINUTE_MS, 50 * MINUTE_MS, 2 * HOUR_MS, DAY_MS]), age_ms))
    kept = next((number for number, (delay_ms, age_ms) in enumerate(sent) if delay_ms > age_ms), len(sent))
    since = sent[kept + 1 :]
    found = tally_of(SHORT, *sent[kept:])
    native = sum(delay_ms < SHORT_FAR_MS for delay_ms, _ in since)
    expected = native / sent[kept][1] if kept < len(sent) else 0
    assert found.native_per_ms == pytest.approx(expected)
    if native > 100:
        # Three of the five delays, but for chance.
        assert MINUTE_MS * found.native_per_ms == pytest.approx(0.6 * a_minute, rel=0.5)


@given(plans("tiered", "wheel"), st.integers(1, 300 * DAY_MS))
def test_no_timer_leaves_for_the_due_topic_with_less_time_than_a_standby_has(plan: Plan, delay_ms: int) -> None:
    router, held = Router(plan), {name: step for step in steps(plan) for name in Router(plan).names.of_step(step)}
    due_ms, now_ms, hops = NOW_MS + min(delay_ms, plan.max_delay_ms), NOW_MS, 0
    while isinstance(route := router.route(due_ms, now_ms), Hold):
        now_ms, hops = release_at(held[route.topic], due_ms, now_ms), hops + 1
    assert not hops or due_ms - now_ms >= spare_ms(plan)


@pytest.mark.parametrize(
    ("scheme", "found"),
    [
        (DAYS, [12 * HOUR_MS, 2 * DAY_MS]),
        (RINGS, [12 * HOUR_MS, 2 * DAY_MS]),  # a slot of a day and its head start move as a window of a day does
        (Tiered(window_ms=5 * MINUTE_MS, tiers_ms=(5 * MINUTE_MS,)), [10 * MINUTE_MS]),  # none is below the guard
        (Tiered(window_ms=90 * MINUTE_MS, tiers_ms=(HOUR_MS,)), [HOUR_MS, 2 * HOUR_MS]),
    ],
)
def test_the_neighbours_of_a_window_are_round_ones(scheme: Tiered | Wheel, found: list[int]) -> None:
    plan = shadow_of(scheme)
    made = [one.scheme.window_ms for one in neighbours(plan) if isinstance(one.scheme, Tiered)]
    assert made == found


@given(plans("tiered", "wheel"))
def test_neighbours_are_plans_on_either_side(plan: Plan) -> None:
    made = [far_ms(one) for one in neighbours(plan)]
    assert far_ms(plan) not in made
    assert made == sorted(made)
    assert sum(one < far_ms(plan) for one in made) <= 1


def test_the_line_has_all_figures_and_json_the_same() -> None:
    found = Survey(
        plan=SHORT, at_ms=NOW_MS, far_ms=far_ms(SHORT), gap_limit=10_000, parts=(), cost=None, findings=(),
        delays=Delays(p50_ms=1, p90_ms=2, p99_ms=3, longest_ms=4), native_per_hour=345.4, native_seen_ms=3 * DAY_MS,
        gaps_with={30 * MINUTE_MS: 2_100, 2 * HOUR_MS: 8_900},
    )  # fmt: skip
    said = window_words(found)
    assert "about 345 messages an hour, by those of the last 3 d, have a delay below 1.17 h, and stay" in said
    assert "5 min late before a moved timer comes late, and 1.17 h before one may come twice" in said
    assert said.endswith("Gaps would be 2,100 with a window of 30 min, 8,900 with a window of 2 h.")
    facts = survey_facts(found)
    assert (facts["native_per_hour"], facts["spare_ms"]) == (345, 5 * MINUTE_MS)
    assert facts["gaps_after_with"] == {"30m": 2_100, "2h": 8_900}


def test_a_ring_without_a_head_start_leaves_no_time() -> None:
    rings = (Ring(slot_ms=HOUR_MS, slots=100, headstart_ms=0), Ring(slot_ms=DAY_MS, slots=40))
    assert spare_ms(shadow_of(Wheel(rings=rings))) == 0
