"""The window of handled timers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.consumers.engine import HandledWindow, timer_key
from timewheel.core.envelope import Envelope


def test_the_oldest_timer_is_forgotten_first() -> None:
    window = HandledWindow(3)
    for key in ["a", "b", "a", "c", "d"]:
        window.add(key)
    assert [key in window for key in "abcd"] == [False, True, True, True]
    assert len(window) == 3


def test_a_generation_is_a_timer_of_its_own() -> None:
    window = HandledWindow(3)
    window.add(timer_key(Envelope("sub-42", 1, 1, generation=0)))
    assert timer_key(Envelope("sub-42", 9, 9, generation=0)) in window
    assert timer_key(Envelope("sub-42", 1, 1, generation=1)) not in window


@given(st.lists(st.tuples(st.text(":0123a@", min_size=1), st.integers(0, 999_999_999)), min_size=2, unique=True))
def test_different_timers_never_share_a_key(timers: list[tuple[str, int]]) -> None:
    keys = {timer_key(Envelope(timer_id, 1, 1, generation=generation)) for timer_id, generation in timers}
    assert len(keys) == len(timers)
    assert all(key[0].isdigit() for key in keys)  # the engine's keys of messages without an envelope begin with @
