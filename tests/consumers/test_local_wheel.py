"""The local wheel against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timewheel.consumers.engine import LocalWheel

CAPACITY = 6
keys = st.sampled_from([f"k{i}" for i in range(2 * CAPACITY)])
times_ms = st.integers(0, 20)


def test_keys_come_out_by_time_and_equal_ones_in_order_of_arrival() -> None:
    wheel = LocalWheel(10)
    for key, wake_ms in [("late", 30), ("first", 10), ("second", 10), ("next", 31)]:
        wheel.push(key, wake_ms)
    assert wheel.next_wake_ms() == 10
    assert list(wheel.pop_due(9)) == []
    assert list(wheel.pop_due(30)) == ["first", "second", "late"]
    assert wheel.next_wake_ms() == 31


def test_a_full_wheel_takes_nothing_more_but_moves_what_it_has() -> None:
    wheel = LocalWheel(2)
    wheel.push("a", 1)
    wheel.push("b", 2)
    with pytest.raises(OverflowError, match="holds 2"):
        wheel.push("c", 3)
    wheel.push("a", 5)
    assert list(wheel.pop_due(9)) == ["b", "a"]


def test_what_is_pushed_while_popping_is_popped_only_if_it_is_due() -> None:
    wheel = LocalWheel(5)
    wheel.push("a", 1)
    popped = []
    for key in wheel.pop_due(10):
        popped.append(key)
        wheel.push("again", 11)
    assert popped == ["a"]
    assert wheel.next_wake_ms() == 11


def test_memory_is_bounded_by_the_live_keys_not_by_the_moves() -> None:
    wheel = LocalWheel(10)
    for turn in range(10_000):
        wheel.push(f"k{turn % 10}", 1_000_000 - turn)
    assert len(wheel) == 10
    assert len(wheel._heap) <= 2 * 10 + 65


class WheelAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wheel = LocalWheel(CAPACITY)
        self.model: dict[str, int] = {}

    @precondition(lambda self: len(self.model) < CAPACITY)
    @rule(key=keys, wake_ms=times_ms)
    def push(self, key: str, wake_ms: int) -> None:
        self.wheel.push(key, wake_ms)
        self.model[key] = wake_ms

    @rule(key=keys)
    def discard(self, key: str) -> None:
        assert self.wheel.discard(key) == (self.model.pop(key, None) is not None)

    @rule(now_ms=times_ms)
    def pop_due(self, now_ms: int) -> None:
        popped = list(self.wheel.pop_due(now_ms))
        due = {key: wake_ms for key, wake_ms in self.model.items() if wake_ms <= now_ms}
        assert sorted(popped) == sorted(due)
        assert [due[key] for key in popped] == sorted(due.values())
        for key in popped:
            del self.model[key]

    @rule()
    def pop_all(self) -> None:
        popped = self.wheel.pop_all()
        assert [self.model[key] for key in popped] == sorted(self.model.values())
        self.model.clear()

    @invariant()
    def same_content(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert self.wheel.next_wake_ms() == min(self.model.values(), default=None)
        assert all(key in self.wheel for key in self.model)


TestWheelAgainstDictionary = WheelAgainstDictionary.TestCase
