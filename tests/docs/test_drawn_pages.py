"""The generated parts of the pages are those of the code, and each finding that the code can make has a line."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.checkout import ROOT
from tests.support.runbook import INDEX
from tests.support.tables import PAGES, Generated

CHECKS = ROOT / "timewheel" / "inspect" / "doctor" / "checks"
MAKERS = {"Kind", "error_kind", "warning_kind", "note_kind"}


@pytest.mark.parametrize("generated", [*PAGES.values(), INDEX], ids=[*PAGES, "runbook"])
def test_the_list_of_a_page_is_drawn_from_the_code(generated: Generated) -> None:
    assert generated.page.read_text(encoding="utf-8") == generated.redrawn(), "run: make docs-tables"


def test_every_finding_has_a_line() -> None:
    """Also one whose kind no list of checks has."""
    page = PAGES["findings"].page.read_text(encoding="utf-8")
    listed = {slug for line in re.findall("^- (`.*?`): ", page, re.MULTILINE) for slug in re.findall("`(.*?)`", line)}
    made = {
        keyword.value.value
        for path in CHECKS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS
        for keyword in node.keywords
        if keyword.arg == "slug" and isinstance(keyword.value, ast.Constant)
    }
    assert len(made) > 50
    assert made <= listed
