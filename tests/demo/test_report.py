"""The chart and its page: drawn from values, self-contained, and legible in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser import Shown, chromium, shown
from tests.support.demo_result import demo_result
from timewheel._report.gap_chart import GapChart, Mark, Series, gap_chart
from timewheel._report.page import Fold, Headline, Page, Section, Table
from timewheel._report.render import render_page
from timewheel.demo.results import Files, save
from timewheel.demo.table import LABELS

HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
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
    figure=gap_chart(CHART),
    tables=[Table(caption="What each scheme did.", header=("scheme", "lost"), rows=[("native", "0"), ("wheel", "0")])],
    notes=["Where timewheel loses: entries written."],
    commands=[("Recount:", "awk '$5 > 0 && $10 == 0' ledger.csv")],
)
NATIVE, TIERED = "native, raw client: peak 9,900", "tiered <relay-held>: peak 281"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def _written(folder: Path, page: Page) -> Path:
    path = folder / "report.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(tmp_path_factory.mktemp("report"), PAGE)


@pytest.fixture(scope="module")
def report(browser: Browser, path: Path) -> Iterator[Shown]:
    """For tests that only look."""
    with shown(browser, path) as seen:
        yield seen


@pytest.fixture
def touched(browser: Browser, path: Path) -> Iterator[Shown]:
    """For tests that change what is seen."""
    with shown(browser, path) as seen:
        yield seen


def test_the_browser_shows_the_texts(report: Shown) -> None:
    for text in ("timewheel demo", "Promises kept.", "unload of every topic", NATIVE, TIERED, "days of 5 s"):
        assert text in report.texts
    assert "40,000 timers & more" in report.texts
    assert "awk '$5 > 0 && $10 == 0' ledger.csv" in report.texts
    assert report.complaints == []


def test_the_unload_is_a_vertical_line_at_its_moment(report: Shown) -> None:
    drawn = report.page.locator("#gaps .mark-rule.role-mark line").evaluate_all(
        "(lines) => lines.map((line) => [line.transform.baseVal[0].matrix.e, line.getAttribute('x2')])"
    )
    # Lines across have a length along x. 15.4 of 30 days.
    upright = [x for x, length in drawn if float(length) == 0]
    assert upright == [pytest.approx(report.place("gaps", "x", 30) * 15.4 / 30, abs=1)]


def test_a_pointer_near_a_line_shows_its_figures(touched: Shown) -> None:
    touched.point_at("gaps", touched.place("gaps", "x", 15), touched.place("gaps", "y", 281) + 3)
    tip = touched.page.locator("#vg-tooltip-element")
    tip.filter(has_text="281").wait_for()
    assert tip.inner_text().split("\n") == [f"line\t{TIERED}", "days of 5 s\t15.00", "gap ranges\t281"]


def test_a_click_on_a_name_leaves_its_line_and_a_double_click_brings_all_back(touched: Shown) -> None:
    lines = touched.page.locator("#gaps .mark-line.role-mark path")
    opacities = "(lines) => lines.map((line) => Number(getComputedStyle(line).opacity))"
    assert lines.evaluate_all(opacities) == [1, 1]
    touched.page.locator("#gaps .role-legend-label text", has_text="native").click()
    touched.until("window.charts.gaps.signal('shown').line !== undefined")
    native, tiered = lines.evaluate_all(opacities)
    assert (native, tiered < 0.1) == (1, True)
    touched.point_at("gaps", 60, 60)
    touched.page.mouse.dblclick(*touched.point_at("gaps", 60, 60))
    touched.until("window.charts.gaps.signal('shown').line === undefined")
    assert lines.evaluate_all(opacities) == [1, 1]


def test_the_wheel_with_ctrl_zooms_into_the_days_and_alone_it_does_not(touched: Shown) -> None:
    touched.point_at("gaps", touched.place("gaps", "x", 15), 100)
    touched.page.mouse.wheel(0, 10)
    touched.page.keyboard.down("Control")
    touched.page.mouse.wheel(0, -200)
    touched.page.keyboard.up("Control")
    touched.until("window.charts.gaps.scale('x').domain()[0] > 0")
    begin, end = touched.domain("gaps", "x")
    # Around the pointer, as far to either side.
    assert 0 < begin < 15 < end < 30
    assert (begin + end) / 2 == pytest.approx(15, abs=0.5)
    assert touched.domain("gaps", "y") == [0, 20_000]


def test_the_chart_speaks_to_a_screen_reader(report: Shown) -> None:
    words = "Gap ranges over time. Peaks: native, raw client 9,900, tiered <relay-held> 281. Limit: 1,000."
    chart = report.page.locator("#gaps [aria-label]").first
    assert (chart.get_attribute("aria-label"), chart.get_attribute("role")) == (words, "graphics-document")
    assert PAGE.figure is not None
    assert PAGE.figure.words == words


def test_no_two_schemes_share_a_line(browser: Browser, tmp_path: Path) -> None:
    files = Files.under(tmp_path)
    save(demo_result(tmp_path), files)
    with shown(browser, files.report) as seen:
        lines = seen.page.locator("#gaps .mark-line.role-mark path").evaluate_all(
            "(lines) => lines.map((line) => getComputedStyle(line)).map((one) => [one.stroke, one.strokeDasharray])"
        )
        assert len(lines) == len(LABELS)
        for looks in zip(*lines, strict=True):
            assert len(set(looks)) == len(LABELS)


def test_colours_are_the_readers_and_follow_when_they_change(touched: Shown) -> None:
    colours = """() => [document.body, document.querySelector("#gaps .role-legend-label text")].map(
      (element, number) => getComputedStyle(element)[number ? "fill" : "backgroundColor"])"""
    assert touched.page.evaluate(colours) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    touched.page.emulate_media(color_scheme="dark")
    assert touched.page.evaluate(colours) == ["rgb(20, 23, 27)", "rgb(232, 234, 237)"]


def test_the_page_loads_nothing_from_elsewhere_and_may_not(touched: Shown) -> None:
    assert touched.asked_for == []
    refused = touched.page.evaluate(
        """() => new Promise((told) => {
          document.addEventListener("securitypolicyviolation", (event) => told(event.blockedURI));
          fetch("http://127.0.0.1:9/").catch(() => {});
        })"""
    )
    assert refused == "http://127.0.0.1:9/"


def test_the_library_of_the_charts_is_in_the_page_once() -> None:
    html = render_page(PAGE)
    assert html.count("window.vegaEmbed") == 1
    assert html.lower().count("</script>") == 3  # of the chart's data, of the library and of what calls it
    assert "<!--" not in html  # in a script it would change what ends it
    assert len(html.encode()) < 1_000_000


def test_hostile_names_are_texts(browser: Browser, tmp_path: Path) -> None:
    chart = GapChart(
        title=HOSTILE,
        caption=HOSTILE,
        series=[Series(name=HOSTILE, points=[(0, 1), (1, 2)])],
        limit=10,
        marks=[Mark(at=1, name=HOSTILE)],
        time_unit=HOSTILE,
    )
    table = Table(caption=HOSTILE, header=(HOSTILE, HOSTILE), rows=[(HOSTILE, HOSTILE)])
    page = Page(
        title=HOSTILE,
        verdict=HOSTILE,
        good=False,
        facts=[(HOSTILE, HOSTILE)],
        headlines=[Headline(name=HOSTILE, value=HOSTILE, unit=HOSTILE, known="counted", lines=[HOSTILE])],
        notices=[HOSTILE],
        figure=gap_chart(chart),
        tables=[table],
        sections=[
            Section(heading=HOSTILE, sentences=[HOSTILE], ranked=True, facts=[(HOSTILE, HOSTILE)]),
            Section(heading=HOSTILE, folds=[Fold(name=HOSTILE, table=table)]),
        ],
        notes=[HOSTILE],
        commands=[(HOSTILE, HOSTILE)],
    )
    with shown(browser, _written(tmp_path, page)) as seen:
        assert seen.page.evaluate("window.broken") is None
        assert seen.page.locator("main img").count() == 0
        assert seen.texts.count(HOSTILE) >= 25
        seen.point_at("gaps", seen.place("gaps", "x", 1), seen.place("gaps", "y", 2))
        seen.page.locator("#vg-tooltip-element").filter(has_text="onerror").wait_for()
        assert seen.page.evaluate("window.broken") is None


def test_an_empty_chart_is_drawn(browser: Browser, tmp_path: Path) -> None:
    empty = GapChart(title="t", caption="c", series=[Series(name="nothing yet", points=[])], limit=10)
    page = Page(title="t", verdict="v", good=True, facts=[], figure=gap_chart(empty))
    with shown(browser, _written(tmp_path, page)) as seen:
        assert seen.domain("gaps", "y") == [0, 20]
        assert "nothing yet: peak 0" in seen.texts


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    files = Files.under(folder)
    save(demo_result(folder), files)
    return files.report


@pytest.mark.parametrize("width", [1_200, 800, 400])
def test_no_column_of_the_demos_report_is_cut(browser: Browser, saved: Path, width: int) -> None:
    with shown(browser, saved, width=width) as seen:
        assert seen.cut == []
        seen.page.emulate_media(color_scheme="dark")
        assert seen.cut == []
        assert seen.complaints == []
        texts = "\n".join(seen.texts)
        for label in LABELS.values():
            assert f"{label}: peak " in texts
        assert "57.4 / 61.2 s" in texts


@pytest.mark.parametrize("width", [1_200, 400])
def test_what_is_cut_is_found(browser: Browser, path: Path, width: int) -> None:
    with shown(browser, path, width=width) as seen:
        seen.page.evaluate(
            "document.querySelector('td').insertAdjacentHTML('beforeend', '<p style=\"width: 1300px\">wide</p>')"
        )
        assert "the page scrolls sideways" in seen.cut
        assert any("wide" in found for found in seen.cut)


WITHOUT = "import sys\nsys.modules['altair'] = None\n"
NEEDS = f"a report needs altair, which this line installs: {sys.executable} -m pip install 'altair>=6'"


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_without_the_extra_the_demo_leaves_no_report_and_says_what_installs_it(tmp_path: Path) -> None:
    stale = Files.under(tmp_path).report
    stale.write_text("of a former run")
    code = (
        "from pathlib import Path\nfrom rich.console import Console\n"
        "import timewheel.demo.run\nfrom timewheel.cli.demo import _print_figures, _print_verdict\n"
        "from timewheel.demo.results import Files, save\nfrom tests.support.demo_result import demo_result\n"
        "result = demo_result(Path(sys.argv[1]))\nsave(result, Files.under(result.settings.out))\n"
        "_print_figures(Console(), result)\n_print_verdict(Console(), result, seconds=195.0)\n"
    )
    done = _python(WITHOUT + code, str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.csv", "results.json"]
    lines = done.stdout.splitlines()
    assert f"{tmp_path}/ledger.csv   {tmp_path}/results.json" in lines
    assert lines[-3:] == ["PROMISES KEPT   195 s", lines[-2], f"No report.html: {NEEDS}"]
    assert lines[-2].startswith("Native delays made 10,143 gaps")


def test_what_draws_is_loaded_only_to_draw() -> None:
    code = (
        "import sys\nimport timewheel.cli.app, timewheel.cli.demo, timewheel.cli.plan, timewheel.demo.run\n"
        "import timewheel.spark_planner.job, timewheel.spark_planner.results.tables\n"
        "print(sorted({'altair', 'jinja2', 'vl_convert'} & set(sys.modules)))\n"
    )
    assert _python(code).stdout == "[]\n"
