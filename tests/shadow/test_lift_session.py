"""How a mover's session begins: the lease, then the fence, and nothing is read or acknowledged before both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from tests.shadow.test_copies import NOW_MS, NOWHERE, PART, PLAN, STORED, Client
from tests.shadow.test_refusing import internals
from tests.support.manual_clock import ManualClock
from timewheel.broker.admin.stats import InternalStats
from timewheel.client.hooks import Hooks
from timewheel.client.native import NO_SCHEMA
from timewheel.core.names import JOURNAL_SUBSCRIPTION
from timewheel.core.rng import system_random
from timewheel.relay.driver.hop_producers import LeaseHeld
from timewheel.relay.driver.source import SessionFailed
from timewheel.shadow.desired_state import DesiredState, State
from timewheel.shadow.driver import mover as module
from timewheel.shadow.driver.inspector import AT_LEAST_MS, View
from timewheel.shadow.driver.mover import ALL_KNOW_MS, Mover, MoveSession

MOVING, PAUSED = (
    View(desired=DesiredState(State.SHADOWING, 0), refusal=""),
    View(desired=DesiredState(State.PAUSED, 0), refusal=""),
)


class Broker(Client):
    """Notes what is asked of it, in order; refuses the journal's consumer, so that a session ends behind its fence."""

    def __init__(self, answer: Any = STORED, view: View = MOVING, error: Exception | None = None) -> None:
        super().__init__(answer, error=error)
        self.clock, self.rng, self.hooks, self.hold_ms = ManualClock(NOW_MS), system_random(), Hooks(()), 0
        self.client = self.admin = self.topics = self.inspector = self.dialer = self
        self.plan, self.view, self.asked = PLAN, view, list[str]()
        self.lost: frozenset[int] = frozenset()

    def internal_stats(self, _topic: str) -> InternalStats:
        return internals("LedgerOpened", JOURNAL_SUBSCRIPTION)

    def subscriptions(self, _part: str) -> tuple[()]:
        return ()

    def get_schema_info(self, _topic: str, version: int) -> Any:
        if version in self.lost:
            raise pulsar.Timeout
        return pulsar.schema.BytesSchema().schema_info()

    def create_producer(self, _topic: str, **options: Any) -> Any:
        self.asked.append("lease")
        return super().create_producer(_topic, **options)

    def send_async(self, _content: Any, callback: Callable[[Any, Any], None], **options: Any) -> None:
        self.asked.append("fence")
        super().send_async(_content, callback, **options)

    def subscribe(self, *_: Any, **__: Any) -> Any:
        self.asked.append("journal")
        raise pulsar.ConnectError

    def close(self) -> None:
        self.asked.append("given back")


class Noted(Mover):
    def led(self) -> None:
        self.tools.client.asked.append("led")


def session_of(broker: Any, versions: set[int] | None = None) -> MoveSession:
    mover = Noted(broker, PART, 0)
    mover.versions = set() if versions is None else versions
    return MoveSession(mover, None)


@pytest.mark.parametrize(
    ("given", "error", "asked"),
    [
        ({}, pulsar.ConnectError, ["lease", "led", "fence", "journal", "given back"]),
        ({"error": pulsar.ProducerBusy()}, LeaseHeld, ["lease"]),
        ({"answer": NOWHERE}, SessionFailed, ["lease", "led", "fence", "given back"]),
        ({"view": PAUSED}, pulsar.ConnectError, ["lease", "led", "journal", "given back"]),
    ],
    ids=["with the lease", "without it", "without a fence", "nothing is to be moved"],
)
def test_it_leads_once_it_has_the_lease_and_does_nothing_before_its_fence_is_stored(
    given: dict[str, Any], error: type[Exception], asked: list[str]
) -> None:
    broker = Broker(**given)
    with pytest.raises(error):
        session_of(broker).run()
    assert broker.asked == asked


def test_each_schema_version_that_was_met_has_a_fence_beside_that_of_none() -> None:
    broker, versions = Broker(), {3, 7}
    with pytest.raises(pulsar.ConnectError):
        session_of(broker, versions).run()
    assert broker.asked.count("fence") == len({NO_SCHEMA, *versions})
    assert versions == {3, 7}


@pytest.mark.parametrize("fails", ["the registry", "the store"])
def test_versions_that_cannot_be_fenced_are_forgotten_so_that_the_next_session_can_acknowledge_again(
    fails: str,
) -> None:
    broker, versions = Broker(), {3, 7}
    if fails == "the registry":
        broker.lost = frozenset({7})
    else:
        broker.answer = NOWHERE
    with pytest.raises((pulsar.Timeout, SessionFailed)):
        session_of(broker, versions).run()
    assert versions == set()
    assert "journal" not in broker.asked
    broker.answer, broker.asked = STORED, []
    with pytest.raises(pulsar.ConnectError):
        session_of(broker, versions).run()
    assert broker.asked == ["lease", "led", "fence", "journal", "given back"]


@pytest.mark.parametrize(("error", "led"), [(None, True), (pulsar.ProducerBusy(), False)])
def test_a_lifter_leads_only_while_its_session_has_the_lease(error: Exception | None, *, led: bool) -> None:
    seen: list[bool] = []

    class Looking(Broker):
        def close(self) -> None:
            seen.append(mover.leads)

        def create_producer(self, _topic: str, **options: Any) -> Any:
            mover.handle.stop(0)  # so that no second session begins
            return super().create_producer(_topic, **options)

    broker: Any = Looking()
    broker.error = error
    mover = Mover(broker, PART, 0)
    mover.run()
    assert any(seen) is led
    assert not mover.leads


class Tools:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.rng = system_random()
        self.hooks = Hooks(())


def test_a_session_that_met_others_is_followed_by_one_that_ends_when_all_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools: Any = Tools()
    untils: list[int | None] = []
    script = [("met", 5_000), ("met", 1_000), ("over", ALL_KNOW_MS), ("paused", 7), ("stop", 0)]

    class Session:
        met_others = False

        def __init__(self, *args: Any) -> None:
            untils.append(args[-1])

        def run(self) -> None:
            word, took_ms = script[len(untils) - 1]
            tools.clock.advance(took_ms)
            self.met_others = word == "met"
            if word == "stop":
                mover.handle.stop(0)

    monkeypatch.setattr(module, "MoveSession", Session)
    mover = Mover(tools, "persistent://acme/crm/others", 0)
    mover.run()
    assert untils == [None, 5_000 + ALL_KNOW_MS, 6_000 + ALL_KNOW_MS, None, None]
    assert ALL_KNOW_MS > AT_LEAST_MS
