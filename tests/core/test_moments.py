"""Points in time on the command line."""

from __future__ import annotations

import pytest
import typer

from timewheel.cli.options import moment_ms, precision_ms


@pytest.mark.parametrize("text", ["1795610036000", "2026-11-25T12:33:56Z", "2026-11-25T13:33:56+01:00", None])
def test_a_moment_is_milliseconds_or_iso_8601(text: str | None) -> None:
    assert moment_ms(text, "--due") == (None if text is None else 1_795_610_036_000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1795610036", "milliseconds since 1970 are needed, not seconds"),
        ("1795610036000000", "not micro- or nanoseconds"),
        ("1975-01-01T00:00:00Z", "before 1978"),
        ("tomorrow", "neither like"),
    ],
)
def test_another_unit_is_refused_with_its_option(text: str, says: str) -> None:
    with pytest.raises(typer.BadParameter, match=says) as caught:
        moment_ms(text, "--due")
    assert caught.value.param_hint == "--due"


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        (None, 1),
        ("1795610036000", 1),
        ("2026-11-25T12:33:56.123Z", 1),
        ("2026-11-25T12:33:56.123456+00:00", 1),
        ("2026-11-25 12:33:56,1", 100),
        ("2026-11-25T12:33:56Z", 1_000),
        ("2026-11-25T13:33:56+01:00", 1_000),
        ("20261125T123356Z", 1_000),
        ("2026-11-25T12:33", 60_000),
        ("2026-11-25T12:33-05:00", 60_000),
        ("2026-11-25T12Z", 3_600_000),
        ("2026-11-25", 86_400_000),
    ],
)
def test_a_moment_that_was_cut_short_stands_for_all_that_begin_with_it(text: str | None, length_ms: int) -> None:
    moment_ms(text, "--due")
    assert precision_ms(text) == length_ms
