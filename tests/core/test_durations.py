"""Durations: what people write and what code counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core import durations
from timewheel.core.errors import DurationError
from timewheel.core.names import partition_of


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90 * 1_000),
        ("15m", 15 * 60 * 1_000),
        ("12h", 12 * 3_600 * 1_000),
        ("5d", 5 * 86_400 * 1_000),
        ("007d", 7 * 86_400 * 1_000),
        ("3650d", durations.MAX_DURATION_MS),
    ],
)
def test_a_duration_reads_as_written(text: str, duration_ms: int) -> None:
    assert durations.parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "d", "5", "5 d", " 5d", "5d ", "5d\n", "+5d", "-5d", "1.5d", "1e3s", "1d12h", "5D", "5w", "5y", "5us",
        "0x5d", "\u0665d", "\uff15d", "1_000s", "3651d", "9" * 15 + "d", "9" * 16 + "ms", "9" * 10_000 + "ms",
    ],
)  # fmt: skip
def test_any_other_text_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(DurationError) as caught:
        durations.parse_duration(text)
    assert caught.value.text == text
    assert repr(text)[:20] in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [5, 5.0, None, True, b"5d", ["5d"]])
def test_what_is_no_text_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(DurationError, match=type(value).__name__):
        durations.parse_duration(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (1_500, "1500ms"),
        (60_000, "1m"),
        (90_000, "90s"),
        (86_400_000, "1d"),
        (129_600_000, "36h"),
    ],
)
def test_a_duration_is_written_in_its_largest_whole_unit(duration_ms: int, text: str) -> None:
    assert durations.format_duration(duration_ms) == text


@given(st.integers(0, durations.MAX_DURATION_MS))
def test_what_is_written_reads_back_unchanged(duration_ms: int) -> None:
    assert durations.parse_duration(durations.format_duration(duration_ms)) == duration_ms


@given(st.text(max_size=20))
def test_reading_any_text_gives_a_duration_or_a_duration_error(text: str) -> None:
    try:
        duration_ms = durations.parse_duration(text)
    except DurationError:
        return
    assert 0 <= duration_ms <= durations.MAX_DURATION_MS


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0s"), (1, "1ms"), (1_999, "1999ms"), (2_001, "3s"), (119_999, "2m"), (60 * 86_400_000 + 1, "61d")],
)
def test_a_bound_is_rounded_up_to_the_largest_unit_that_there_are_two_of(duration_ms: int, text: str) -> None:
    assert durations.rounded_up(duration_ms) == text


@given(st.integers(0, durations.MAX_DURATION_MS - 86_400_000))
def test_a_bound_is_never_below_and_by_half_at_most_above(duration_ms: int) -> None:
    assert duration_ms <= durations.parse_duration(durations.rounded_up(duration_ms)) <= 1.5 * duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0s"), (1, "1ms"), (1_120, "1s 120ms"), (173_100_000, "2d 5m"), (1_728_600_000, "20d 10m"), (7_200_000, "2h")],
)
def test_people_read_a_duration_in_several_units(duration_ms: int, text: str) -> None:
    assert durations.spelled(duration_ms) == text


@given(st.integers(0, durations.MAX_DURATION_MS))
def test_what_is_spelled_is_exact(duration_ms: int) -> None:
    assert sum(map(durations.parse_duration, durations.spelled(duration_ms).split())) == duration_ms


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (0.25, "0.25 ms"),
        (999.4, "999 ms"),
        (999.7, "1 s"),
        (59_970, "1 min"),
        (90_000, "1.5 min"),
        (24_473 * 60_000, "17 d"),
        (86_400_000 - 1, "1 d"),
        (1_234 * 86_400_000, "1,234 d"),
        (-7_200_000, "-2 h"),
    ],
)
def test_a_length_of_time_is_shown_in_its_largest_unit_to_three_digits(span_ms: float, text: str) -> None:
    assert durations.span(span_ms) == text


@given(st.integers(0, 10**durations.MAX_DIGITS - 1), st.integers(0, 3))
def test_decimal_digits_are_a_number_with_leading_zeros_too(number: int, zeros: int) -> None:
    text = "0" * zeros + str(number)
    assert durations.whole_number(text) == (number if len(text) <= durations.MAX_DIGITS else None)


@pytest.mark.parametrize(
    "text", ["", " 1", "1\n", "+1", "-1", "1_0", "0x1", "²", "\u0661", "\ud800", "9" * 19, "9" * 5_000]
)
def test_anything_else_is_none_and_raises_nothing(text: str) -> None:
    assert durations.whole_number(text) is None


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    assert durations.whole_number(text) is None or text.isdecimal()


@pytest.mark.parametrize("number", ["", "x", "-1", "007", "\u0661", "9" * 10, "9" * 5_000])
def test_what_is_no_partition_s_number_is_part_of_the_name(number: str) -> None:
    name = f"persistent://acme/crm/reminders-partition-{number}"
    assert partition_of(name) == (name, -1)
