"""Timers that are not where the plan says: the search comes to its end, and tells them apart."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.inspect.test_whereis import NOW_MS
from tests.support.stored_plan import StoredPlan
from timewheel.cli.timer import show_whereabouts
from timewheel.core.cancellations import Cancellation, CancellationTable
from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS
from timewheel.core.envelope import Envelope, Life
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.steps import hop_bound, steps
from timewheel.inspect.whereis import Routes, Span, State, Wanted, Whereabouts, whereis

BROKEN_OFF_S = 20
T0_MS = NOW_MS - 27 * SECOND_MS
PLAN = Plan(
    due_topic="persistent://public/default/t",
    subscriptions=("billing",),
    scheme=Tiered(window_ms=5 * SECOND_MS, tiers_ms=(5 * SECOND_MS, 10 * SECOND_MS)),
    guard_ms=500,
    max_delay_ms=5 * MINUTE_MS,
)
WHEEL = Wheel(rings=(Ring(slot_ms=5 * SECOND_MS, slots=90, headstart_ms=1),))
TIER = partition_topic(Names(PLAN).of_step(steps(PLAN)[0])[0], 0)
DUE = partition_topic(PLAN.due_topic, 0)
OWN = Envelope("own", T0_MS + 120 * SECOND_MS, T0_MS)


def stored(*entries: tuple[str, Envelope, int, int], plan: Plan = PLAN) -> Any:
    """Entries: partition, envelope, and in seconds since the send when it was published, and acknowledged."""
    found = StoredPlan(plan, NOW_MS, [])
    for topic, envelope, at_s, until_s in entries:
        found.store(topic, envelope, T0_MS + at_s * SECOND_MS, until_ms=T0_MS + until_s * SECOND_MS)
    return found


def hopped(times: int) -> Envelope:
    return OWN._replace(hops=times, entered_ms=T0_MS + 10 * times * SECOND_MS)


@pytest.mark.timeout(BROKEN_OFF_S)
@pytest.mark.parametrize("sent_ms", [None, T0_MS])
def test_copies_that_a_relay_made_after_an_outage_are_followed_to_the_last(sent_ms: int | None) -> None:
    """It was down for longer than a stay, so several copies of one timer were published in one moment."""
    admin = stored((TIER, hopped(0), 0, 22), (TIER, hopped(1), 22, 23), (TIER, hopped(2), 23, 60))

    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=sent_ms, due_ms=OWN.due_ms))

    assert (found.state, [one.envelope.hops for one in found.sightings][-1]) == (State.HELD, 2)


@pytest.mark.timeout(BROKEN_OFF_S)
@pytest.mark.parametrize("sent_ms", [None, T0_MS])
def test_of_a_timer_that_a_relay_dropped_the_last_copy_is_the_end(sent_ms: int | None) -> None:
    table = CancellationTable()
    table.merge(Cancellation("timer", "own", (T0_MS + 5_000) * 1_000, NOW_MS + DAY_MS))
    admin = stored((TIER, hopped(0), 0, 11))

    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=sent_ms, due_ms=OWN.due_ms), cancellations=table)

    assert (found.state, len(found.sightings)) == (State.CANCELLED, 1)


def test_an_id_that_was_sent_once_more_is_not_followed_to_the_other_timer() -> None:
    other = OWN._replace(generation=T0_MS * 1_000, due_ms=T0_MS + 15 * SECOND_MS, entered_ms=T0_MS + 5 * SECOND_MS)
    admin = stored((TIER, hopped(0), 0, 11), (DUE, other._replace(hops=1), 12, 15))

    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=T0_MS, due_ms=OWN.due_ms))

    assert (found.state, len(found.sightings)) == (State.NOT_FOUND, 1)


@pytest.mark.timeout(BROKEN_OFF_S)
@pytest.mark.parametrize("scheme", [PLAN.scheme, WHEEL])
def test_no_time_that_is_asked_for_makes_the_way_endless(scheme: Tiered | Wheel) -> None:
    """A send time in seconds, as if it were milliseconds: 55 years of stays of ten seconds."""
    plan = Plan(due_topic=PLAN.due_topic, subscriptions=("billing",), scheme=scheme, max_delay_ms=5 * MINUTE_MS)
    wanted = Wanted.of("own", sent_ms=NOW_MS // 1_000, due_ms=NOW_MS)

    here, before = Routes(plan).now(wanted, NOW_MS)

    most = hop_bound(plan) + 2
    assert len(here) + len(before) <= 2 * most
    assert len(Routes(plan).way(wanted.sent.first_ms, NOW_MS)) <= most
    assert whereis(stored(plan=plan), plan, wanted).state in (State.NOT_FOUND, State.REMOVED)


def test_a_send_time_less_the_span_around_it_is_still_one() -> None:
    assert Wanted.of("own", sent_ms=5_000, within_ms=10_000).sent == Span(1, 15_000)
    assert Wanted.of("own", sent_ms=5_000, within_ms=10_000).knows_sent


def test_what_was_given_up_is_told_apart_from_what_is_not_there() -> None:
    others = [OWN._replace(timer_id=f"a-{number}") for number in range(50)]
    admin = stored(*((TIER, one, 0, 60) for one in others))

    def inspect(max_reads: int) -> Whereabouts:
        return whereis(admin, PLAN, Wanted.of("own", due_ms=OWN.due_ms), max_reads=max_reads)

    gave_up, all_seen = inspect(30), inspect(60)

    assert (gave_up.state, gave_up.cost.reads, all_seen.state) == (State.NOT_FOUND, 30, State.NOT_FOUND)
    assert gave_up.reason is not None
    assert "30 entries" in gave_up.reason
    assert "--max-reads" in gave_up.reason
    assert [one.reason for one in gave_up.unseen] == [gave_up.reason]
    assert (all_seen.reason, all_seen.unseen) == (None, ())


RETRYING = replace(PLAN, retry=True)


@pytest.mark.parametrize(("until_s", "state"), [(60, State.PARKED), (5, State.HANDLED)])
def test_a_parked_timer_is_not_handled(until_s: int, state: State) -> None:
    one = OWN._replace(due_ms=T0_MS)
    parked = partition_topic(Names(RETRYING).parked("billing"), 0)
    admin = stored((DUE, one, 0, 1), (parked, one, 2, until_s), plan=RETRYING)

    found = whereis(admin, RETRYING, Wanted.of("own", sent_ms=T0_MS, due_ms=T0_MS))

    assert (found.state, found.unseen) == (state, ())
    assert found.here is not None
    assert found.here.topic == (parked if state is State.PARKED else DUE)
    assert (found.reason is None) is (state is State.PARKED), "what a handler put off for long is not looked for"


def test_a_timer_that_is_to_be_tried_again_is_not_handled() -> None:
    one, first = OWN._replace(due_ms=T0_MS), T0_MS + 3 * SECOND_MS
    attempts = [one._replace(due_ms=first + number * MINUTE_MS, life=Life(number, T0_MS, only_for="billing"))
                for number in (1, 2)]  # fmt: skip
    retry = partition_topic(Names(RETRYING).retry("billing"), 0)
    other = one._replace(timer_id="other", life=attempts[0].life)
    admin = stored(
        (DUE, one, 0, 1), (retry, other, 1, 60), (retry, attempts[0], 1, 2), (retry, attempts[1], 2, 60), plan=RETRYING
    )

    found = whereis(admin, RETRYING, Wanted.of("own", sent_ms=T0_MS, due_ms=T0_MS))

    assert (found.state, found.due_ms) == (State.RETRYING, attempts[1].due_ms)
    assert found.here is not None
    assert (found.here.envelope.life.attempt, found.here.waits_for) == (2, ("billing",))
    assert [stop.topic for stop in found.way] == [RETRYING.due_topic]
    gave_up = whereis(admin, RETRYING, Wanted.of("own", sent_ms=T0_MS, due_ms=T0_MS), max_reads=1)
    assert gave_up.unseen, "one read went to the due topic, and the rest was not looked at"


@pytest.mark.parametrize("due_ms", [None, T0_MS + 20 * SECOND_MS])
@pytest.mark.parametrize("is_cut", [True, False])
def test_of_a_cancelled_timer_nothing_need_be_stored(due_ms: int | None, is_cut: bool) -> None:
    table = CancellationTable()
    if is_cut:
        table.merge(Cancellation("timer", "own", (T0_MS + 5_000) * 1_000, NOW_MS + DAY_MS))

    found = whereis(stored(), PLAN, Wanted.of("own", sent_ms=T0_MS, due_ms=due_ms), cancellations=table)

    assert found.state is (State.CANCELLED if is_cut else State.REMOVED)
    assert (found.cancellation is not None, found.here) == (is_cut, None)


def test_a_cancelled_timer_that_was_not_looked_for_everywhere_may_be_there() -> None:
    table = CancellationTable()
    table.merge(Cancellation("timer", "own", (T0_MS + 5_000) * 1_000, NOW_MS + DAY_MS))
    admin = stored(*((TIER, OWN._replace(timer_id=f"a-{number}"), 0, 60) for number in range(9)))

    found = whereis(admin, PLAN, Wanted.of("own", due_ms=OWN.due_ms), max_reads=5, cancellations=table)

    assert (found.state, found.cancellation is not None, len(found.unseen)) == (State.NOT_FOUND, True, 1)


def test_a_place_that_was_looked_at_twice_is_one_line() -> None:
    admin = stored((TIER, OWN._replace(timer_id="other"), 0, 500))
    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=T0_MS, due_ms=OWN.due_ms))
    places = [(one.topic, one.entered_ms) for one in found.searched]
    assert len(places) > len({*places}), "or this shows nothing"

    console = Console(file=io.StringIO())
    show_whereabouts(console, found, "plan.toml")

    lines = [line for line in console.file.getvalue().splitlines() if "searched" in line]  # type: ignore[attr-defined]
    assert len(lines) == len({*places})
    total = sum(int(line.split()[-2]) for line in lines)
    assert total == sum(one.reads for one in found.searched)


@pytest.mark.parametrize("knows_due", [True, False])
@pytest.mark.parametrize("sent_s", [0, -200])
def test_a_timer_that_may_wait_in_a_topic_of_an_earlier_plan_is_not_said_to_be_nowhere(
    sent_s: int, knows_due: bool
) -> None:
    before = replace(PLAN, scheme=Tiered(window_ms=5 * SECOND_MS, tiers_ms=(5 * SECOND_MS, 90 * SECOND_MS)))
    former = partition_topic(Names(before).of_step(steps(before)[0])[0], 0)
    assert former != TIER
    sent_ms, until_s = T0_MS + sent_s * SECOND_MS, 500
    old = OWN._replace(entered_ms=sent_ms)
    admin = stored((former, old, sent_s, until_s), (DUE, OWN._replace(timer_id="other"), 20, 21))
    wanted = Wanted.of("own", sent_ms=sent_ms, due_ms=old.due_ms if knows_due else None)

    found = whereis(admin, PLAN, wanted)

    assert found.state is State.NOT_FOUND
    (unseen,) = found.unseen
    assert unseen.what == "topics of earlier plans"
    assert "1 entry waits there" in unseen.reason
    assert "give the file of that plan" in unseen.reason
    assert whereis(stored(), PLAN, wanted).unseen == ()
    assert whereis(admin, before, wanted).state in (State.HELD, State.NOT_FOUND)
