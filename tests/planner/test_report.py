"""The report of a plan, as a real browser shows it: texts, axes, the limit, and where the lines lie against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from pyspark.sql import SparkSession

from tests.support.browser import Shown, chromium, shown
from tests.support.what_if import at, cheapest
from tests.support.workloads import WORKLOADS
from timewheel._report.choices import Choice, Choices, Named, choice_chart
from timewheel._report.page import Page
from timewheel._report.render import render_page
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.results.facts import Prices, front, gaps
from timewheel.spark_planner.results.report_page import MAX_POINTS, Setting, WhatIf, report_page, sliders, what_if
from timewheel.spark_planner.results.tables import plan_label

ROWS = 20_000
SCHEMES: tuple[Scheme, ...] = (
    Native(),
    Calendar(interval_ms=DAY_MS),
    *(Tiered(window_ms=window_ms, tiers_ms=(window_ms,)) for window_ms in (HOUR_MS, 6 * HOUR_MS, DAY_MS)),
    Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS, 2 * DAY_MS)),
)
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
    assert f"Native delays on one partition leave {today:,} gaps (counted) in a cursor" in text
    assert "timewheel plan: persistent://acme/crm/<reminders>" in texts
    for heading in ("Why", "Costs", "Room to the limits", "What if", "Alternatives", "Delays", "Quarantine"):
        assert heading in texts
    for sentence in planned.choice.reasons:
        assert sentence in texts
    assert f"{planned.recommended.peak_gaps_error:+.1%} off the exact count of the peak" in texts
    assert "timewheel topics ensure reminders.toml --dry-run" in texts
    assert report.complaints == []


def test_the_quarantine_is_told(report: Shown) -> None:
    texts = report.texts
    assert f"7 of {ROWS + 7:,} rows of the history could not be used (see Quarantine)." in texts
    assert f"7 of {ROWS + 7:,} rows" in texts
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
    assert len(rows) <= 2 * (MAX_POINTS + 1)
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
    assert kinds["no other beats it in both"] == len(front(planned))
    assert kinds["recommended"] == 1
    assert max(rows, key=lambda row: float(row["size"]))["kind"] == "recommended"
    assert report.page.locator("#choices .mark-symbol.role-mark path").count() == len(rows)
    counted = planned.recommended.replay.peak_per_partition.gap_count
    (best,) = (row for row in rows if row["kind"] == "recommended")
    assert (best["plan"], best["y"]) == (f"{plan_label(planned.plan)}: counted", counted)
    for name in ("recommended", "today: native, 1 partition", 'rule "1 day"', 'rule "12 hours"'):
        assert name in report.texts
    (limit,) = report.rows("choices", "limit")
    assert (limit["limit"], report.domain("choices", "y")) == (1_000, [0, 10_000])


@pytest.mark.parametrize("width", [1_280, 800, 400])
def test_nothing_is_cut_and_no_labels_are_piled(browser: Browser, path: Path, width: int) -> None:
    with shown(browser, path, width=width) as seen:
        assert (seen.cut, seen.piled) == ([], [])
        seen.page.emulate_media(color_scheme="dark")
        assert (seen.cut, seen.piled) == ([], [])
        # What is folded too, once it is open.
        folds = seen.page.locator("summary")
        assert folds.count() >= 4
        for fold in folds.all():
            fold.click()
        assert seen.page.locator("details:not([open])").count() == 0
        assert seen.cut == []


def test_the_answer_comes_in_order_and_each_figure_says_how_it_is_known(report: Shown, planned: Planned) -> None:
    values = report.page.locator(".headline .value strong").all_inner_texts()
    cost = planned.constraints.cost_of(planned.choice.recommended.evaluation)
    native, plan = planned.native.replay, planned.recommended.replay
    assert values == [
        f"{native.peak_of_total.gap_count:,}",
        f"{plan.peak_per_partition.gap_count:,}",
        f"{cost.written:,.2f}",
    ]
    assert report.page.locator(".headline .known").all_inner_texts() == ["counted", "counted", "estimated"]
    # More than the broker keeps is bad news, and what the plan leaves is good.
    classes = report.page.locator(".headline").evaluate_all("(all) => all.map((one) => one.className)")
    assert classes == ["headline bad", "headline good", "headline"]
    places = [".verdict", "header .lead", "header .point", ".steps pre", ".headlines", "#gaps", "section .lead"]
    places += ["section .point", ".aside", "details", "#what-if", "#choices", "dl"]
    tops = [report.page.locator(place).first.bounding_box() for place in places]
    heights = [box["y"] for box in tops if box is not None]
    assert len(heights) == len(places)
    assert heights == sorted(heights)


def test_reasons_stand_in_order_and_the_rules_of_thumb_are_folded(report: Shown, planned: Planned) -> None:
    page = report.page
    assert page.locator("section .lead").inner_text() == planned.choice.reasons[0]
    sentences = page.locator("section").locator(".lead, .point, .aside")
    assert sentences.count() == len(planned.choice.reasons) <= 5
    rules = page.locator("details", has_text="Simple rules, for comparison")
    assert rules.get_attribute("open") is None
    rows = rules.locator("tbody tr").evaluate_all(
        "(all) => all.map((row) => [...row.children].map((c) => c.textContent))"
    )
    found = {row[0]: row[1:] for row in rows}
    for name, one in planned.choice.article:
        figure = gaps(planned, one.evaluation)
        assert found[name][:3] == [str(one.evaluation.plan.partitions), str(figure), figure.known]


def test_prices_are_shown_where_they_are_given_and_change_nothing_else(html: str, planned: Planned) -> None:
    assert "a month" not in html
    page = report_page(planned, prices=Prices(currency="CHF", topic_month=2.5))
    number = planned.choice.recommended.evaluation.partition_topics
    assert number > 1
    assert f"{2.5 * number:,.2f} CHF a month, native 2.50 CHF" in page
    assert "money a month, at your prices" in page
    assert planned.choice.reasons[0] in page


@pytest.mark.parametrize("width", [1_280, 400])
@pytest.mark.parametrize("gaps", [5, 900, 1_050, 1_500, 3_000, 9_500])
def test_the_name_of_the_recommended_dot_is_on_no_other_name(
    browser: Browser, tmp_path: Path, gaps: int, width: int
) -> None:
    best, other = Choice(plan="best", at=(80.0, gaps)), Choice(plan="other", at=(1.01, 9_900))
    chart = choice_chart(
        Choices(
            title="t",
            caption="c",
            points=[best, other],
            front=[best],
            named=[Named(name="native", choice=other), Named(name="recommended", choice=best, stands_out=True)],
            limit=1_000,
            limit_name="the broker keeps 1,000 ranges a partition",
            x_name="cost, writes a second (logarithmic)",
            y_name="peak gap ranges (logarithmic)",
        )
    )
    path = tmp_path / "chart.html"
    path.write_text(render_page(Page(title="t", verdict="v", good=True, figure=chart)), encoding="utf-8")
    with shown(browser, path, width=width) as seen:
        assert (seen.cut, seen.piled) == ([], [])
        # A dot on the axis would be drawn by half.
        assert seen.domain("choices", "x")[0] < 1.01 / 1.05


# --------------------------------------------------------------------------------------------------------- what if
@pytest.fixture(scope="module")
def statistic(planned: Planned) -> WhatIf:
    return what_if(planned)


def test_the_page_begins_with_the_recommended_plan(report: Shown, planned: Planned, statistic: WhatIf) -> None:
    assert report.page.evaluate("whatIf.setting()") == asdict(statistic.start)
    found = report.page.evaluate("whatIf.cheapest(whatIf.setting())")
    assert found["option"] == statistic.recommended
    assert found["partitions"] == planned.plan.partitions
    said = report.page.locator("#what-if .found").inner_text()
    assert said.endswith("That is the recommended plan.")
    counted = planned.recommended.replay.peak_per_partition.gap_count
    assert report.page.locator("[data-best=gaps]").inner_text() == f"{counted:,}"


def test_the_page_computes_what_python_does_at_every_stop(report: Shown, statistic: WhatIf) -> None:
    start = asdict(statistic.start)
    settings: list[dict[str, Any]] = [
        start | {slider.name: stop} for slider in sliders(statistic).sliders for stop in slider.stops
    ]
    rng = np.random.default_rng(5)
    settings += [
        {slider.name: slider.stops[int(rng.integers(len(slider.stops)))] for slider in sliders(statistic).sliders}
        for _ in range(200)
    ]
    asked = "(settings) => settings.map((setting) => whatIf.cheapest(setting))"
    expected = [asdict(cheapest(statistic, Setting(**setting))) for setting in settings]
    assert report.page.evaluate(asked, settings) == expected
    # Several plans win somewhere, and several numbers of partitions are needed: or this would say little.
    assert len({found["option"] for found in expected}) >= 3
    assert len({found["partitions"] for found in expected}) >= 4


def test_a_slider_that_is_moved_shows_another_answer(browser: Browser, path: Path, statistic: WhatIf) -> None:
    growth = next(slider for slider in sliders(statistic).sliders if slider.name == "growth")
    with shown(browser, path) as seen:
        slider = seen.page.get_by_label("Volume")
        slider.fill(str(len(growth.stops) - 1))
        expected = cheapest(statistic, replace(statistic.start, growth=growth.stops[-1]))
        assert expected.option != statistic.recommended
        own = at(statistic, statistic.recommended, replace(statistic.start, growth=growth.stops[-1]))
        text = seen.page.locator("#what-if .found").inner_text()
        assert text.startswith(f"Cheapest here: {statistic.options[expected.option].name} on ")
        assert f"on {own.partitions} partitions, would cost {100 * (own.cost / expected.cost - 1):.1f} % more." in text
        assert seen.page.locator("[data-best=gaps]").inner_text() == f"{expected.gaps:,.0f}"
        assert seen.page.locator("[data-own=partitions]").inner_text() == f"{own.partitions}"
        assert slider.get_attribute("aria-valuetext") == "20 x"
        assert (seen.cut, seen.complaints) == ([], [])
        seen.page.get_by_role("button").click()
        assert seen.page.evaluate("whatIf.setting()") == asdict(statistic.start)


def test_without_scripts_and_on_paper_the_page_reads_well(browser: Browser, path: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    try:
        page.goto(path.as_uri())
        assert page.locator(".verdict").inner_text().startswith("An unload today ")
        assert page.locator("#gaps noscript p").is_visible()
        assert not page.locator("#what-if").is_visible()
        assert page.locator(".moving noscript p").is_visible()
    finally:
        page.close()
    with shown(browser, path) as seen:
        seen.page.emulate_media(media="print")
        assert not seen.page.locator("#what-if").is_visible()
        folded = seen.page.locator("details").count()
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.locator("details[open]").count() == folded
        seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert seen.page.locator("details[open]").count() == 0


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
