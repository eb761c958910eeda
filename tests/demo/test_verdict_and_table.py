"""A broken promise is named and fails the run; what is kept is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timewheel.demo.table import HEADER, plain_lines, row_texts, where_we_lose
from timewheel.demo.verdict import Lateness, Measured, judge, lateness
from timewheel.testing.evidence.checker import Totals

CLEAN = Totals(attempted=1_000, acknowledged=1_000, handled=1_000, lost=0, unexpected=0, duplicated=0, recovered=0)
LOSSY = replace(CLEAN, handled=788, lost=212)
OURS = Measured(
    scheme="tiered-relay",
    due_peak=310,
    law_peak=300.0,
    hold="relay",
    holding_peak=0,
    in_flight_window=0,
    index_bytes=1_700,
    entries_written=4_500,
    hops=4.5,
    redelivered_due=17,
    redelivered_holding=3,
    totals=CLEAN,
    early=0,
    late=Lateness(p50_ms=2, p99_ms=14, max_ms=40),
    samples_per_day=11.5,
    topics=4,
)
NATIVE = replace(
    OURS,
    scheme="native",
    hold=None,
    due_peak=10_100,
    law_peak=10_000.0,
    redelivered_due=17_000,
    early=900,
    totals=replace(CLEAN, duplicated=500),
    late=Lateness(p50_ms=100, p99_ms=57_000, max_ms=61_000),
    topics=1,
)


SHADOW = replace(
    OURS,
    scheme="shadow",
    early=900,
    totals=replace(CLEAN, duplicated=17),
    late=Lateness(p50_ms=100, p99_ms=900, max_ms=1_100),
)


def broken(**changes: Any) -> tuple[str, ...]:
    return judge([replace(OURS, **changes)], sabotaged=LOSSY, honest=CLEAN).broken


def test_nothing_broken_is_kept() -> None:
    assert judge([NATIVE, OURS], sabotaged=LOSSY, honest=CLEAN).kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"totals": replace(CLEAN, lost=1, handled=999)}, "1 timers lost"),
        ({"totals": replace(CLEAN, unexpected=1)}, "1 timers handled that nobody sent"),
        ({"totals": replace(CLEAN, duplicated=2)}, "2 timers handled twice"),
        ({"early": 3}, "3 timers handled early"),
        ({"redelivered_due": 101}, "101 redelivered"),
        ({"holding_peak": 1}, "1 gaps in relay-held topics"),
        ({"hold": "broker", "holding_peak": 65, "in_flight_window": 64}, "at most the 64 in flight"),
        ({"samples_per_day": 7.9}, "only 7.9 samples a day"),
        ({"send_errors": (4, "Timeout")}, "4 sends failed: Timeout"),
        # 15 % of 300 and three roots: 45 + 52 = 97.
        ({"due_peak": 398}, "peak of 398 gaps is not within 97 of the law's 300"),
        ({"due_peak": 202}, "peak of 202 gaps"),
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, Any], sentence: str) -> None:
    found = broken(**changes)
    assert len(found) == 1
    assert found[0].startswith("tiered-relay: ")
    assert sentence in found[0]


@pytest.mark.parametrize("peak", [204, 396])
def test_a_peak_within_the_tolerance_is_kept(peak: int) -> None:
    assert broken(due_peak=peak) == ()


@pytest.mark.parametrize(("peak", "is_kept"), [(10, True), (300, True), (396, True), (398, False)])
def test_of_a_shadow_the_law_says_the_most(peak: int, *, is_kept: bool) -> None:
    assert (broken(scheme="shadow", due_peak=peak) == ()) is is_kept


def test_broker_held_topics_may_have_what_is_in_flight() -> None:
    assert broken(hold="broker", holding_peak=64, in_flight_window=64) == ()


def test_a_hundredth_of_what_native_delays_bring_again_is_on_its_way() -> None:
    for redelivered, is_kept in ((100, True), (170, True), (171, False)):
        ours = replace(OURS, redelivered_due=redelivered)
        assert judge([NATIVE, ours], sabotaged=LOSSY, honest=CLEAN).kept == is_kept
    few = replace(NATIVE, redelivered_due=40)
    assert judge([few, replace(OURS, redelivered_due=100)], sabotaged=LOSSY, honest=CLEAN).kept


def test_native_must_show_the_disease() -> None:
    healthy = replace(NATIVE, redelivered_due=0)
    assert "disease" in judge([healthy, OURS], sabotaged=LOSSY, honest=CLEAN).broken[0]


def test_native_may_redeliver_be_early_and_repeat() -> None:
    assert judge([NATIVE], sabotaged=LOSSY, honest=CLEAN).kept


def test_plain_clients_before_a_shadow_are_early_and_repeat_as_native_ones() -> None:
    assert judge([NATIVE, SHADOW], sabotaged=LOSSY, honest=CLEAN).kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"copied": 1}, "1 timers handled as original and as copy"),
        ({"totals": replace(CLEAN, lost=1, handled=999)}, "1 timers lost"),
        ({"redelivered_due": 101}, "101 redelivered"),
        ({"holding_peak": 1}, "1 gaps in relay-held topics"),
    ],
)
def test_what_a_shadow_must_not_do_is_named(changes: dict[str, Any], sentence: str) -> None:
    (found,) = judge([replace(SHADOW, **changes)], sabotaged=LOSSY, honest=CLEAN).broken
    assert found.startswith("shadow: ")
    assert sentence in found


def test_a_shadow_that_was_far_behind_is_excused_and_that_is_said() -> None:
    behind = replace(SHADOW, copied=40, due_peak=700, behind_ms=3_100, allowed_ms=2_400)
    assert judge([behind], sabotaged=LOSSY, honest=CLEAN).kept
    assert "here it was 3.1 s behind, too much for such days" in where_we_lose([behind])[0]
    assert not judge([replace(behind, behind_ms=2_300)], sabotaged=LOSSY, honest=CLEAN).kept
    lost = replace(behind, totals=replace(CLEAN, lost=1, handled=999))
    assert "1 timers lost" in judge([lost], sabotaged=LOSSY, honest=CLEAN).broken[0]


def test_a_shadows_row_tells_what_it_doubled_and_not_what_came_again() -> None:
    row = dict(zip(HEADER, row_texts(replace(SHADOW, copied=3)), strict=True))
    assert (row["scheme"], row["twice"], row["early"]) == ("shadow, plain clients", "3", "900")


def test_a_saboteur_that_is_not_caught_breaks_the_checkers_promise() -> None:
    assert "saw no loss" in judge([OURS], sabotaged=CLEAN, honest=CLEAN).broken[0]


def test_the_honest_twin_must_lose_nothing() -> None:
    assert "publishes first lost 212" in judge([OURS], sabotaged=LOSSY, honest=LOSSY).broken[0]


def test_quantiles() -> None:
    # 101 values 0..100: the rank of the median is 50, of the 99th percentile 99.
    assert lateness(range(101)) == Lateness(p50_ms=50, p99_ms=99, max_ms=100)
    assert lateness([]) == Lateness(p50_ms=0, p99_ms=0, max_ms=0)


def test_a_row_reads_as_its_header_says() -> None:
    assert dict(zip(HEADER, row_texts(OURS), strict=True)) == {
        "scheme": "tiered, relay-held",
        "gaps: due": "310",
        "law": "300",
        "held": "0",
        "index kB": "1.7",
        "written": "4.50 x",
        "hops": "4.50",
        "redelivered": "17 + 3",
        "twice": "0",
        "lost": "0",
        "early": "0",
        "late p50/p99/max": "2 / 14 / 40 ms",
    }


def test_natives_row_says_what_it_does_not_promise() -> None:
    row = dict(zip(HEADER, row_texts(NATIVE), strict=True))
    assert (row["held"], row["twice"]) == ("-", "-")
    assert row["late p50/p99/max"] == "0.1 / 57.0 / 61.0 s"


def test_lines_are_aligned() -> None:
    lines = plain_lines(HEADER, [row_texts(NATIVE), row_texts(OURS)])
    assert len({len(line) for line in lines}) == 1


def test_the_cost_is_said() -> None:
    assert where_we_lose([replace(NATIVE, entries_written=1_000), OURS, SHADOW]) == [
        "native, raw client: 1.00 x entries written, 1 topic, nothing to run",
        "tiered, relay-held: 4.50 x entries written, 4 topics, a relay",
        "shadow, plain clients: 4.50 x entries written, 4 topics, a shadow",
    ]
