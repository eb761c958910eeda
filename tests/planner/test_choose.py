"""Choice: the constraints are kept, the front is one, and the sentences say what the numbers say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.workloads import START_MS, WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.choice.choose import Choice, choose
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.choice.reasons import alternatives, describe, front_of_alternatives, tied_with
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.summary.cells import Cells

pytestmark = pytest.mark.short

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
# Less volume than such a topic has in life, and a lower limit of the broker to match.
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, a tenth", "gap_limit_ranges": 300})


@pytest.fixture(scope="module")
def cells() -> Cells:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(3), 60_000, 2)
    return Cells.of_timers(sent_ms, due_ms).bounded(30_000)


@pytest.fixture(scope="module")
def choice(cells: Cells) -> Choice:
    # Every fourth: all of them are priced in test_cli_plan.py.
    return choose(cells, BASE, PROFILE, candidates=candidate_plans(BASE, int(cells.delay_max_ms.max()))[::4])


def test_the_recommended_plan_keeps_every_limit_and_is_the_cheapest_that_does(choice: Choice) -> None:
    assert not choice.recommended.broken
    assert choice.recommended.evaluation.gap_fraction <= 0.8
    fitting = [one for one in choice.candidates if not one.broken]
    assert choice.recommended.cost_writes_per_second == min(one.cost_writes_per_second for one in fitting)
    assert choice.considered >= 75


def test_partitions_are_the_fewest_that_do(choice: Choice, cells: Cells) -> None:
    for one in choice.candidates[::10]:
        partitions = one.evaluation.plan.partitions
        needed = one.evaluation.peak_gaps_per_topic / 240
        assert partitions == max(int(np.ceil(needed)), 1)
    native = next(one for one in choice.candidates if isinstance(one.evaluation.plan.scheme, Native))
    silence = Constraints(gap_fraction=1.0, silence_seconds=0.02)
    simulation = simulation_of(native.evaluation.plan, cells)
    assert silence.least_partitions(simulation, PROFILE) == int(np.ceil(simulation.peak_topic_pending * 90e-6 / 0.02))


def test_a_margin_holds_so_many_times_the_gaps_to_the_limit(choice: Choice, cells: Cells) -> None:
    plain, careful = Constraints(), Constraints(gap_margin=1.25)
    simulation = simulation_of(replace(BASE, scheme=Native()), cells)
    assert careful.least_partitions(simulation, PROFILE) == int(np.ceil(simulation.gaps.peak_topic_gaps * 1.25 / 240))
    fits = next(one.evaluation for one in choice.candidates if 0.65 < one.evaluation.gap_fraction <= 0.8)
    assert "gap_fraction" not in plain.broken_by(fits)
    assert "gap_fraction" in careful.broken_by(fits)
    room, tighter = (
        next(room.times for room in limits.rooms(fits, PROFILE) if "80%" in room.limit) for limits in (plain, careful)
    )
    assert tighter == pytest.approx(room / 1.25)
    with pytest.raises(ValueError, match=r"gap_margin = 0\.9: 1 or more"):
        Constraints(gap_margin=0.9)


def test_no_plan_of_the_front_is_beaten_in_both(choice: Choice) -> None:
    front = front_of_alternatives(alternatives(choice), choice.recommended.evaluation.plan)
    assert len(front) >= 3
    points = [(one.cost, one.gaps.value) for one in front]
    assert points == sorted(points)
    assert [gaps for _, gaps in points] == sorted((gaps for _, gaps in points), reverse=True)
    for one in choice.candidates:
        if not one.broken:
            cost, gaps = one.cost_writes_per_second, one.evaluation.peak_gaps_per_partition
            assert any(other_cost <= cost and other_gaps <= gaps for other_cost, other_gaps in points)


def test_of_two_with_as_many_gaps_the_cheaper_alone_is_of_the_front(choice: Choice) -> None:
    found, chosen = alternatives(choice), choice.recommended.evaluation.plan
    front = front_of_alternatives(found, chosen)
    dearer = [replace(one, cost=one.cost + 1) for one in front]
    assert front_of_alternatives([*dearer, *found], chosen) == front


def test_the_article_s_rules_are_priced_beside_it(choice: Choice) -> None:
    by_rule = dict(choice.article)
    assert set(by_rule) == {"1 day", "1 day and 5 days", "12 hours", "day topics"}
    one_day = by_rule["1 day"].evaluation
    # With 17 timers a second, tiers of a day and of five cut natively 477,689 gaps to 71,354, by a factor of 6.7; half
    # of a day's window halves that again.
    assert by_rule["12 hours"].evaluation.peak_gaps < one_day.peak_gaps < choice.native.peak_gaps
    assert by_rule["1 day and 5 days"].evaluation.hops_mean < one_day.hops_mean
    assert isinstance(by_rule["day topics"].evaluation.plan.scheme, Calendar)


def test_rooms_say_at_which_volume_a_limit_is_reached(cells: Cells, choice: Choice) -> None:
    assert [room.times for room in choice.rooms] == sorted(room.times for room in choice.rooms)
    gaps = next(room for room in choice.rooms if room.limit.startswith("80% of the broker"))
    plan = choice.recommended.evaluation.plan
    grown = choose(cells, BASE, PROFILE, candidates=[plan], growth=gaps.times * 0.99)
    assert grown.recommended.evaluation.plan.partitions == plan.partitions
    beyond = choose(cells, BASE, PROFILE, candidates=[plan], growth=gaps.times * 1.01)
    assert beyond.recommended.evaluation.plan.partitions == plan.partitions + 1


def test_a_cost_is_what_is_written_and_topics_and_a_relay_at_their_prices(choice: Choice) -> None:
    limits = Constraints(topic_writes_per_second=3.0, relay_writes_per_second=7.0)
    for one in (choice.candidates[0], choice.recommended):
        evaluation, cost = one.evaluation, limits.cost_of(one.evaluation)
        assert cost.written == pytest.approx(30_000 * evaluation.writes_per_timer / 86_400, rel=0.01)
        assert cost.topics == 3.0 * evaluation.partition_topics
        assert cost.relay == (7.0 if evaluation.needs_relay else 0.0)
        assert cost.writes_per_second == cost.written + cost.topics + cost.relay
        assert one.cost == Constraints().cost_of(evaluation)
    said = next(reason for reason in choice.reasons if reason.startswith("It costs as much as "))
    assert f"{choice.recommended.cost_writes_per_second:,.1f} entries a second" in said
    assert "; the cheapest of another kind, " in said


def test_who_states_other_prices_gets_another_plan(choice: Choice, cells: Cells) -> None:
    few = _plans(choice)[::4]  # native delays first
    plans = {}
    for name, limits in {
        "topics": Constraints(topic_writes_per_second=0.0, relay_writes_per_second=1_000.0),
        "a relay": Constraints(topic_writes_per_second=1_000.0, relay_writes_per_second=0.0),
    }.items():
        plans[name] = choose(cells, BASE, PROFILE, limits, candidates=few).recommended
    assert not plans["topics"].evaluation.needs_relay
    assert plans["topics"].evaluation.partition_topics > plans["a relay"].evaluation.partition_topics
    assert plans["a relay"].evaluation.needs_relay


def test_a_cursor_of_ranges_never_fills_the_frame_and_one_of_bits_does(choice: Choice) -> None:
    native = choice.native
    as_ranges = Constraints().rooms(native, PROFILE)
    assert not any("persisted cursor" in room.limit for room in as_ranges)
    (frame,) = [
        room for room in Constraints().rooms(native, BrokerProfile.named("4.2")) if "persisted cursor" in room.limit
    ]
    assert frame.limit == "a persisted cursor of 5.2 MB"
    assert frame.times == pytest.approx(BrokerProfile.named("4.2").frame_limit_bytes * 8 / native.span_entries)
    assert all(room.timers_per_day == pytest.approx(room.times * native.timers_per_day) for room in as_ranges)


def test_where_nothing_fits_it_says_so_and_names_what_is_broken(cells: Cells) -> None:
    impossible = Constraints(partition_topics=1, hops_max=0)
    native = Plan(due_topic="persistent://a/b/c", subscriptions=("s",))
    found = choose(cells, BASE, PROFILE, impossible, candidates=[native])
    assert found.recommended.broken == ("partition_topics",)
    assert any("No candidate keeps every limit" in reason and "partition_topics" in reason for reason in found.reasons)


# ---------------------------------------------------------------------------------------------- small, medium, large
def test_a_history_that_native_delays_can_hold_stays_native() -> None:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(3), 20_000, 10)
    few = candidate_plans(BASE, 7 * DAY_MS)[::8]
    found = choose(Cells.of_timers(sent_ms, due_ms), BASE, BrokerProfile.named("4.0"), candidates=few)
    plan = found.recommended.evaluation.plan
    assert (plan.scheme, plan.partitions) == (Native(), 1)
    assert found.reasons[0].startswith("Stay with native delays on one partition: about ")
    assert any(" and 0.5 stand for its 1 partition topic" in reason for reason in found.reasons)
    assert not any("Native delays on one partition peak" in reason for reason in found.reasons)


@pytest.mark.short
def test_the_next_partition_is_cheaper_than_the_first_relay() -> None:
    # All sent within a day and due within the week after: a burst of n, so at most n / 4 = 12,500, of 8,000 allowed.
    rng = np.random.default_rng(12)
    sent_ms = START_MS + rng.integers(0, DAY_MS, 50_000)
    cells = Cells.of_timers(sent_ms, sent_ms + rng.integers(DAY_MS, 8 * DAY_MS, 50_000)).bounded(20_000)
    found = choose(cells, BASE, BrokerProfile.named("4.0"), candidates=candidate_plans(BASE, 8 * DAY_MS)[::8])
    plan = found.recommended.evaluation.plan
    assert found.native.peak_gaps == pytest.approx(12_500, rel=0.02)
    assert (plan.scheme, plan.partitions) == (Native(), 2)
    assert any(reason.startswith("One partition is enough for a ") for reason in found.reasons)


def test_sixty_partitions_are_dearer_than_a_relay() -> None:
    # 20 million timers in 14 days, by a tenth of them.
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(13), 2_000_000, 14)
    cells = Cells.of_timers(sent_ms, due_ms, level=9).bounded(30_000)
    windows = {1: (1, 6, 24), 3: (3, 12, 48), 12: (12, 48), 24: (24,)}
    tiered = [
        replace(BASE, scheme=Tiered(window_ms=hours * HOUR_MS, tiers_ms=tuple(tier * HOUR_MS for tier in tiers)))
        for hours, tiers in windows.items()
    ]
    found = choose(cells, BASE, BrokerProfile.named("4.0"), candidates=[BASE, *tiered], growth=10.0)
    _, one_hour, three_hours, twelve_hours, one_day = (one.evaluation for one in found.candidates)
    # Played exactly, 20 million such timers peak at 472,811 gaps natively, and at these under three of the plans.
    for evaluation, exact in ((one_hour, 6_699), (twelve_hours, 37_596), (one_day, 71_283)):
        assert evaluation.peak_gaps == pytest.approx(exact, rel=0.03)
    assert found.native.peak_gaps == pytest.approx(472_811, rel=0.01)
    needs = [one.evaluation.plan.partitions for one in found.candidates]
    assert needs == [pytest.approx(472_811 / 8_000, abs=1.5), 1, 2, 5, pytest.approx(9, abs=1)]
    # With more hops, most of which go in groups: in 1.34 entries a timer instead of 1.33.
    assert found.recommended.evaluation == one_hour
    assert one_hour.hops_mean > 1.5 * three_hours.hops_mean
    assert one_hour.writes_per_timer == pytest.approx(three_hours.writes_per_timer, rel=0.02)
    assert f"A 1h window fits one partition; 3h would need 2, 1d {needs[-1]} (estimated)." in found.reasons
    price = f" are written ({one_hour.hops_mean:.2f} hops a timer, so 34% more than without), "
    assert any(price in reason for reason in found.reasons)


def test_a_plan_that_costs_as_much_is_told_as_a_tie(cells: Cells, choice: Choice) -> None:
    # At these prices native delays cost what a tiered plan does: topics decide nothing, and a relay costs what hops do.
    tiered = next(one for one in choice.candidates if isinstance(one.evaluation.plan.scheme, Tiered) and not one.broken)
    native = next(one for one in choice.candidates if isinstance(one.evaluation.plan.scheme, Native))
    plans = [native.evaluation.plan, tiered.evaluation.plan]
    dearer = Constraints(topic_writes_per_second=0.0, relay_writes_per_second=0.0)
    hops = dearer.cost_of(tiered.evaluation).written - dearer.cost_of(native.evaluation).written
    topics = native.evaluation.partition_topics - tiered.evaluation.partition_topics
    assert hops > 0
    assert topics > 0
    even = Constraints(topic_writes_per_second=hops / topics, relay_writes_per_second=0.0)
    found = choose(cells, BASE, PROFILE, even, candidates=plans)
    (rival,) = found.ties
    assert {rival.plan.scheme, found.recommended.evaluation.plan.scheme} == {plan.scheme for plan in plans}
    (said,) = (reason for reason in found.reasons if reason.startswith("A tie: "))
    assert f"{describe(rival.plan)} on " in said
    assert "costs as much within 5%" in said
    # What would break it is named, from the rival's side.
    if rival.evaluation.needs_relay:
        assert "fewer topics" in said
        assert "a relay to run" in said
    else:
        assert "no relay" in said
        assert "more topics" in said
    apart = replace(even, relay_writes_per_second=0.1 * even.cost_of(native.evaluation).writes_per_second)
    without = choose(cells, BASE, PROFILE, apart, candidates=plans)
    assert without.ties == ()
    assert not any("A tie" in reason for reason in without.reasons)


def test_a_candidate_that_was_counted_above_the_limit_is_no_rival(cells: Cells) -> None:
    free = Constraints(topic_writes_per_second=0.0, relay_writes_per_second=0.0)
    choice = choose(cells, BASE, PROFILE, free, candidates=candidate_plans(BASE, int(cells.delay_max_ms.max()))[::4])
    chosen, found = choice.recommended, tied_with(choice)
    assert len(found) > 1
    assert chosen.evaluation.plan.scheme not in {one.plan.scheme for one in found}
    assert all(chosen.cost_writes_per_second <= one.cost <= chosen.cost_writes_per_second * 1.05 for one in found)
    rival, most = found[0].plan, choice.allowance.gaps(found[0].plan)

    def tied(gaps: int, plan: Plan = rival, upper: float = 1.0) -> bool:
        allowance = replace(choice.allowance, upper_of=lambda one: upper if one.scheme == rival.scheme else 1.0)
        ties = tied_with(replace(choice, counted={plan: gaps}, allowance=allowance))
        return rival.scheme in {one.plan.scheme for one in ties}

    assert tied(most)
    assert not tied(most + 1)
    assert not tied(most, upper=1.25)
    assert not tied(most + 1, rival.with_partitions(rival.own_partitions + 1)), "with any number of partitions"


def test_an_empty_history_has_no_plan() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="no timers"):
        choose(Cells.of_timers(none, none), BASE, PROFILE)


@pytest.mark.parametrize(
    "facts", [{"gap_fraction": 0.0}, {"gap_fraction": 1.2}, {"silence_seconds": 0.0}, {"hops_max": -1}]
)
def test_constraints_that_make_no_sense_are_refused(facts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(facts))):
        Constraints(**facts)  # type: ignore[arg-type]


def _plans(choice: Choice) -> list[Plan]:
    return [one.evaluation.plan for one in choice.candidates]


@pytest.fixture(scope="module")
def unpartitioned(cells: Cells) -> Choice:
    base = replace(BASE, partitions=0)
    return choose(cells, base, PROFILE, candidates=candidate_plans(base, int(cells.delay_max_ms.max()))[::4])


def test_on_a_topic_without_partitions_no_plan_asks_for_any(unpartitioned: Choice) -> None:
    plans = [one.evaluation.plan for one in unpartitioned.candidates]
    assert {plan.partitions for plan in plans} == {0}
    assert not any(isinstance(plan.scheme, Calendar) for plan in plans), "a calendar does not use the topic"
    assert unpartitioned.native.plan.partitions == 0
    assert not unpartitioned.recommended.broken
    native = next(one for one in unpartitioned.candidates if isinstance(one.evaluation.plan.scheme, Native))
    assert native.broken == ("gap_fraction",), "it would take several partitions, and it has none"


@pytest.mark.parametrize(
    "scheme",
    [
        Native(),
        Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS)),
        Wheel(rings=(Ring(slot_ms=DAY_MS, slots=80),)),
    ],
)
def test_a_topic_without_partitions_is_priced_as_one_partition(cells: Cells, scheme: Scheme) -> None:
    plan = replace(BASE, scheme=scheme, max_delay_ms=60 * DAY_MS)
    one, none = (evaluate(replace(plan, partitions=partitions), cells, PROFILE) for partitions in (1, 0))
    assert none.peak_gaps_per_partition == one.peak_gaps_per_partition > 0
    assert none.silence_seconds == one.silence_seconds
    assert none.written_entries == one.written_entries
    assert none.consumers == one.consumers
    # That of dead letters, which clients look for.
    assert none.partition_topics == one.partition_topics + int(not one.needs_relay)
    assert (none.dead_letter_topics, none.topics_of_a_partition) == (1, one.topics_of_a_partition)
