"""Where originals are acknowledged, and how: what is gone is not made anew, and nobody stays where no others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.played_brokers import PlayedBrokers, found_at
from tests.support.pulsar_messages import command_frame
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerRefused, ConsumerLost
from timewheel.client.positions import EntryPosition
from timewheel.shadow.driver.acker import KEEP_ALIVE_MS, OriginalAcker
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
