"""The runbook: whatever tells that something is the matter leads to a page, and each page says all that is needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.runbook import PAGE, SECTIONS, Told, entries, in_code, read, redrawn

ENTRIES = entries()


def test_everything_that_can_be_told_has_one_page() -> None:
    pages = Counter(told for entry in ENTRIES for told in entry.told)
    assert [told for told, _ in in_code() if pages[told] != 1] == []


def test_no_page_is_about_what_nothing_tells() -> None:
    told = {told for told, _ in in_code()}
    assert [(entry.path.name, one) for entry in ENTRIES for one in entry.told if one not in told] == []


def test_the_index_is_drawn_from_code_and_pages() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == redrawn(page), "run: make docs-tables"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path.stem)
def test_a_page_says_all_that_is_needed(entry: object) -> None:
    assert isinstance(entry, type(ENTRIES[0]))
    assert entry.told
    assert tuple(entry.sections) == SECTIONS
    assert all(body.strip() for body in entry.sections.values())


def test_what_is_told_is_read_across_lines(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# A title\n\n- Events: `a_b`,\n  `c`\n- Exit status of `timewheel gaps`: `3`, `4`\n\n## Look\n\nx: `y`\n"
    )
    gaps = "Exit status of `timewheel gaps`"
    assert read(page).told == (Told("Events", "a_b"), Told("Events", "c"), Told(gaps, "3"), Told(gaps, "4"))
    assert read(page).sections == {"Look": "\nx: `y`\n"}
