"""A page as a real browser has it: Chromium without a window, and what its DOM holds."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

__all__ = ["Dom", "dom_of"]


class Dom(HTMLParser):
    """What a browser's DOM holds, as far as the tests ask: attributes by class, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.by_class: dict[str, list[dict[str, str]]] = {}
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        for name in found.get("class", "").split():
            self.by_class.setdefault(name, []).append(found | {"tag": tag})

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def dom_of(page: Path) -> Dom:
    """Open a page; the test is skipped where there is no Chromium."""
    return Dom(_dumped(_browser(), page))


def _browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium to open the report in (Debian: apt-get install chromium)")
    return found


def _dumped(browser: str, page: Path) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run([*command, profile, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout
