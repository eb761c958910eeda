"""The chart and its page: drawn from values, self-contained, and legible in a real browser."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.support.browser import Dom, dom_of
from timewheel._report.gaps import GapChart, Mark, Series, gap_chart
from timewheel._report.page import Page, Table, render_page

CHART = GapChart(
    title="Gap ranges over time",
    caption="Dashed: what the broker keeps.",
    series=[
        Series(name="native, raw client", points=[(0, 0), (15, 9_900), (30, 0)]),
        Series(name="tiered <relay-held>", points=[(0, 0), (15, 281), (30, 0)]),
    ],
    limit=1_000,
    marks=[Mark(at=15.4, name="unload of every topic")],
    time_unit="days of 5 s",
)
PAGE = Page(
    title="timewheel demo",
    verdict="Promises kept.",
    good=True,
    facts=[("Trace", "40,000 timers & more")],
    chart=gap_chart(CHART),
    caption=CHART.caption,
    tables=[Table(caption="What each scheme did.", header=("scheme", "lost"), rows=[("native", "0"), ("wheel", "0")])],
    notes=["Where timewheel loses: entries written."],
    commands=[("Recount:", "awk '$5 > 0 && $10 == 0' ledger.csv")],
)


@pytest.fixture(scope="module")
def dom(tmp_path_factory: pytest.TempPathFactory) -> Dom:
    page = tmp_path_factory.mktemp("report") / "report.html"
    page.write_text(render_page(PAGE), encoding="utf-8")
    return dom_of(page)


def test_the_browser_shows_the_texts(dom: Dom) -> None:
    for text in ("timewheel demo", "Promises kept.", "unload of every topic", "tiered <relay-held>", "days of 5 s"):
        assert text in dom.texts
    assert "40,000 timers & more" in dom.texts
    assert "awk '$5 > 0 && $10 == 0' ledger.csv" in dom.texts


def test_the_browsers_axis_ends_at_a_round_number_above_the_peak(dom: Dom) -> None:
    (chart,) = dom.by_class["gap-chart"]
    assert chart["data-axis-max"] == "20000"  # of 1, 2, 5 times a power of ten, the first above 9,900 and a twentieth
    ticks = [text for text in dom.texts if re.fullmatch(r"[\d,]+", text)]
    assert {"0", "1", "10", "100", "1,000", "10,000"} <= set(ticks)


def test_the_browsers_limit_line_lies_between_native_and_ours(dom: Dom) -> None:
    (limit,) = dom.by_class["limit"]
    native_y, ours_y = (
        min(float(point.split(",")[1]) for point in dom.by_class[line][0]["points"].split())
        for line in ("line-0", "line-1")
    )
    # Downwards in SVG: the sick line rises above the limit, ours stays below it.
    assert native_y < float(limit["y1"]) < ours_y
    assert "the broker keeps 1,000 ranges" in dom.texts


def test_the_unload_is_a_vertical_line_at_its_moment(dom: Dom) -> None:
    (mark,) = dom.by_class["mark"]
    assert mark["x1"] == mark["x2"]
    # 15.4 of 30 days, between the margins.
    assert float(mark["x1"]) == pytest.approx(70 + (960 - 70 - 190) * 15.4 / 30, abs=0.1)


def test_the_chart_speaks_to_a_screen_reader() -> None:
    svg = gap_chart(CHART)
    assert 'role="img"' in svg
    assert "Peaks: native, raw client 9,900, tiered &lt;relay-held&gt; 281. Limit: 1,000." in svg


def test_lines_differ_in_more_than_colour() -> None:
    first, second = re.findall(r"<polyline [^>]*>", gap_chart(CHART))
    assert "stroke-dasharray" not in first
    assert "stroke-dasharray" in second


def test_the_page_loads_nothing_from_elsewhere() -> None:
    html = render_page(PAGE)
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html


def test_an_empty_chart_is_drawn() -> None:
    svg = gap_chart(GapChart(title="t", caption="c", series=[Series(name="nothing yet", points=[])], limit=10))
    assert 'data-axis-max="20"' in svg


def test_names_at_the_edge_never_overlap() -> None:
    same = [Series(name=f"line {number}", points=[(0, 5), (30, 5)]) for number in range(5)]
    svg = gap_chart(GapChart(title="t", caption="c", series=same, limit=1_000))
    heights = sorted(float(y) for y in re.findall(r'class="name" x="\d+" y="([\d.]+)"', svg))
    assert len(heights) == 5
    assert all(below - above >= 30 for above, below in pairwise(heights))
    assert heights[-1] <= 460 - 20
