"""Where a timer can be: the computed way is the router's own, and the search in a partition comes to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.ids import GeneratedId, TimerIds
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Due, Router
from timewheel.core.topology import topology
from timewheel.errors import SendTimeUnknown
from timewheel.inspect.whereis import Routes, Span, Wanted
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
    route = router.route(due_ms, sent_ms)
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
