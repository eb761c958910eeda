"""Where and how originals are acknowledged, and that no copy comes out before its original is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from tests.support.client_messages import client_message
from tests.support.manual_clock import LeapingClock, ManualClock
from tests.support.played_brokers import PlayedBrokers, found_at
from tests.support.pulsar_messages import command_frame
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused, ConsumerLost
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import FROM_PROPERTY
from timewheel.core.rng import system_random
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.shadow.driver.acker import KEEP_ALIVE_MS, TRY_FOR_MS, AckBeforeRelay, OriginalAcker
from timewheel.shadow.driver.inspector import Subscription

PART = "persistent://acme/crm/reminders-partition-0"
ORIGINALS = [EntryPosition(3, 7)]
SHARED = Subscription("billing", joins=True)
BY_KEY = Subscription("audit", joins=False, by_key=True)
UNUSED = Subscription("archive", joins=False)
IN_ORDER = Subscription("debug", joins=False, delays=False)


class MadeUpInspector:
    """Has seen some subscriptions; some are there."""

    def __init__(self, *seen: Subscription) -> None:
        self.seen = seen
        self.there: set[str] | None = {one.name for one in seen}
        self.asked = self.hurried = 0

    def subscriptions(self, part: str) -> tuple[Subscription, ...]:
        assert part == PART
        return self.seen

    def there_now(self, part: str) -> set[str] | None:
        assert part == PART
        self.asked += 1
        return self.there

    def inspect_soon(self) -> None:
        self.hurried += 1


class Played:
    """A striker on a played broker."""

    def __init__(self, inspector: Any, **answers: Callable[[Any], bytes]) -> None:
        self.clock = ManualClock()
        self.brokers = PlayedBrokers(self.clock, {"b:1": {"LOOKUP": found_at("pulsar://b:1"), **answers}})
        dialer = Dialer("pulsar://b:1", clock=self.clock, open_transport=self.brokers.open)
        self.acker = OriginalAcker(dialer, PART, inspector, self.clock)

    def said(self, what: str) -> list[Any]:
        return [said for one in self.brokers.opened for name, said in one.requests if name == what]

    def joined(self) -> list[tuple[str, int]]:
        """Subscriptions, and as which type, in order."""
        return [(said.subscription, said.subType) for said in self.said("SUBSCRIBE")]

    def still_open(self) -> list[str]:
        return [
            said.subscription
            for one in self.brokers.opened
            for name, said in one.requests
            if name == "SUBSCRIBE" and not one.is_closed
        ]


def refusing(reason: str) -> Callable[[Any], bytes]:
    return lambda said: command_frame("ERROR", request_id=said.request_id, error=5, message=reason)


def test_it_stays_where_it_joins_and_comes_and_goes_elsewhere() -> None:
    played = Played(MadeUpInspector(SHARED, BY_KEY, UNUSED))
    for _ in range(2):
        played.acker.ack(ORIGINALS)
    assert played.joined() == [("billing", 1), ("audit", 3), ("archive", 1), ("audit", 3), ("archive", 1)]
    assert len(played.said("ACK")) == 6
    assert played.still_open() == ["billing"]


def test_where_brokers_delay_nothing_nothing_is_struck_and_nothing_waits_for_it() -> None:
    inspector = MadeUpInspector(SHARED, IN_ORDER, UNUSED)
    played = Played(inspector)
    played.acker.ack(ORIGINALS)
    assert [name for name, _ in played.joined()] == ["billing", "archive"]
    inspector.seen = (SHARED, IN_ORDER)
    assert played.acker.wait_ms() == 0


def test_one_that_is_gone_is_not_made_anew() -> None:
    inspector = MadeUpInspector(SHARED, UNUSED)
    inspector.there = {"billing"}
    played = Played(inspector)
    with pytest.raises(ConsumerLost, match="subscription archive is gone"):
        played.acker.ack(ORIGINALS)
    assert played.joined() == [("billing", 1)]
    assert inspector.hurried == 1


def test_whether_it_is_there_is_asked_where_it_is_joined_and_not_at_each_strike() -> None:
    inspector = MadeUpInspector(SHARED)
    played = Played(inspector)
    for _ in range(3):
        played.acker.ack(ORIGINALS)
    assert inspector.asked == 1


def test_where_nobody_can_tell_it_is_joined() -> None:
    inspector = MadeUpInspector(SHARED)
    inspector.there = None
    played = Played(inspector)
    played.acker.ack(ORIGINALS)
    assert played.joined() == [("billing", 1)]


@pytest.mark.parametrize(
    ("reason", "hurried"), [("Subscription is of different type", 1), ("Subscription reached max consumers limit", 0)]
)
def test_one_that_has_become_another_type_is_to_be_looked_at_soon(reason: str, hurried: int) -> None:
    inspector = MadeUpInspector(UNUSED)
    played = Played(inspector, SUBSCRIBE=refusing(reason))
    with pytest.raises(BrokerRefused):
        played.acker.ack(ORIGINALS)
    assert inspector.hurried == hurried


@pytest.mark.parametrize("seen", [(), (Subscription("billing", joins=False),)], ids=["is gone", "nobody consumes it"])
def test_it_leaves_at_once_where_it_is_not_to_stay(seen: tuple[Subscription, ...]) -> None:
    inspector = MadeUpInspector(SHARED)
    played = Played(inspector)
    played.acker.ack(ORIGINALS)
    inspector.seen = seen
    played.clock.advance(KEEP_ALIVE_MS // 10)
    played.acker.keep_alive()
    assert played.still_open() == []


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
    return [gate.receive(20).message_id().entry_id() for _ in range(count)]


def test_all_that_comes_at_once_is_struck_before_the_first_comes_out() -> None:
    acker = MadeUpAcker()
    gate = gate_on(Journal(copy_or_fence(0, 7), copy_or_fence(1, None), copy_or_fence(2, 9)), acker, LeapingClock())
    assert given(gate, 1) == [0]
    assert acker.acked_originals == [EntryPosition(3, 7), EntryPosition(3, 9)]
    assert given(gate, 2) == [1, 2]
    assert (gate.acked_originals, gate.acked_to) == (2, EntryPosition(1, 2))
    with pytest.raises(pulsar.Timeout):
        gate.receive(20)


def test_who_does_not_wait_gets_only_what_may_go_on_already() -> None:
    acker = MadeUpAcker()
    gate = gate_on(Journal(copy_or_fence(0, 7), copy_or_fence(1, 8)), acker, LeapingClock())
    with pytest.raises(pulsar.Timeout):
        gate.receive(0)
    assert not acker.acked_originals
    assert given(gate, 1) == [0]
    assert gate.receive(0).message_id().entry_id() == 1


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
        gate.receive(20)
    assert clock.monotonic_ms() - began_ms >= TRY_FOR_MS
    assert (gate.acked_originals, gate.acked_to) == (0, None)
