"""The page of the doctor's findings is drawn from the code."""

from __future__ import annotations

from tests.support.findings_table import PAGE, kinds, redrawn


def test_the_table_is_drawn_from_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == redrawn(page), "run: make docs-tables"


def test_every_finding_says_why_and_what_to_do() -> None:
    assert len(kinds()) > 50
    for kind in kinds().values():
        assert kind.why.endswith("."), kind.slug
        assert kind.do.endswith("."), kind.slug
