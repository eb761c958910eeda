"""Generated timer ids: unique, and ordered by time."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import MAX_TIME_MS, MAX_TIMER_ID_CHARS
from timewheel.core.ids import TimerIds, is_native_id, native_id


def test_an_id_tells_when_who_and_which() -> None:
    ids = TimerIds(lambda size: b"\xab" * size)
    # 0x18cc251f400 = 1,704,067,200,000 = 2024-01-01T00:00:00Z
    assert ids.new(1_704_067_200_000) == "018cc251f400-abababababababab-00000000"
    assert ids.new(1_704_067_200_000) == "018cc251f400-abababababababab-00000001"


@given(st.lists(st.integers(0, MAX_TIME_MS), min_size=2, max_size=50).map(sorted))
def test_ids_sort_by_time_and_are_unique(times_ms: list[int]) -> None:
    ids = TimerIds(os.urandom)
    made = [ids.new(now_ms) for now_ms in times_ms]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert max(map(len, made)) <= MAX_TIMER_ID_CHARS


def test_a_clock_that_goes_back_never_repeats_an_id() -> None:
    ids = TimerIds(os.urandom)
    assert len({ids.new(now_ms) for now_ms in [5, 5, 4, 5, 4, 4]}) == 6


def test_two_producers_in_the_same_millisecond_never_share_an_id() -> None:
    first, second = TimerIds(os.urandom), TimerIds(os.urandom)
    assert {first.new(7) for _ in range(100)}.isdisjoint(second.new(7) for _ in range(100))


def test_threads_that_share_a_generator_never_share_an_id() -> None:
    ids, made = TimerIds(os.urandom), list[str]()

    def make() -> None:
        made.extend(ids.new(7) for _ in range(2_000))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4 * 2_000


@pytest.mark.parametrize("topic", ["persistent://a/b/c", f"persistent://a/b/{'c' * 300}"], ids=["short", "cut"])
@pytest.mark.parametrize("part", ["", "-partition-0", "-partition-12"])
def test_an_id_of_a_position_tells_its_topic(topic: str, part: str) -> None:
    timer_id = native_id(f"{topic}{part}", EntryPosition(1_234, 56))
    assert is_native_id(timer_id, topic)
    assert is_native_id(timer_id, f"{topic}-partition-7")
    assert not is_native_id(timer_id, "persistent://a/b/d")
    assert not is_native_id(timer_id, f"{topic}.tw.intake")


@pytest.mark.parametrize("timer_id", ["sub-42", "", ":1:2", "persistent://a/b/c", "persistent://a/b/c:1:x", "1:2"])
def test_an_id_that_a_caller_gave_is_no_position(timer_id: str) -> None:
    assert not is_native_id(timer_id, "persistent://a/b/c")
    assert not is_native_id(TimerIds(lambda count: b"x" * count).new(1_700_000_000_000), "persistent://a/b/c")
