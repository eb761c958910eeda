"""The chaos tests' own parts, without a broker: a judge that could not find a fault would prove nothing."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import MISSING, fields
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos_audit import Copies, Copy, copies_of
from tests.support.chaos_conductor import OUTSIDE, schedule
from tests.support.chaos_ledger import Acknowledged, Beat, Event, Failed, Handled, Hop, Ledger, Tail
from tests.support.chaos_load import Sent
from tests.support.chaos_verdict import (
    Fault,
    FirstCall,
    Kill,
    Verdict,
    costs,
    first_calls,
    judge,
    keeps_every_promise,
    repeats,
    repeats_after_kills,
    silences,
)
from tests.support.chaos_worker import Fuse
from timewheel.client.positions import Position
from timewheel.core.envelope import Envelope

FIRST, SECOND = 100, 200  # two processes; the first is killed at 5,000 ms
KILL = Kill(post="consumer", pid=FIRST, point=OUTSIDE, at_ms=5_000, in_flight=500)
AT = Position(1, 1, -1)


def handled(pid: int, at_ms: int, *, timer_id: str = "a", due_ms: int = 0, topic: str = "t-partition-0") -> Handled:
    return Handled(timer_id, 0, AT, 1, due_ms, topic, pid, at_ms)


def acknowledged(pid: int, at_ms: int) -> Acknowledged:
    return Acknowledged(AT, pid, at_ms)


@pytest.mark.parametrize(
    ("first", "in_flight", "settled"),
    [
        ([handled(FIRST, 3_000)], 1, 0),  # never acknowledged
        # One answer of the broker before the kill: perhaps not sent.
        ([handled(FIRST, 3_000), Beat(FIRST, 3_900), acknowledged(FIRST, 4_000), Beat(FIRST, 4_900)], 1, 0),
        # Two answers: nothing explains the repeat.
        ([handled(FIRST, 3_000), acknowledged(FIRST, 4_000), Beat(FIRST, 4_500), Beat(FIRST, 4_900)], 0, 1),
        # Two, one of them not to this process.
        ([handled(FIRST, 3_000), acknowledged(FIRST, 4_000), Beat(SECOND, 4_500), Beat(FIRST, 4_900)], 1, 0),
        ([handled(SECOND, 3_000)], 0, 1),  # by a process that nobody killed
    ],
)
def test_repeats_that_a_crash_explains_are_told_from_those_that_nothing_explains(
    first: list[Event], in_flight: int, settled: int
) -> None:
    repeats = repeats_after_kills([*first, handled(SECOND, 6_000)], [KILL], settle_beats=2)

    assert (repeats.in_flight, repeats.settled) == (in_flight, settled)
    assert repeats.max_after_one_kill == in_flight


def test_a_copy_at_another_position_is_no_repeat_of_the_first() -> None:
    copy = handled(SECOND, 6_000)._replace(position=Position(1, 2, -1))
    repeats = repeats_after_kills([handled(FIRST, 3_000), copy], [KILL], settle_beats=2)
    assert (repeats.in_flight, repeats.settled, repeats.copied) == (0, 0, 1)

    # And both again: the first was in flight at the kill, the copy with somebody whom nobody killed.
    again = [handled(SECOND, 7_000), copy._replace(at_ms=8_000)]
    repeats = repeats_after_kills([handled(FIRST, 3_000), copy, *again], [KILL], settle_beats=2)
    assert (repeats.in_flight, repeats.settled, repeats.copied) == (1, 1, 1)


def test_each_broken_promise_is_found() -> None:
    fine = verdict_of([handled(FIRST, 10, due_ms=10)])
    keeps_every_promise(fine)

    broken = [
        verdict_of([]),  # lost
        verdict_of([handled(FIRST, 10), handled(SECOND, 11)]),  # twice
        verdict_of([handled(FIRST, 9, due_ms=10)]),  # early
        verdict_of([handled(FIRST, 10), handled(FIRST, 10, timer_id="b")]),  # unexpected
        verdict_of([handled(FIRST, 10)], dead_letters=1),
        verdict_of([handled(FIRST, 10)], extra_on_time=1),
    ]
    for verdict in broken:
        with pytest.raises(AssertionError):
            keeps_every_promise(verdict)


def test_each_figure_of_a_cluster_is_found() -> None:
    two = {"p-1": Sent(due_ms=1_000, confirmed_ms=500), "p-2": Sent(due_ms=2_000, confirmed_ms=500)}
    calm = [handled(FIRST, 1_000, timer_id="p-1", due_ms=1_000), handled(SECOND, 2_000, timer_id="p-2", due_ms=2_000)]
    names = "twice in all", "at the same moment", "early", "longest silence ms", "stuck"

    def figures(*more: Event, stuck: Collection[str] = ()) -> tuple[int, ...]:
        found = judge(two, [*calm, *more], stuck=stuck).cluster_figures
        return tuple(found[name] for name in names)

    assert figures() == (0, 0, 0, 0, 0)
    assert figures(handled(FIRST, 2_099, timer_id="p-2", due_ms=2_000)) == (1, 1, 0, 0, 0)
    assert figures(handled(FIRST, 2_100, timer_id="p-2", due_ms=2_000)) == (1, 0, 0, 0, 0)
    assert figures(Failed("p-2", 2_000, "t-partition-0", FIRST, 1_999)) == (0, 0, 1, 0, 0)
    late = handled(FIRST, 9_000, timer_id="p-3", due_ms=3_000)
    assert figures(late) == (0, 0, 0, 6_000, 0)
    assert figures(late, stuck=["p-3"]) == (0, 0, 0, 0, 1)


def test_a_call_without_an_outcome_waits_until_now() -> None:
    answered = Sent(due_ms=1_000, longest_ms=7)
    assert (answered.waited_ms(90), Sent(due_ms=1_000, begun_ms=60, longest_ms=7).waited_ms(90)) == (7, 30)


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([(1_000, 1_000), (5_000, 5_000)], []),  # nothing was due in between
        ([(1_000, 1_000), (2_000, 5_000)], [(2_000, 5_000)]),
        ([(1_000, 4_000)], [(1_000, 4_000)]),  # no call before
        # A timer that comes last was due all the time; each delivery breaks the silence.
        ([(1_000, 1_000), (3_000, 3_000), (500, 4_000)], [(500, 1_000), (1_000, 3_000), (3_000, 4_000)]),
    ],
)
def test_a_place_is_silent_while_a_timer_is_due_and_none_comes(
    calls: list[tuple[int, int]], found: list[tuple[int, int]]
) -> None:
    first = [FirstCall("p-0", could_ms, at_ms) for could_ms, at_ms in calls]
    elsewhere = [FirstCall("p-1", at_ms, at_ms) for at_ms in range(0, 9_000, 100)]

    assert sorted(silences([*first, *elsewhere])) == [("p-0", begin_ms, end_ms) for begin_ms, end_ms in found]


def test_a_timer_could_be_delivered_once_it_was_due_and_stored() -> None:
    sent = {"p-1": Sent(due_ms=1_000, confirmed_ms=3_000), "p-2": Sent(due_ms=1_000, confirmed_ms=9_000)}
    calls = [handled(FIRST, 4_000, timer_id=name, due_ms=1_000) for name in ("p-1", "p-2", "p-3")]

    assert [call.late_ms for call in first_calls(sent, calls)] == [1_000, 0, 3_000]


def test_a_fault_costs_what_comes_until_the_next_one() -> None:
    faults = [Fault(name=name, begin_ms=begin_ms, end_ms=begin_ms) for name, begin_ms in (("a", 1_000), ("b", 20_000))]
    events = [
        handled(FIRST, 500, timer_id="p-0", due_ms=500),
        handled(FIRST, 9_000, timer_id="p-1", due_ms=2_000),
        handled(SECOND, 9_001, timer_id="p-1", due_ms=2_000),
        handled(FIRST, 21_000, timer_id="p-2", due_ms=20_500),
    ]

    first, second = costs({}, events, faults)
    assert (first.silence_ms, first.late_until_ms, first.late_max_ms) == (7_000, 8_000, 7_000)
    assert (first.twice, first.entries, first.at_the_same_moment) == (1, 1, 1)
    assert (second.silence_ms, second.late_until_ms, second.twice) == (500, 0, 0)


def test_a_copy_is_told_from_an_acknowledgement_that_was_forgotten() -> None:
    first, again = handled(FIRST, 1_000), handled(SECOND, 9_000)
    copy = again._replace(position=AT._replace(entry=2))

    def causes(*events: Event, sends: int = 1) -> list[str]:
        return [one.cause for one in repeats({"a": Sent(due_ms=0, sends=sends)}, events)]

    assert (causes(first), causes(first, again, sends=2)) == ([], ["entry"])
    assert (causes(first, copy), causes(first, copy, sends=2)) == (["hop"], ["sender"])


def test_a_reload_excuses_a_few_copies_that_the_broker_made_and_none_that_a_relay_made() -> None:
    keeps_every_promise(verdict_of([handled(FIRST, 10)], extra_on_time=1), reloads=1)

    for verdict in (
        verdict_of([handled(FIRST, 10)], extra_on_time=1, extra_by_relays=1),
        verdict_of([handled(FIRST, 10)], extra_on_time=21),
    ):
        with pytest.raises(AssertionError):
            keeps_every_promise(verdict, reloads=1)


def verdict_of(events: list[Event], **copies: int) -> Verdict:
    """Over one timer, ``a``, that was sent and confirmed."""
    none = {field.name: 0 for field in fields(Copies) if field.default is MISSING}
    counts: dict[str, Any] = {**none, "stored": 1, "on_time": 1, **copies}
    return judge({"a": Sent(due_ms=0, confirmed_ms=1)}, events, Copies(**counts))


@pytest.mark.parametrize(
    ("sequence_ids", "sends", "extra_on_time", "extra_late", "resent"),
    [
        ((1, 2), {"a": 1}, 1, 0, 0),
        ((1, 2), {}, 1, 0, 0),
        ((1, 2), {"a": 2}, 0, 0, 1),  # the sender could not know that the first was stored
        ((1, 2, 3), {"a": 2}, 1, 0, 1),
        ((1,), {"a": 2}, 0, 0, 0),  # and it was not
        ((1, 0), {"a": 1}, 0, 1, 0),  # by the late lane
        ((1, 0), {"a": 2}, 0, 0, 1),
    ],
)
def test_a_copy_that_its_sender_made_is_told_from_the_copies_of_relays(
    sequence_ids: tuple[int, ...], sends: dict[str, int], extra_on_time: int, extra_late: int, resent: int
) -> None:
    copy = Copy(0, Position(1, 2, -1), Envelope(timer_id="a", due_ms=9_000, hops=1, entered_ms=1_000), 2_000)
    hops = [Hop("a", 1, "relay" if sequence_id else "", sequence_id, 1, 1_500) for sequence_id in sequence_ids]

    found = copies_of([copy] * len(hops), hops, sends)

    assert (found.extra_on_time, found.extra_late, found.resent) == (extra_on_time, extra_late, resent)
    assert found.extra_by_relays == 0
    assert len(found.examples) == bool(extra_on_time)


def test_how_late_timers_were_handed_out_is_told() -> None:
    verdict = verdict_of([handled(FIRST, 1_000 + late_ms, due_ms=1_000) for late_ms in range(200)])

    assert (verdict.late_p50_ms, verdict.late_p99_ms, verdict.late_max_ms) == (100, 198, 199)


def test_a_copy_tells_how_long_after_its_release_its_last_hop_was_made() -> None:
    sent = Envelope("a", due_ms=5_000, entered_ms=1_000)

    assert Copy(0, AT, sent.hopped(2_000), sent_ms=2_030).lag_ms == 30
    assert Copy(0, AT, sent, sent_ms=1_030).lag_ms == 0


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger, tail = Ledger(path), Tail(path)
    ledger.record(Handled, "a", 0, AT, 1, 10, "t")
    with path.open("a") as file:
        file.write('["Handled", "b", 0, [1')

    assert [event.timer_id for event in tail.read() if isinstance(event, Handled)] == ["a"]
    assert list(tail.read()) == []


def test_a_seed_gives_the_same_schedule_and_every_point_has_its_turn() -> None:
    points = {"one": 1, "many": 1_000}

    drawn = [list(islice(schedule(random.Random(seed), points), 30)) for seed in (7, 7, 8)]

    assert drawn[0] == drawn[1] != drawn[2]
    fuses = [one for one in drawn[0] if isinstance(one, Fuse)]
    assert [sum(fuse.point == point for fuse in fuses) for point in points] == [10, 10]
    assert all(1 <= fuse.passes <= points[fuse.point] for fuse in fuses)
