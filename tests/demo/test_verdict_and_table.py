"""A broken promise is named and fails the run; what is kept is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timewheel.demo.table import HEADER, meaning, plain_lines, row_texts, where_we_lose
from timewheel.demo.verdict import Lateness, Measured, judge, lateness
from timewheel.testing.evidence.ledger import Totals

LIMIT = 1_000  # that the broker keeps
CLEAN = Totals(attempted=1_000, acknowledged=1_000, handled=1_000, lost=0, unexpected=0, duplicated=0, recovered=0)
LOSSY = replace(CLEAN, handled=788, lost=212)
OURS = Measured(
    scheme="tiered-relay", due_peak=310, law_peak=300.0, hold="relay", holding_peak=0, in_flight_window=0,
    index_bytes=1_700, entries_written=4_500, hops=4.5, redelivered_due=17, redelivered_holding=3, totals=CLEAN,
    early=0, late=Lateness(p50_ms=2, p99_ms=14, max_ms=40), samples_per_day=11.5, topics=4,
)  # fmt: skip
NATIVE = replace(
    OURS, scheme="native", hold=None, due_peak=10_100, law_peak=10_000.0, redelivered_due=17_000, early=900,
    totals=replace(CLEAN, duplicated=500), late=Lateness(p50_ms=100, p99_ms=57_000, max_ms=61_000), topics=1,
)  # fmt: skip


SHADOW = replace(
    OURS,
    scheme="shadow",
    early=900,
    totals=replace(CLEAN, duplicated=17),
    late=Lateness(p50_ms=100, p99_ms=900, max_ms=1_100),
)


def broken(**changes: Any) -> tuple[str, ...]:
    return judge([replace(OURS, **changes)], limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).broken


@pytest.mark.parametrize("rows", [[NATIVE, OURS], [NATIVE], [NATIVE, SHADOW]])
def test_what_keeps_its_promises_is_kept_and_plain_clients_may_be_early_and_repeat(rows: list[Measured]) -> None:
    assert judge(rows, limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"totals": replace(CLEAN, lost=1, handled=999)}, "1 timers lost"),
        ({"totals": replace(CLEAN, unexpected=1)}, "1 timers handled that were never sent"),
        ({"totals": replace(CLEAN, duplicated=2)}, "2 timers handled twice"),
        ({"early": 3}, "3 timers handled early"),
        ({"due_peak": 1_001}, "1,001 gaps in due topics, of which the broker keeps 1,000"),
        ({"holding_peak": 1}, "1 gaps in relay-held topics"),
        ({"hold": "broker", "holding_peak": 1_001}, "1,001 gaps in broker-held topics"),
        (
            {"totals": replace(CLEAN, acknowledged=499, handled=499), "send_errors": (501, "Timeout")},
            "only 499 of 1,000 sends were confirmed, so nothing is proven: Timeout",
        ),
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, Any], sentence: str) -> None:
    found = broken(**changes)
    assert len(found) == 1
    assert found[0].startswith("tiered-relay: ")
    assert sentence in found[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"due_peak": 999},
        {"due_peak": 0},
        {"redelivered_due": 5_000},
        {"samples_per_day": 0.5},
        {"late": Lateness(p50_ms=900, p99_ms=60_000, max_ms=90_000)},
        {"hold": "broker", "holding_peak": 900, "in_flight_window": 64},
        {"send_errors": (4, "Timeout"), "totals": replace(CLEAN, acknowledged=996, handled=996)},
    ],
)
def test_a_slow_machine_breaks_no_promise(changes: dict[str, Any]) -> None:
    assert broken(**changes) == ()


@pytest.mark.parametrize(
    ("row", "sabotaged", "honest", "sentence"),
    [
        (replace(NATIVE, redelivered_due=0), LOSSY, CLEAN, "disease"),
        (OURS, CLEAN, CLEAN, "saw no loss"),
        (OURS, LOSSY, LOSSY, "publishes first lost 212"),
    ],
)
def test_native_must_show_the_disease_and_the_checker_must_catch_the_saboteur_and_not_its_twin(
    row: Measured, sabotaged: Totals, honest: Totals, sentence: str
) -> None:
    assert sentence in judge([row, OURS], limit=LIMIT, sabotaged=sabotaged, honest=honest).broken[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"copied": 1}, "1 timers handled as original and as copy"),
        ({"totals": replace(CLEAN, lost=1, handled=999)}, "1 timers lost"),
        ({"due_peak": 1_001}, "1,001 gaps in due topics"),
        ({"holding_peak": 1}, "1 gaps in relay-held topics"),
        ({"never_acked": 101, "behind_ms": 9_000, "allowed_ms": 2_400}, "101 timers that are far from due stayed"),
    ],
)
def test_what_a_shadow_must_not_do_is_named(changes: dict[str, Any], sentence: str) -> None:
    (found,) = judge([replace(SHADOW, **changes)], limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).broken
    assert found.startswith("shadow: ")
    assert sentence in found


def test_a_shadow_that_was_far_behind_is_excused_and_that_is_said() -> None:
    behind = replace(SHADOW, copied=40, due_peak=1_700, behind_ms=3_100, allowed_ms=2_400)
    assert judge([behind], limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).kept
    assert "here it was 3.1 s behind, too much for such days" in where_we_lose([behind])[0]
    assert not judge([replace(behind, behind_ms=2_300)], limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).kept
    lost = replace(behind, totals=replace(CLEAN, lost=1, handled=999))
    assert "1 timers lost" in judge([lost], limit=LIMIT, sabotaged=LOSSY, honest=CLEAN).broken[0]


def test_quantiles() -> None:
    # 101 values 0..100: the rank of the median is 50, of the 99th percentile 99.
    assert lateness(range(101)) == Lateness(p50_ms=50, p99_ms=99, max_ms=100)
    assert lateness([]) == Lateness(p50_ms=0, p99_ms=0, max_ms=0)


def test_a_row_reads_as_its_header_says() -> None:
    assert dict(zip(HEADER, row_texts(OURS), strict=True)) == {
        "scheme": "tiered, relay-held",
        "gaps: due": "310",
        "law": "300 +- 97",  # 15 % of 300 and three roots: 45 + 52
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


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (NATIVE, {"held": "-", "twice": "-", "late p50/p99/max": "0.1 / 57.0 / 61.0 s"}),
        # What it doubled, and not what came again.
        (replace(SHADOW, copied=3), {"scheme": "shadow, plain clients", "twice": "3", "early": "900"}),
        # The law says the most, and the band is wider by what was overdue.
        (replace(SHADOW, overdue=40), {"law": "<= 300 + 137"}),
    ],
)
def test_a_row_of_plain_clients_says_what_it_does_not_promise(row: Measured, shown: dict[str, str]) -> None:
    assert dict(zip(HEADER, row_texts(row), strict=True)).items() >= shown.items()


def test_lines_are_aligned() -> None:
    lines = plain_lines(HEADER, [row_texts(NATIVE), row_texts(OURS)])
    assert len({len(line) for line in lines}) == 1


def test_the_cost_is_said() -> None:
    assert where_we_lose([replace(NATIVE, entries_written=1_000), OURS, SHADOW]) == [
        "native, raw client: 1.00 x entries written, 1 topic, nothing to run",
        "tiered, relay-held: 4.50 x entries written, 4 topics, a relay",
        "shadow, plain clients: 4.50 x entries written, 4 topics, a shadow",
    ]


def test_the_meaning_is_a_sentence_with_the_figures() -> None:
    assert meaning([NATIVE, OURS, SHADOW], LIMIT, kept=True) == (
        "Native delays made 10,100 gaps where the broker keeps 1,000, and an unload brought 17,000 handled messages "
        "again; timewheel had at most 310 gaps and lost no timer, and its consumers handled none early or twice."
    )
    lagged = replace(SHADOW, copied=34, behind_ms=7_100, allowed_ms=3_400)
    assert meaning([lagged], LIMIT, kept=True) == (
        "timewheel had at most 310 gaps and lost no timer; "
        "34 timers were handled as original and as copy, since the shadow lagged by 7.1 s."
    )
    assert meaning([OURS], LIMIT, kept=True).startswith("timewheel had at most 310 gaps")
    assert "a bug" in meaning([NATIVE, OURS], LIMIT, kept=False)
