"""Waiting with a bound, which may be told as the pages tell all other times."""

from __future__ import annotations

from datetime import timedelta

import pytest

from timewheel.testing import eventually


@pytest.mark.parametrize("timeout", [timedelta(milliseconds=20), 0.02])
def test_the_time_is_a_timedelta_or_seconds(timeout: timedelta | float) -> None:
    assert eventually(lambda: "yes", timeout) == "yes"
    with pytest.raises(AssertionError, match=r"still 0 after 0\.02 s: a dead letter"):
        eventually(lambda: 0, timeout, poll=0.001, message="a dead letter")
