"""Nothing comes out of the gate before its original is acknowledged, and each original counts once."""

from __future__ import annotations

from collections import deque
from typing import Any

import pulsar
import pytest

from tests.support.client_messages import client_message
from tests.support.manual_clock import LeapingClock
from timewheel.broker.protocol.errors import BrokerLost
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import FROM_PROPERTY
from timewheel.core.rng import system_random
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.shadow.driver.ack_before_relay import TRY_FOR_MS, AckBeforeRelay


def copy_or_fence(entry: int, original: int | None) -> Any:
    return client_message({} if original is None else {FROM_PROPERTY: f"3:{original} 1"}, at=(1, entry, -1))


class Journal:
    """Gives what it has, and then nothing."""

    def __init__(self, *messages: Any) -> None:
        self.messages = deque(messages)

    def receive(self, _timeout_millis: int | None = None) -> Any:
        if not self.messages:
            raise pulsar.Timeout("nothing there")
        return self.messages.popleft()

    def redeliver_unacknowledged_messages(self) -> None:
        pass


class MadeUpAcker:
    """Notes what it acknowledges; fails as often as it is told."""

    part = "persistent://acme/crm/reminders-partition-0"

    def __init__(self, failures: int = 0) -> None:
        self.acked_originals: list[EntryPosition] = []
        self.failures = failures

    def wait_ms(self) -> int:
        return 0

    def ack(self, positions: list[EntryPosition]) -> None:
        if self.failures:
            self.failures -= 1
            raise BrokerLost("pulsar://broker", "gone")
        self.acked_originals += positions

    def keep_alive(self) -> None:
        pass


def gate_on(journal: Journal, acker: MadeUpAcker, clock: LeapingClock) -> AckBeforeRelay:
    made_up: Any = acker
    return AckBeforeRelay(journal, made_up, Handle(clock), clock, system_random())  # type: ignore[arg-type]


def given(gate: AckBeforeRelay, count: int) -> list[int]:
    return [gate.receive(0).message_id().entry_id() for _ in range(count)]


def test_all_that_comes_at_once_is_struck_before_the_first_comes_out() -> None:
    acker = MadeUpAcker()
    gate = gate_on(Journal(copy_or_fence(0, 7), copy_or_fence(1, None), copy_or_fence(2, 9)), acker, LeapingClock())
    assert given(gate, 1) == [0]
    assert acker.acked_originals == [EntryPosition(3, 7), EntryPosition(3, 9)]
    assert given(gate, 2) == [1, 2]
    assert (gate.acked_originals, gate.acked_to) == (2, EntryPosition(1, 2))
    with pytest.raises(pulsar.Timeout):
        gate.receive(0)


def test_a_copy_that_comes_again_is_struck_again_and_counts_once() -> None:
    acker = MadeUpAcker()
    journal = Journal(*(copy_or_fence(entry, entry) for entry in (0, 1, 0, 1, 2)))
    gate = gate_on(journal, acker, LeapingClock())
    given(gate, 5)
    gate.redeliver_unacknowledged_messages()
    journal.messages.extend(copy_or_fence(entry, entry) for entry in (1, 2, 3))
    assert given(gate, 3) == [1, 2, 3]
    assert len(acker.acked_originals) == 8
    assert (gate.acked_originals, gate.acked_to) == (4, EntryPosition(1, 3))


def test_what_could_not_be_struck_is_tried_again_before_anything_comes_out() -> None:
    acker, clock = MadeUpAcker(failures=3), LeapingClock()
    gate = gate_on(Journal(copy_or_fence(0, 7)), acker, clock)
    assert given(gate, 1) == [0]
    assert acker.acked_originals == [EntryPosition(3, 7)]


def test_for_half_a_minute_and_then_the_session_ends_with_nothing_given() -> None:
    acker, clock = MadeUpAcker(failures=10_000), LeapingClock()
    gate = gate_on(Journal(copy_or_fence(0, 7)), acker, clock)
    began_ms = clock.monotonic_ms()
    with pytest.raises(SessionFailed, match=r"are not acknowledged: .*gone"):
        gate.receive(0)
    assert clock.monotonic_ms() - began_ms >= TRY_FOR_MS
    assert (gate.acked_originals, gate.acked_to) == (0, None)
