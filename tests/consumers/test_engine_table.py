"""The table of a timer's life in a consumer, in docs/state-machines.txt, is what random walks meet."""

from __future__ import annotations

import pytest

from tests.support.consumer_table import PAGE, TABLES, begin, lines, walked
from tests.support.drawn import between


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_the_page_is_what_walks_meet(name: str) -> None:
    table = between(PAGE.read_text(encoding="utf-8"), begin(name))
    assert table.splitlines(keepends=True) == lines(walked(name))
