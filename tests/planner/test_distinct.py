"""Counting by a table gives what counting by a sort gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timewheel.spark_planner.exact.ranges import counted, distinct


@given(st.lists(st.integers(0, 6), max_size=40) | st.lists(st.integers(0, 2**62), max_size=40))
def test_a_table_says_what_a_sort_says(values: list[int]) -> None:
    array = np.array(values, np.int64)

    found, counts = counted(array)
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == {value: values.count(value) for value in values}
    assert found.tolist() == sorted(set(values))
    present, where = distinct(array)
    assert present.tolist() == sorted(set(values))
    assert present[where].tolist() == values
