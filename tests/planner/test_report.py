"""The report of a plan, as a real browser shows it: texts, axes, the limit, and where the lines lie against it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.support.browser import Dom, dom_of
from tests.support.workloads import WORKLOADS
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.core.profile import BrokerProfile
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.results.report_page import report_page

ROWS = 20_000
SCHEMES = (Native(), Calendar(interval_ms=DAY_MS), Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, small", "gap_limit_ranges": 1_000})


@pytest.fixture(scope="module")
def planned(spark: SparkSession) -> Planned:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(11), ROWS, 2)
    rows = list(zip(sent_ms.tolist(), due_ms.tolist(), strict=True))
    bad = [(rows[0][0], rows[0][0] - 1)] * 7
    raw = spark.createDataFrame(rows + bad, "publish_ms bigint, due_ms bigint")
    base = Plan(due_topic="persistent://acme/crm/<reminders>", subscriptions=("billing",))
    candidates = [Plan(due_topic=base.due_topic, subscriptions=base.subscriptions, scheme=scheme) for scheme in SCHEMES]
    return plan_for(survey(raw, source="mixture.parquet"), "", base, PROFILE, candidates=candidates)


@pytest.fixture(scope="module")
def html(planned: Planned) -> str:
    return report_page(planned, plan_file="reminders.toml")


@pytest.fixture(scope="module")
def dom(html: str, tmp_path_factory: pytest.TempPathFactory) -> Dom:
    page = tmp_path_factory.mktemp("report") / "report.html"
    page.write_text(html, encoding="utf-8")
    return dom_of(page)


def test_the_browser_shows_what_was_found(dom: Dom, planned: Planned) -> None:
    text = "\n".join(dom.texts)
    counted = planned.recommended.replay.peak_per_partition.gap_count
    today = planned.native.replay.peak_of_total.gap_count
    assert f"at most {counted:,} gaps in a partition, of 1,000 that the broker keeps" in text
    assert f"native delays on one partition leave {today:,}." in text
    assert "timewheel plan: persistent://acme/crm/<reminders>" in dom.texts
    for heading in ("Why", "Delays", "Alternatives", "Costs and hops", "Growth", "Quarantine"):
        assert heading in dom.texts
    for sentence in planned.choice.reasons:
        assert sentence in dom.texts
    assert f"{planned.recommended.peak_gaps_error:+.1%} off the exact count of the peak" in dom.texts
    assert "timewheel topics ensure reminders.toml --dry-run" in dom.texts


def test_the_quarantine_is_told(dom: Dom) -> None:
    assert f"7 of {ROWS + 7:,} rows (see Quarantine)" in dom.texts
    assert f"Quarantine: 7 of {ROWS + 7:,} rows could not be used" in dom.texts
    assert "due_before_publish" in dom.texts
    assert "due before it was sent" in dom.texts


def test_the_limit_lies_between_native_and_the_plan(dom: Dom, planned: Planned) -> None:
    (chart,) = dom.by_class["gap-chart"]
    assert chart["data-limit"] == "1000"
    # The axis ends at the first of 1, 2, 5 times a power of ten that is a twentieth above the highest point.
    today = planned.native.replay.peak_of_total.gap_count
    assert 1_000 < today < 1_900
    assert chart["data-axis-max"] == "2000"
    limit_y = float(dom.by_class["limit"][0]["y1"])
    native_y, plan_y = (
        min(float(point.split(",")[1]) for point in dom.by_class[line][0]["points"].split())
        for line in ("line-0", "line-1")
    )
    assert native_y < limit_y < plan_y  # downwards in SVG
    assert "the broker keeps 1,000 ranges" in dom.texts
    assert "days since the first timer was sent" in dom.texts


def test_the_last_send_stands_where_sending_ended(dom: Dom, planned: Planned) -> None:
    (mark,) = dom.by_class["mark"]
    points = [tuple(map(float, point.split(","))) for point in dom.by_class["line-0"][0]["points"].split()]
    # Two days of sends; the last timer is due after nine.
    last_days = (
        int(planned.native.replay.gaps.grid.points_ms[-1]) - planned.history.statistic.first_publish_ms
    ) / DAY_MS
    width = points[-1][0] - points[0][0]
    assert float(mark["x1"]) == pytest.approx(points[0][0] + width * 2 / last_days, abs=5)


def test_every_share_of_delays_is_a_bar_and_they_are_all(dom: Dom) -> None:
    shares = [float(bar["data-share"]) for bar in dom.by_class["bar"]]
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    (chart,) = dom.by_class["bar-chart"]
    assert float(chart["data-axis-max"]) == 0.5  # the longest is 10m to 1h: exp(-1) of 90 % and no other, 33 %
    assert max(shares) < 0.65


def test_each_candidate_is_a_dot_and_the_recommended_one_stands_out(dom: Dom, planned: Planned) -> None:
    assert len(dom.by_class["candidate"]) == len(SCHEMES)
    assert len(dom.by_class["on-front"]) == len(planned.choice.front)
    assert len(dom.by_class["stands-out"]) == 1
    for name in ("recommended", "today: native, 1 partition", 'rule "1 day"', 'rule "12 hours"'):
        assert name in dom.texts
    (chart,) = dom.by_class["choice-chart"]
    assert (chart["data-limit"], chart["data-axis-max"]) == ("1000", "10000")


def test_the_page_loads_nothing_from_elsewhere(html: str) -> None:
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
