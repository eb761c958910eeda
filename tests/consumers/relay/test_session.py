"""What a subscription's shell does where the broker cannot easily be made to: the rest is played on one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from tests.consumers.relay.relay_world import PLAN, ROUTER, SOURCE, START_MS
from tests.support.manual_clock import ManualClock
from timewheel.consumers.relay.driver import session as sessions
from timewheel.consumers.relay.driver.burying import MAX_JUMPS, Verdicts
from timewheel.consumers.relay.driver.handle import Handle
from timewheel.consumers.relay.driver.holes import Seen
from timewheel.consumers.relay.driver.hop_producers import LeaseHeld
from timewheel.consumers.relay.driver.memory import Memory
from timewheel.consumers.relay.driver.prefetch import Prefetch
from timewheel.consumers.relay.driver.source import Source
from timewheel.consumers.relay.machine.commands import RECEIVE, Forward, Wait
from timewheel.consumers.relay.machine.order import Spot
from timewheel.consumers.relay.machine.states import State
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names
from timewheel.core.topology import HoldingTopic
from timewheel.wire.positions import Position

ENVELOPE = Envelope("t", START_MS + 60_000, START_MS)
HELD = HoldingTopic(name=PLAN.due_topic, step=SOURCE, slot=0, by_broker=False)
SOURCE_PARTITION = Source(holding=HELD, partition=0)


class Hops:
    """Producers whose names somebody else has at first."""

    def __init__(self) -> None:
        self.held = True
        self.sent: list[dict[str, str]] = []

    def to(self, *_: Any, **__: Any) -> Any:
        if self.held:
            raise LeaseHeld("tw|name")
        return SimpleNamespace(
            send_async=lambda _content, _callback, properties, **_: self.sent.append(properties), flush=lambda: None
        )

    def for_groups(self, *names: Any) -> tuple[Any, int]:
        return self.to(*names), -1


class Message:
    def data(self) -> bytes:
        return b""

    def schema_version(self) -> str:
        return ""

    def has_null_value(self) -> bool:
        return False

    def partition_key(self) -> str:
        return ""

    ordering_key = partition_key

    def event_timestamp(self) -> int:
        return 0


class Letters(Hops):
    """Stores each letter, but for those that it fails at."""

    def __init__(self, *fails: int) -> None:
        super().__init__()
        self.fails = fails
        self.asked = 0

    def to_dead_letters(self, _topic: str) -> Any:
        return SimpleNamespace(send=self.send)

    def send(self, content: bytes, *, properties: dict[str, str], **_: Any) -> None:
        self.asked += 1
        if self.asked in self.fails:
            raise pulsar.Timeout
        assert content == b""
        self.sent.append(properties)


AFTER, FOUND, BEFORE = Spot(Position(7, 3, -1), 0), Position(7, 6, -1), Position(7, 9, -1)


def looking(monkeypatch: pytest.MonkeyPatch, hops: Hops, seen: Seen) -> tuple[Any, list[Any]]:
    """A subscription whose looks see that, and the alarms that it raises."""
    monkeypatch.setattr(sessions, "HopProducers", SimpleNamespace(of=lambda *_: hops))
    monkeypatch.setattr(sessions, "look", lambda *_: seen)
    raised: list[Any] = []
    tools: Any = SimpleNamespace(
        router=ROUTER,
        names=Names(PLAN),
        client=None,
        clock=ManualClock(),
        hooks=SimpleNamespace(emit=lambda _event: None),
        alarms=SimpleNamespace(raised=raised.append),
        relay_id="r",
    )
    machine: Any = SimpleNamespace(state=State.LOOKING)
    return sessions.Session(
        SOURCE_PARTITION, tools, Handle(tools.clock), Verdicts(), machine, Prefetch(Memory(), by_broker=False)
    ), raised


def test_thousands_of_hidden_entries_are_one_letter_that_is_stored_before_anything_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Position(7, 9_999, -1)
    hops = Letters(1)
    session, raised = looking(monkeypatch, hops, Seen(far, is_hidden=True))
    with pytest.raises(pulsar.Timeout):
        session._look(AFTER, far)
    assert raised == []
    for _ in range(3):  # met again by later subscriptions, whose acknowledgement was lost
        assert session._look(AFTER, far) == far
    assert [letter["tw-dead-at"] for letter in hops.sent] == ["7:3..7:9999"]
    assert "hidden by the client" in hops.sent[0]["tw-dead-reason"]
    assert [(alarm.name, alarm.position) for alarm in raised] == [("relay_dead_letter", "7:3..7:9999")]
    assert session._handle.counts.dead == 1


@pytest.mark.parametrize("is_hidden", [False, True])
def test_what_the_broker_leaves_out_again_and_again_is_named_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, *, is_hidden: bool
) -> None:
    """A message that somebody has acknowledged by itself can be read, and never comes."""
    hops = Letters()
    session, _ = looking(monkeypatch, hops, Seen(FOUND, is_hidden=is_hidden))
    assert [session._look(AFTER, BEFORE) for _ in range(MAX_JUMPS)] == [FOUND] * MAX_JUMPS, "begins anew each time"
    assert len(hops.sent) == is_hidden
    assert session._look(AFTER, BEFORE) == BEFORE
    assert hops.sent[-1]["tw-dead-at"] == "7:3..7:9"
    assert "left out by the broker" in hops.sent[-1]["tw-dead-reason"]


def test_nothing_is_named_that_another_subscription_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    hops = Letters()
    session, raised = looking(monkeypatch, hops, Seen(FOUND, is_hidden=False))
    for number in range(3 * MAX_JUMPS):
        assert session._look(AFTER, BEFORE._replace(entry=9 + number)) == FOUND
    assert hops.sent == raised == []


@pytest.mark.parametrize("in_group", [False, True])
def test_a_message_that_waits_for_a_lease_keeps_the_properties_it_came_with(
    monkeypatch: pytest.MonkeyPatch, *, in_group: bool
) -> None:
    """It may yet go another way, to the dead letters or back to the tail of its slot, and there it goes as it came."""
    hops = Hops()
    monkeypatch.setattr(sessions, "HopProducers", SimpleNamespace(of=lambda *_: hops))
    machine: Any = SimpleNamespace(
        state=State.RECEIVING,
        lease_held=lambda: Wait(50, 1),
        lease_taken=lambda: None,
        in_flight=0,
        head_release_ms=None,
    )
    tools: Any = SimpleNamespace(
        router=ROUTER, clock=ManualClock(), hooks=SimpleNamespace(emit=lambda _event: None), relay_id="r"
    )
    session = sessions.Session(
        SOURCE_PARTITION,
        tools,
        Handle(tools.clock),
        Verdicts(),
        machine,
        Prefetch(Memory(), by_broker=False),
    )
    came = {**ENVELOPE.properties(), "tenant": "acme"}
    session._message, session._properties = Message(), dict(came)
    command = Forward(0, PLAN.due_topic, 0, 7, ENVELOPE.hopped(START_MS + 30_000), in_group)

    assert session._forward(command) == Wait(50, 1)
    assert session._properties == came

    hops.held = False
    assert session._forward(command) is RECEIVE
    session._groups.send()
    assert hops.sent == [{**came, **command.envelope.properties()}]
