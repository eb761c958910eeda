"""The site of `make docs` has all pages and public names, and no dead link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran

HIDDEN = {"timewheel.dead_letters.replaying", "timewheel.testing.eventually"}
"""Functions with the name of a module in their package: mkdocstrings takes the module."""

pytest.importorskip("mkdocs", reason="the extra docs is not installed")


def _built(*options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", *options]
    return ran(words, cwd=ROOT, timeout=400)


def test_the_site_has_every_page_and_every_public_name_without_a_dead_link(tmp_path: Path) -> None:
    from tests.support.docs_site import pages

    built = _built("--site-dir", str(tmp_path))
    assert built.returncode == 0, built.stderr
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")}
    assert {page.replace("README", "index").replace(".md", ".html") for page in pages()} <= made
    for package, name in map(str.split, (ROOT / "tests/packaging/public_api.txt").read_text().splitlines()):
        if f"{package}.{name}" not in HIDDEN:
            assert f">{name}<" in (tmp_path / f"api/{package}.html").read_text(), f"{package}.{name}"


def test_a_list_of_github_is_one_of_python_markdown() -> None:
    from tests.support.docs_site import adapted

    text = (
        "It has:\n- one\n  more\n- two:\n\n  ```sh\n  - x\n    y\n  ```\n- three\n\n1. a\n   - b\n\n"
        "End [x](docs), [y](README.md)\n"
    )
    assert adapted(text, "README.md") == (
        "It has:\n\n- one\n    more\n- two:\n\n    ```sh\n    - x\n      y\n    ```\n\n- three\n\n1. a\n\n    - b\n\n"
        "End x, [y](README.md)\n"
    )
