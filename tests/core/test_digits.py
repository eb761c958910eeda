"""Numbers that strangers write: read whole, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.durations import MAX_DIGITS, whole_number
from timewheel.core.names import partition_of


@given(st.integers(0, 10**MAX_DIGITS - 1), st.integers(0, 3))
def test_decimal_digits_are_a_number_with_leading_zeros_too(number: int, zeros: int) -> None:
    text = "0" * zeros + str(number)
    assert whole_number(text) == (number if len(text) <= MAX_DIGITS else None)


@pytest.mark.parametrize(
    "text", ["", " 1", "1\n", "+1", "-1", "1_0", "0x1", "²", "\u0661", "\ud800", "9" * 19, "9" * 5_000]
)
def test_anything_else_is_none_and_raises_nothing(text: str) -> None:
    assert whole_number(text) is None


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    assert whole_number(text) is None or text.isdecimal()


@pytest.mark.parametrize("number", ["", "x", "-1", "007", "\u0661", "9" * 10, "9" * 5_000])
def test_what_is_no_partition_s_number_is_part_of_the_name(number: str) -> None:
    name = f"persistent://acme/crm/reminders-partition-{number}"
    assert partition_of(name) == (name, -1)
