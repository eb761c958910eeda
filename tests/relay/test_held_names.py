"""A name that another client holds: a relay's for a while, a stranger's if it stays."""

from __future__ import annotations

from timewheel.relay.driver.hop_producers import HELD_MS, PAUSE_MS, HeldNames

NAME = "tw|a|b|-1|f"


def refused(held: HeldNames, *, from_ms: int, to_ms: int) -> list[bool]:
    return [held.is_strangers(NAME, now_ms) for now_ms in range(from_ms, to_ms + 1, PAUSE_MS // 2)]


def test_a_name_that_is_refused_for_long_is_a_strangers_until_it_is_given() -> None:
    held = HeldNames()
    *before, last = refused(held, from_ms=0, to_ms=HELD_MS)
    assert (any(before), last) == (False, True)
    assert held.is_strangers(NAME, 10 * HELD_MS), "also after a silence"
    assert not held.is_strangers("another", 10 * HELD_MS)
    held.is_free(NAME)
    assert not held.is_strangers(NAME, 10 * HELD_MS)


def test_a_name_may_have_been_free_between_two_refusals_that_are_far_apart() -> None:
    held = HeldNames()
    assert not any(refused(held, from_ms=0, to_ms=HELD_MS - PAUSE_MS))
    again_ms = HELD_MS + PAUSE_MS
    assert not any(refused(held, from_ms=again_ms, to_ms=again_ms + HELD_MS - PAUSE_MS))
    assert held.is_strangers(NAME, again_ms + HELD_MS)
