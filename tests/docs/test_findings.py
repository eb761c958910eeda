"""The pages of findings: their lists are those of the checks, and each finding that the code can make has a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.findings_table import PAGE, SHADOW_PAGE, redrawn, shadow_redrawn

CHECKS = ROOT / "timewheel" / "inspect" / "doctor" / "checks"
MAKERS = {"Kind", "error_kind", "warning_kind", "note_kind"}


def slugs_in_code() -> set[str]:
    """Of all kinds that are made anywhere among the checks, be they listed or not."""
    return {
        keyword.value.value
        for path in CHECKS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS
        for keyword in node.keywords
        if keyword.arg == "slug" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }


@pytest.mark.parametrize(("page", "draw"), [(PAGE, redrawn), (SHADOW_PAGE, shadow_redrawn)], ids=["doctor", "shadow"])
def test_the_list_is_drawn_from_the_checks(page: Path, draw: Callable[[str], str]) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == draw(text), "run: make docs-tables"


def test_every_finding_has_a_line() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = {slug for line in re.findall("^- (`.*?`): ", page, re.MULTILINE) for slug in re.findall("`(.*?)`", line)}
    assert len(slugs_in_code()) > 50
    assert slugs_in_code() <= listed
