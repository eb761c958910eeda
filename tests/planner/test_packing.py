"""Whole numbers in as few bytes as they need come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.spark_planner.exact.sends import packed_ascending, packed_spans, unpacked_ascending, unpacked_spans

MOST = 2**63 - 1


@given(st.lists(st.integers(0, MOST), max_size=50))
def test_spans_come_back(values: list[int]) -> None:
    packed = packed_spans(np.array(values, np.int64))

    assert unpacked_spans(memoryview(packed)).tolist() == values


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50))
def test_times_in_order_come_back(values: list[int]) -> None:
    packed = packed_ascending(np.sort(np.array(values, np.int64)))

    assert unpacked_ascending(memoryview(packed)).tolist() == sorted(values)


@pytest.mark.parametrize(
    ("most", "width"), [(0, 1), (255, 1), (256, 2), (2**16 - 1, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 8), (MOST, 8)]
)
def test_no_number_takes_more_bytes_than_the_widest_needs(most: int, width: int) -> None:
    assert len(packed_spans(np.array([0, most, 1], np.int64))) == 1 + 3 * width
