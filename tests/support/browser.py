"""Opens pages in a real browser: headless Chromium, driven through Playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

DRAWN = "document.querySelectorAll('.chart').length === Object.keys(window.charts ?? {}).length"
TIMEOUT_S = 30.0
POLL_MS = 20
HEIGHT = 900
ABOUT_A_PIXEL = 1.5

TEXTS = """() => {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const texts = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.textContent.trim();
    if (text && !node.parentElement.closest("script, style, noscript")) texts.push(text);
  }
  return texts;
}"""

CUT = """(pixel) => {
  const cut = [];
  const report = (what, element) => cut.push(`${what}: ${element.tagName} ${element.textContent.trim().slice(0, 60)}`);
  const right = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > right) cut.push("the page scrolls sideways");
  for (const element of document.querySelectorAll("main, main *")) {
    if (element.closest("svg, script, noscript") || getComputedStyle(element).display === "none") continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.left < -pixel || box.right > right + pixel)) report("beyond the page", element);
    if (element.clientWidth && element.scrollWidth > element.clientWidth) report("wider than its place", element);
  }
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.textContent) continue;
    const box = text.getBoundingClientRect();
    const chart = text.closest("svg").getBoundingClientRect();
    const inside = box.left >= chart.left - pixel && box.right <= chart.right + pixel
      && box.top >= chart.top - pixel && box.bottom <= chart.bottom + pixel;
    if (!inside) report("beyond its chart", text);
  }
  return cut;
}"""

PILED = """(pixel) => {
  const piled = [];
  for (const chart of document.querySelectorAll(".chart svg")) {
    const shown = [...chart.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = shown.map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([one, a], number) => {
      for (const [other, b] of boxes.slice(number + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // A name and its halo lie on each other, and are one to a reader.
        if (one !== other && across > pixel && down > 2 * pixel) piled.push(`${one} on ${other}`);
      }
    });
  }
  return piled;
}"""


class Shown:
    """An open page with all its charts drawn."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked_for: list[str] = []  # URLs that the page requested besides its own
        self.complaints: list[str] = []  # messages in the browser's console, and errors of scripts
        page.on("request", lambda request: self.asked_for.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: Path) -> None:
        self.page.goto(path.as_uri())
        self.until(DRAWN)
        self.asked_for.remove(path.as_uri())

    def until(self, claim: str) -> None:
        """Wait until a JavaScript expression is true; the page's policy allows no waiting inside the page."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.page.evaluate(claim):
            assert time.monotonic() < deadline_s, f"not so within {TIMEOUT_S} s: {claim}"
            self.page.wait_for_timeout(POLL_MS)

    @property
    def texts(self) -> list[str]:
        """All texts as a reader sees them, including those of charts."""
        found: list[str] = self.page.evaluate(TEXTS)
        return found

    @property
    def cut(self) -> list[str]:
        """Elements beyond the page's edges, their own place or their chart."""
        found: list[str] = self.page.evaluate(CUT, ABOUT_A_PIXEL)
        return found

    @property
    def piled(self) -> list[str]:
        """Texts of a chart that overlap."""
        found: list[str] = self.page.evaluate(PILED, ABOUT_A_PIXEL)
        return found

    def rows(self, chart: str, data: str) -> list[dict[str, Any]]:
        """Return the rows that a chart drew, by the name of its data."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "([chart, data]) => window.charts[chart].data(data).map((row) => ({...row}))", [chart, data]
        )
        return found

    def domain(self, chart: str, axis: str) -> list[float]:
        """Return the ends of an axis."""
        found: list[float] = self.page.evaluate(
            "([chart, axis]) => [...window.charts[chart].scale(axis).domain()]", [chart, axis]
        )
        return found

    def place(self, chart: str, axis: str, value: float) -> float:
        """Return the position of a value on an axis, in pixels from the left or from the top."""
        found: float = self.page.evaluate(
            "([chart, axis, value]) => window.charts[chart].scale(axis)(value)", [chart, axis, value]
        )
        return found

    def point_at(self, chart: str, x: float, y: float) -> tuple[float, float]:
        """Move the pointer to a position in a chart's plot, and return its position on the screen."""
        self.page.locator(f"#{chart} .chart").scroll_into_view_if_needed()
        left, top = self.page.evaluate(
            """(chart) => {
              const view = window.charts[chart], box = view.container().querySelector("svg").getBoundingClientRect();
              const [x, y] = view.origin(), padding = view.padding();
              return [box.left + x + padding.left, box.top + y + padding.top];
            }""",
            chart,
        )
        self.page.mouse.move(left + x - 4, top + y)
        self.page.mouse.move(left + x, top + y)
        return left + x, top + y


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; the test is skipped if Chromium is missing."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium to open the report in (Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def shown(
    browser: Browser, path: Path, *, width: int = 1_200, colors: Literal["light", "dark"] = "light"
) -> Iterator[Shown]:
    """Open a page until the block ends; its width is in pixels."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=colors)
    try:
        seen = Shown(page)
        seen.open(path)
        yield seen
    finally:
        page.close()
