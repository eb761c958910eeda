"""The search for a timer: its way, the guesses within a partition, late relays, and every state that is told."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.stored_plan import StoredPlan
from timewheel.cli.timer import show_whereabouts
from timewheel.core.cancellations import Cancellation, CancellationTable
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.envelope import Envelope, Life
from timewheel.core.ids import GeneratedId, TimerIds
from timewheel.core.names import Names, partition_topic
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Due, Router
from timewheel.core.steps import hop_bound, steps
from timewheel.core.topology import topology
from timewheel.errors import SendTimeUnknown
from timewheel.inspect.whereis import Routes, Span, State, Wanted, Whereabouts, whereis
from timewheel.inspect.whereis.search import Hunt, Mark

NOW_MS = 1_800_000_000_000
SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered": Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)),
    "odd tiers": Tiered(window_ms=7 * HOUR_MS, tiers_ms=(5 * HOUR_MS, 17 * HOUR_MS, 3 * DAY_MS)),
    "broker-held": Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS), hold="broker"),
    "calendar": Calendar(interval_ms=DAY_MS),
    "wheel": Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33))),
}


def plan_of(scheme: Scheme, partitions: int = 4) -> Plan:
    return Plan(
        due_topic="persistent://public/default/t", subscriptions=("billing",), scheme=scheme, partitions=partitions
    )


def played(plan: Plan, sent_ms: int, due_ms: int) -> list[tuple[str, int]]:
    """Topics and times of entering, by what producers and relays ask."""
    router = Router(plan)
    holding = {topic.name: topic.step for topic in topology(plan, sent_ms).holding}
    envelope = Envelope("x", due_ms, sent_ms)
    route = router.route_of_send(due_ms, sent_ms)
    topic, is_due = route.topic, isinstance(route, Due)
    found = [(topic, sent_ms)]
    while not is_due:
        hop = NextHop(router, holding[topic]).delivered(envelope, envelope.entered_ms)
        assert isinstance(hop, Hop)
        topic, envelope, is_due = hop.topic, hop.envelope, hop.is_due
        found.append((topic, envelope.entered_ms))
    return found


scheme = st.sampled_from(sorted(SCHEMES)).map(SCHEMES.__getitem__)
sent = st.integers(NOW_MS - 40 * DAY_MS, NOW_MS)
delay = st.one_of(st.integers(0, 30 * DAY_MS), st.integers(0, 12 * HOUR_MS), st.integers(-MINUTE_MS, 10))


SWEPT_MS = NOW_MS // HOUR_MS * HOUR_MS - 5 * MINUTE_MS  # a slot of an hour, less its head start


@example(scheme=SCHEMES["wheel"], sent_ms=SWEPT_MS - MINUTE_MS, delay_ms=20 * MINUTE_MS)  # within a producer's margin
@example(scheme=SCHEMES["wheel"], sent_ms=SWEPT_MS - 2 * MINUTE_MS - 1, delay_ms=20 * MINUTE_MS)
@given(scheme=scheme, sent_ms=sent, delay_ms=delay)
def test_the_computed_way_is_what_router_and_relays_do(scheme: Scheme, sent_ms: int, delay_ms: int) -> None:
    plan = plan_of(scheme)
    way = Routes(plan).way(sent_ms, sent_ms + delay_ms)
    assert [(stop.topic, stop.entered.first_ms) for stop in way] == played(plan, sent_ms, sent_ms + delay_ms)
    assert [stop.hops for stop in way] == list(range(len(way)))
    assert [stop.leaves_ms for stop in way[:-1]] == [stop.entered.first_ms for stop in way[1:]]


@given(scheme=scheme, sent_ms=sent, delay_ms=delay, knows_due=st.booleans(), off_ms=st.integers(-900, 900))
def test_a_timer_on_time_is_at_one_of_the_places_that_are_looked_at(
    scheme: Scheme, sent_ms: int, delay_ms: int, knows_due: bool, off_ms: int
) -> None:
    plan, due_ms = plan_of(scheme), sent_ms + max(delay_ms, 0)
    is_at = [place for place in played(plan, sent_ms, due_ms) if place[1] <= NOW_MS][-1]
    exact = TimerIds(lambda _: bytes(8)).new(sent_ms)

    for wanted in (
        Wanted.of(exact, due_ms=due_ms if knows_due else None),
        Wanted.of("mine", sent_ms=sent_ms + off_ms, due_ms=due_ms if knows_due else None),
    ):
        here, before = Routes(plan).now(wanted, NOW_MS)

        places = [
            stop
            for stop in (*here, *before)
            if stop.topic == is_at[0] and stop.entered.first_ms <= is_at[1] <= stop.entered.last_ms
        ]
        if wanted.generated is not None:
            assert [stop for stop in here if stop in places], "on time, it is where it should be"
            assert places[0].due.first_ms <= due_ms <= places[0].due.last_ms
            if knows_due:
                assert len(here) == 1, "one place, if all is known"


@pytest.mark.parametrize("sends", [1, 5, 777])
def test_a_generated_id_says_when_and_by_whom_it_was_made(sends: int) -> None:
    ids = TimerIds(lambda count: bytes(range(count)))
    timer_id = [ids.new(NOW_MS + number) for number in range(sends)][-1]
    assert GeneratedId.parse(timer_id) == (NOW_MS + sends - 1, "0001020304050607", sends - 1)
    wanted = Wanted.of(timer_id)
    assert wanted.partitions(plan_of(Native()))[0] == (sends - 1) % 4
    assert sorted(wanted.partitions(plan_of(Native()))) == [0, 1, 2, 3]


@pytest.mark.parametrize("other", ["sub-42", "", "0" * 12, "g" * 12 + "-" + "0" * 16 + "-" + "0" * 8])
def test_another_id_says_nothing_and_the_send_time_is_asked_for(other: str) -> None:
    with pytest.raises(SendTimeUnknown, match="--sent-at"):
        Wanted.of(other)
    assert Wanted.of(other, sent_ms=5_000, within_ms=10).sent == Span(4_990, 5_010)


def test_what_stands_beside_it_tells_on_which_side_it_is() -> None:
    ids, others = TimerIds(lambda _: bytes(8)), TimerIds(lambda count: b"1" * count)
    before, same, wanted_id, after = (ids.new(at_ms) for at_ms in (1_000, 2_000, 2_000, 2_000))
    wanted, entered = Wanted.of(wanted_id, key="k"), Span(9_000, 9_000)

    def side(timer_id: str, entered_ms: int = 9_000) -> int:
        return wanted.side_of(Envelope(timer_id, 99_000, entered_ms), entered)

    assert (side("any", 8_999), side("any", 9_001), side("any")) == (-1, 1, 0)
    assert (side(before), side(same), side(after)) == (-1, -1, 1), "timers of one slot keep the order of their sends"
    assert side(others.new(2_000)) == 0, "by another producer, in the same millisecond"
    assert wanted.partitions(plan_of(Native())) == wanted.partitions(plan_of(Native()))[:1], "a key has one partition"


@given(
    times=st.lists(st.integers(0, 10_000), min_size=1, max_size=300).map(sorted),
    chosen=st.integers(0, 10**6),
    start=st.integers(0, 400),
    step=st.sampled_from([1, 7]),
)
def test_a_hunt_ends_and_finds_what_is_there(times: list[int], chosen: int, start: int, step: int) -> None:
    wanted = chosen % len(times)
    start = min(start, len(times))
    hunt = Hunt(len(times), first=0, start=start, entered_ms=times[wanted])
    looked: list[int] = []
    while (number := hunt.next()) is not None and number != wanted:
        looked.append(number)
        side = (times[number] > times[wanted]) - (times[number] < times[wanted])
        hunt.saw(Mark(number, times[number]), side if number % step == 0 else 0)
    assert number == wanted
    assert len(looked) == len(set(looked))


def snapshots(times: list[int], is_there: Callable[[int], bool], entered_ms: int, **options: int) -> tuple[int, bool]:
    hunt = Hunt(len(times), entered_ms=entered_ms, **options)
    count = 0
    while (number := hunt.next()) is not None:
        count += 1
        if is_there(number):
            break
        hunt.saw(Mark(number, times[number]), (times[number] > entered_ms) - (times[number] < entered_ms))
    return count, hunt.is_before_all


def test_a_hunt_is_short() -> None:
    times = [10 * number for number in range(100_000)]
    assert snapshots(times, lambda number: number == 77_777, 777_770, first=77_777, start=77_777) == (1, False)
    found, _ = snapshots(times, lambda number: number == 77_777, 777_770, first=0, start=1_000)
    assert found <= 20, "without knowing where to begin"
    assert snapshots(times, lambda _: False, 777_775, first=77_778, start=77_778) == (1, False), "it is not here"
    assert snapshots(times, lambda _: False, -1, first=0, start=0) == (1, True), "its time is over"
    assert snapshots(times, lambda _: False, 10**9, first=100_000, start=100_000) == (0, False), (
        "nothing was sent since"
    )
    assert snapshots(times, lambda _: False, 777_775, first=77_778, start=77_778, slack=5)[0] == 6


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


def stored_late(*entries: tuple[str, Envelope, int, int], plan: Plan = PLAN) -> Any:
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
    admin = stored_late((TIER, hopped(0), 0, 22), (TIER, hopped(1), 22, 23), (TIER, hopped(2), 23, 60))
    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=sent_ms, due_ms=OWN.due_ms))
    assert (found.state, [one.envelope.hops for one in found.sightings][-1]) == (State.HELD, 2)


@pytest.mark.timeout(BROKEN_OFF_S)
@pytest.mark.parametrize("sent_ms", [None, T0_MS])
def test_of_a_timer_that_a_relay_dropped_the_last_copy_is_the_end(sent_ms: int | None) -> None:
    table = CancellationTable()
    table.merge(Cancellation("timer", "own", (T0_MS + 5_000) * 1_000, NOW_MS + DAY_MS))
    admin = stored_late((TIER, hopped(0), 0, 11))
    found = whereis(admin, PLAN, Wanted.of("own", sent_ms=sent_ms, due_ms=OWN.due_ms), cancellations=table)
    assert (found.state, len(found.sightings)) == (State.CANCELLED, 1)


def test_an_id_that_was_sent_once_more_is_not_followed_to_the_other_timer() -> None:
    other = OWN._replace(generation=T0_MS * 1_000, due_ms=T0_MS + 15 * SECOND_MS, entered_ms=T0_MS + 5 * SECOND_MS)
    admin = stored_late((TIER, hopped(0), 0, 11), (DUE, other._replace(hops=1), 12, 15))
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
    assert whereis(stored_late(plan=plan), plan, wanted).state in (State.NOT_FOUND, State.REMOVED)


def test_a_send_time_less_the_span_around_it_is_still_one() -> None:
    assert Wanted.of("own", sent_ms=5_000, within_ms=10_000).sent == Span(1, 15_000)
    assert Wanted.of("own", sent_ms=5_000, within_ms=10_000).knows_sent


def test_what_was_given_up_is_told_apart_from_what_is_not_there() -> None:
    others = [OWN._replace(timer_id=f"a-{number}") for number in range(50)]
    admin = stored_late(*((TIER, one, 0, 60) for one in others))

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
    admin = stored_late((DUE, one, 0, 1), (parked, one, 2, until_s), plan=RETRYING)
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
    admin = stored_late(
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
    found = whereis(stored_late(), PLAN, Wanted.of("own", sent_ms=T0_MS, due_ms=due_ms), cancellations=table)
    assert found.state is (State.CANCELLED if is_cut else State.REMOVED)
    assert (found.cancellation is not None, found.here) == (is_cut, None)


def test_a_cancelled_timer_that_was_not_looked_for_everywhere_may_be_there() -> None:
    table = CancellationTable()
    table.merge(Cancellation("timer", "own", (T0_MS + 5_000) * 1_000, NOW_MS + DAY_MS))
    admin = stored_late(*((TIER, OWN._replace(timer_id=f"a-{number}"), 0, 60) for number in range(9)))
    found = whereis(admin, PLAN, Wanted.of("own", due_ms=OWN.due_ms), max_reads=5, cancellations=table)
    assert (found.state, found.cancellation is not None, len(found.unseen)) == (State.NOT_FOUND, True, 1)


def test_a_place_that_was_looked_at_twice_is_one_line() -> None:
    admin = stored_late((TIER, OWN._replace(timer_id="other"), 0, 500))
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
    admin = stored_late((former, old, sent_s, until_s), (DUE, OWN._replace(timer_id="other"), 20, 21))
    wanted = Wanted.of("own", sent_ms=sent_ms, due_ms=old.due_ms if knows_due else None)

    found = whereis(admin, PLAN, wanted)

    assert found.state is State.NOT_FOUND
    (unseen,) = found.unseen
    assert unseen.what == "topics of earlier plans"
    assert "1 entry waits there" in unseen.reason
    assert "give the file of that plan" in unseen.reason
    assert whereis(stored_late(), PLAN, wanted).unseen == ()
    assert whereis(admin, before, wanted).state in (State.HELD, State.NOT_FOUND)
