"""The report of a plan, as a real browser shows it: texts, axes, the limit, and where the lines lie against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser
from pyspark.sql import SparkSession

from tests.support.browser import Shown, chromium, shown
from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.spark_planner.job import Planned, plan_for
from timewheel.spark_planner.results.report_page import MOST_POINTS, report_page
from timewheel.spark_planner.results.tables import plan_label
from timewheel.spark_planner.traffic import survey

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
    return plan_for(survey(raw, source="mixture.parquet"), "", base, PROFILE, candidates=candidates, as_is=True)


@pytest.fixture(scope="module")
def html(planned: Planned) -> str:
    return report_page(planned, plan_file="reminders.toml")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def path(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(browser: Browser, path: Path) -> Iterator[Shown]:
    """For tests that only look."""
    with shown(browser, path) as seen:
        yield seen


def test_the_browser_shows_what_was_found(report: Shown, planned: Planned) -> None:
    texts = report.texts
    text = "\n".join(texts)
    counted = planned.recommended.replay.peak_per_partition.gap_count
    today = planned.native.replay.peak_of_total.gap_count
    assert f"at most {counted:,} gaps in a partition (counted), of 1,000 that the broker keeps" in text
    assert f"native delays on one partition leave {today:,}." in text
    assert "timewheel plan: persistent://acme/crm/<reminders>" in texts
    for heading in ("Why", "Delays", "Alternatives", "Costs and hops", "Growth", "Quarantine"):
        assert heading in texts
    for sentence in planned.choice.reasons:
        assert sentence in texts
    assert f"{planned.recommended.peak_gaps_error:+.1%} off the exact count of the peak" in texts
    assert "timewheel topics ensure reminders.toml --dry-run" in texts
    assert report.complaints == []


def test_the_quarantine_is_told(report: Shown) -> None:
    texts = report.texts
    assert f"7 of {ROWS + 7:,} rows (see Quarantine)" in texts
    assert f"Quarantine: 7 of {ROWS + 7:,} rows could not be used" in texts
    assert "due_before_publish" in texts
    assert "due before it was sent" in texts


def test_the_limit_lies_between_native_and_the_plan(report: Shown, planned: Planned) -> None:
    (limit,) = report.rows("gaps", "limit")
    assert limit["limit"] == 1_000
    # The axis ends at the first of 1, 2, 5 times a power of ten that is a twentieth above the highest point.
    today = planned.native.replay.peak_of_total.gap_count
    assert 1_000 < today < 1_900
    assert report.domain("gaps", "y") == [0, 2_000]
    rows = report.rows("gaps", "lines")
    assert len(rows) <= 2 * (MOST_POINTS + 1)
    native, plan = dict.fromkeys(row["line"] for row in rows)
    native_peak, plan_peak = (max(row["gaps"] for row in rows if row["line"] == name) for name in (native, plan))
    assert native == f"native, 1 partition: peak {native_peak:,}"
    assert native_peak == pytest.approx(today, rel=0.01)  # drawn at the ends of slots, counted at every moment
    native_y, limit_y, plan_y = (report.place("gaps", "y", count) for count in (native_peak, 1_000, plan_peak))
    assert native_y < limit_y < plan_y  # downwards on a screen
    assert "the broker keeps 1,000 ranges" in report.texts
    assert "days since the first timer was sent" in report.texts


def test_the_last_send_stands_where_sending_ended(report: Shown, planned: Planned) -> None:
    (mark,) = report.rows("gaps", "mark-0")
    # Two days of sends; the last timer is due after nine.
    assert mark["at"] == pytest.approx(2, abs=0.05)
    last_days = (
        int(planned.native.replay.gaps.grid.points_ms[-1]) - planned.history.statistic.first_publish_ms
    ) / DAY_MS
    assert report.domain("gaps", "x") == [0, pytest.approx(last_days, abs=0.01)]


def test_every_share_of_delays_is_a_bar_and_they_are_all(report: Shown) -> None:
    shares = [float(bar["share"]) for bar in report.rows("delays", "bars")]
    assert report.page.locator("#delays .mark-rect.role-mark path").count() == len(shares)
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    # The longest is 10m to 1h: exp(-1) of 90 % and no other, 33 %.
    assert report.domain("delays", "x") == [0, 0.5]
    assert max(shares) < 0.65


def test_each_candidate_is_a_dot_and_the_recommended_one_stands_out(report: Shown, planned: Planned) -> None:
    rows = report.rows("choices", "choices")
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["a candidate"] + kinds["no other beats it in both"] == len(SCHEMES)
    assert kinds["no other beats it in both"] == len(planned.choice.front)
    assert kinds["recommended"] == 1
    assert max(rows, key=lambda row: float(row["size"]))["kind"] == "recommended"
    assert report.page.locator("#choices .mark-symbol.role-mark path").count() == len(rows)
    assert {row["plan"] for row in rows if row["kind"] == "recommended"} == {plan_label(planned.plan)}
    for name in ("recommended", "today: native, 1 partition", 'rule "1 day"', 'rule "12 hours"'):
        assert name in report.texts
    (limit,) = report.rows("choices", "limit")
    assert (limit["limit"], report.domain("choices", "y")) == (1_000, [0, 10_000])


def test_the_page_loads_nothing_from_elsewhere(report: Shown, html: str) -> None:
    assert report.asked_for == []
    assert html.count("window.vegaEmbed") == 1  # for three charts


@pytest.mark.parametrize("width", [1_200, 800, 400])
def test_no_column_is_cut(browser: Browser, path: Path, width: int) -> None:
    with shown(browser, path, width=width) as seen:
        assert seen.cut == []
        seen.page.emulate_media(color_scheme="dark")
        assert seen.cut == []


def test_a_pointer_on_a_dot_shows_its_plan_and_both_axes_zoom(browser: Browser, path: Path, planned: Planned) -> None:
    with shown(browser, path) as seen:
        (best,) = (row for row in seen.rows("choices", "choices") if row["kind"] == "recommended")
        x, y = seen.place("choices", "x", best["x"]), seen.place("choices", "y", best["y"])
        seen.point_at("choices", x, y)
        tip = seen.page.locator("#vg-tooltip-element")
        tip.filter(has_text="recommended").wait_for()
        assert plan_label(planned.plan) in tip.inner_text()
        before = seen.domain("choices", "x"), seen.domain("choices", "y")
        seen.page.keyboard.down("Control")
        seen.page.mouse.wheel(0, -200)
        seen.page.keyboard.up("Control")
        seen.until(f"window.charts.choices.scale('x').domain()[0] > {before[0][0]}")
        assert seen.domain("choices", "y")[1] < before[1][1]
