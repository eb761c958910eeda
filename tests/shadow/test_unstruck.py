"""How long the oldest copy waits for its original to be acknowledged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine.journal import APART_MS, UnackedOriginals


def at(entry: int) -> EntryPosition:
    return EntryPosition(3, entry)


def test_nothing_waits_at_first_and_when_all_is_struck() -> None:
    unacked_originals = UnackedOriginals()
    assert unacked_originals.age_ms(1_000) == 0
    unacked_originals.stored(at(5), 1_000)
    assert unacked_originals.age_ms(1_700) == 700
    unacked_originals.acked_originals(at(4))
    assert unacked_originals.age_ms(1_700) == 700
    unacked_originals.acked_originals(at(5))
    assert unacked_originals.age_ms(1_700) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("stored"), st.integers(0, 200)),
            st.tuples(st.just("acked_originals"), st.integers(0, 200)),
        ),
        max_size=80,
    )
)
def test_the_age_is_that_of_the_oldest_but_for_what_is_looked_at_as_one(steps: list[tuple[str, int]]) -> None:
    unacked_originals, now_ms, done = UnackedOriginals(), 0, -1
    stored_ms: dict[int, int] = {}
    for step, value in steps:
        if step == "stored":
            now_ms += value
            stored_ms[len(stored_ms)] = now_ms
            unacked_originals.stored(at(len(stored_ms) - 1), now_ms)
        else:
            done = max(done, min(value, len(stored_ms) - 1))
            unacked_originals.acked_originals(at(done))
        waiting = [then_ms for copy, then_ms in stored_ms.items() if copy > done]
        if not waiting:
            assert unacked_originals.age_ms(now_ms) == 0
            continue
        exact_ms = now_ms - min(waiting)
        assert exact_ms <= unacked_originals.age_ms(now_ms) <= exact_ms + APART_MS


def test_a_million_copies_in_a_second_are_a_handful_to_remember() -> None:
    unacked_originals = UnackedOriginals()
    for number in range(100_000):
        unacked_originals.stored(at(number), number // 100)
    assert len(unacked_originals._waiting) <= 1_000 // APART_MS + 2
