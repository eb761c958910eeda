"""What a subscription's shell does where the broker cannot easily be made to: the rest is played on one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.relay.relay_world import PLAN, ROUTER, SOURCE_PARTITION, START_MS
from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from timewheel.core.envelope import Envelope
from timewheel.relay.driver import session as sessions
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.hop_producers import LeaseHeld
from timewheel.relay.driver.session import Prefetch
from timewheel.relay.driver.source import Handle, Memory
from timewheel.relay.machine.interface import RECEIVE, Forward, State, Wait

ENVELOPE = Envelope("t", START_MS + 60_000, START_MS)


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

    def is_new(self, _producer: Any, _number: int) -> bool:
        return True


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
        SOURCE_PARTITION, tools, Handle(tools.clock), Verdicts(), machine, Prefetch(Memory(), by_broker=False)
    )
    came = {**ENVELOPE.properties(), "tenant": "acme"}
    session._message, session._properties = client_message(), dict(came)
    command = Forward(0, PLAN.due_topic, 0, 7, ENVELOPE.hopped(START_MS + 30_000), in_group)

    assert session._forward(command) == Wait(50, 1)
    assert session._properties == came

    hops.held = False
    assert session._forward(command) is RECEIVE
    session._groups.send()
    assert hops.sent == [{**came, **command.envelope.properties()}]
