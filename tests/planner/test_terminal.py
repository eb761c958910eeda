"""What `timewheel plan` prints, on terminals of any width: every figure whole, and no line too long."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console

from tests.support.workloads import WORKLOADS
from timewheel._report.page import Table
from timewheel.cli.plan import show_planned
from timewheel.cli.planning import FILE_WIDTH, console_for
from timewheel.cli.terminal import LONGEST_FIGURE, show_table
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Native, Plan, Scheme, Tiered
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results import tables as costs
from timewheel.spark_planner.results.facts import Prices
from timewheel.spark_planner.results.report_page import headlines

PRICES = Prices(currency="EUR", million_writes=1_000_000.0, gb_month=9.5, topic_month=1_234.5, relay_month=40.0)
SCHEMES: tuple[Scheme, ...] = (
    Native(),
    Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)),
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
)
SPACE = re.compile(r"\s+")


@pytest.fixture(scope="module")
def planned(spark: SparkSession) -> Planned:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(11), 3_000, 2)
    rows = list(zip(sent_ms.tolist(), due_ms.tolist(), strict=True))
    raw = spark.createDataFrame([*rows, (rows[0][0], rows[0][0] - 1)], "publish_ms bigint, due_ms bigint")
    base = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
    candidates = [Plan(due_topic=base.due_topic, subscriptions=base.subscriptions, scheme=scheme) for scheme in SCHEMES]
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, tiny", "gap_limit_ranges": 100})
    return plan_for(survey(raw, source="mixture.parquet"), "", base, profile, candidates=candidates, as_is=True)


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, no_color=True, highlight=False, width=width)


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_is_cut(planned: Planned, width: int) -> None:
    console = terminal(width)
    show_planned(console, planned, "", PRICES)
    lines = printed(console)
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    # A terminal cuts at its edge, so a figure has to stand in one line.
    native_fit = "\n".join(lines)
    quarantine = tables.quarantine_table(planned.history.statistic)
    assert quarantine is not None
    shown = [
        quarantine,
        tables.plans_table(planned),
        tables.rules_table(planned),
        costs.cost_table(planned, PRICES),
        tables.front_table(planned),
        tables.room_table(planned),
        tables.prediction_table(tables.both(planned)),
    ]
    figures = {text for table in shown for row in table.rows for text in row[1:] if len(text) <= LONGEST_FIGURE}
    assert len(figures) > 50
    assert [figure for figure in figures if figure not in native_fit] == []
    words = [one.value for one in headlines(planned, PRICES)]
    words += [word for sentence in planned.choice.reasons for word in sentence.split()]
    assert [word for word in words if word not in native_fit] == []


def test_a_row_that_does_not_fit_is_a_block_with_every_name() -> None:
    table = Table(caption="c", header=("plan", "partitions", "gaps"), rows=[("a window over tiers", "3", "11,273")])
    console = terminal(30)
    show_table(console, table)
    assert printed(console) == [
        "",
        "c",
        "plan        partitions    gaps",
        "a window             3  11,273",
        "over tiers",
    ]
    narrow = terminal(24)
    show_table(narrow, table)
    assert printed(narrow) == ["", "c", "a window over tiers", "    partitions 3", "    gaps 11,273"]


def test_in_a_pipe_a_row_is_one_line_however_long_it_is() -> None:
    row = ("12:7", "2026-11-26T00:45:58.676Z", "a reason of many words, " * 20 + "and its end")
    table = Table(caption="c", header=("position", "due", "reason"), rows=[row, ("1:2", "-", "short")])
    console = Console(file=io.StringIO(), width=30)
    show_table(console, table)
    lines = printed(console)
    assert len(lines) == 5
    assert [line.split()[0] for line in lines[3:]] == ["12:7", "1:2"]
    assert lines[3].split("  ")[-2:] == [row[1], row[2]]
    assert lines[3].endswith(row[2])


FIGURE = st.text("0123456789,.% EUR", min_size=1, max_size=LONGEST_FIGURE).map(str.strip).filter(bool)
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=LONGEST_FIGURE), min_size=1, max_size=6).map(" ".join)


@given(data=st.data(), width=st.integers(30, 140), columns=st.integers(2, 12))
def test_whatever_is_in_a_table_each_figure_stands_in_one_line(data: st.DataObject, width: int, columns: int) -> None:
    row = st.tuples(WORDS, *[FIGURE.map(lambda text: SPACE.sub(" ", text))] * (columns - 1))
    header = data.draw(st.tuples(*[WORDS] * columns))
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    console = terminal(width)
    show_table(console, Table(caption="c", header=header, rows=rows))
    lines = printed(console)
    assert max(map(len, lines)) <= width
    for figures in rows:
        for figure in figures[1:]:
            assert any(figure in line for line in lines)


def test_who_says_how_wide_the_terminal_is_gets_that_and_a_file_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert console_for(as_json=False).width == 60
    monkeypatch.delenv("COLUMNS")
    assert console_for(as_json=False).width == FILE_WIDTH
