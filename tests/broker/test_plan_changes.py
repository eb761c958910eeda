"""A plan changes while timers wait: nothing is lost, and nothing is left behind in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import TIERED, WHEEL, Stage, now_ms, plan_of
from timewheel.admin import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.consumers.relay import Relay
from timewheel.consumers.relay.driver import hop_producers
from timewheel.core.envelope import Envelope
from timewheel.core.former_topics import TimersLeftBehind
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.core.planfile import save_plan
from timewheel.ops import FormerTopics, ensure, roll
from timewheel.testing import Broker, eventually

NARROW = Tiered(window_ms=1_500, tiers_ms=(1_500, 3_000))
WIDE = replace(NARROW, window_ms=4_000)


class Unanswered:
    """The user's client, but for one topic no send ever gets an answer: as with a broker that hangs."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def create_producer(self, topic: str, **options: Any) -> Any:
        producer = self._client.create_producer(topic, **options)
        return _Swallowing(producer) if topic.startswith(self._topic) else producer


class _Swallowing:
    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def send_async(self, *_: Any, **__: Any) -> None:
        """Under way for ever."""

    def close(self) -> None:
        self._producer.close()


def replay_after_a_change(broker: Broker) -> tuple[set[str], int]:
    """Two timers leave one tier for two destinations, one hop is never answered, and the next relay has another plan.

    Under the narrow window A goes to the small tier and B to the due topic; under the wide one both go to the due
    topic, whose mark for this source stands at B, behind A.

    Returns:
        The timers in the due topic, and how many sends of the second relay the broker dropped as seen before.
    """
    with Stage(broker, plan_of(NARROW)) as stage:
        source, small = stage.tiers
        at_ms = now_ms()
        stage.put(source, Envelope("A", at_ms + 3_000 + 2_500, at_ms))
        stage.put(source, Envelope("B", at_ms + 3_000 + 1_000, at_ms))
        stage.flush()
        first = stage.relay(client=Unanswered(stage.client, small))
        eventually(lambda: "B" in stage.copies(), 20, poll=0.1)
        first.stop(200)
        assert set(stage.copies()) == {"B"}
        changed = replace(stage.plan, scheme=WIDE, revision=2)
        with Relay(stage.client, changed, hooks=(stage.events,)) as second:
            eventually(lambda: second.status().total("forwarded") >= 2, 20, poll=0.1, message=str(second.status()))
            return set(stage.copies()), second.status().total("deduplicated")


def test_a_replay_after_a_change_of_routing_is_stored(pulsar_broker: Broker) -> None:
    arrived, _ = replay_after_a_change(pulsar_broker)
    assert arrived == {"A", "B"}


def test_control_without_the_fingerprint_the_broker_drops_it(
    pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop_producers, "producer_name", lambda source, destination, *_: f"tw|{source}|{destination}")
    arrived, dropped = replay_after_a_change(pulsar_broker)
    assert arrived == {"B"}, "A was accepted, and is gone"
    assert dropped == 2


CHANGES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "a tier was taken out": (TIERED, {"scheme": replace(TIERED, tiers_ms=(1_500,))}),
    "the revision under a ring": (WHEEL, {"revision": 2}),
    "held by the broker now": (TIERED, {"scheme": replace(TIERED, hold="broker")}),
    "native now": (TIERED, {"scheme": Native()}),
    "another interval": (Calendar(interval_ms=60_000), {"scheme": Calendar(interval_ms=30_000)}),
}


@pytest.fixture(params=CHANGES)
def changed(request: pytest.FixtureRequest, pulsar_broker: Broker) -> Iterator[tuple[Stage, Plan]]:
    """A plan under which five timers wait, and another plan that does not name the topic in which they do."""
    before, change = CHANGES[request.param]
    with Stage(pulsar_broker, plan_of(before)) as stage:
        for number in range(5):
            now = now_ms()
            route = stage.router.route(now + 5_900, now)
            stage.put(route.topic, Envelope(f"t{number}", now + 5_900, now), deliver_at=route.deliver_at_ms or None)
        stage.flush()
        yield stage, replace(stage.plan, **change)


def test_nothing_is_provisioned_while_timers_wait_outside_the_plan(changed: tuple[Stage, Plan]) -> None:
    stage, plan = changed
    with pytest.raises(TimersLeftBehind):
        ensure(stage.admin, plan, now_ms=now_ms(), dry_run=True)
    with pytest.raises(TimersLeftBehind, match=r"--despite-former-topics.*relay run PLAN FORMER_PLAN") as refused:
        ensure(stage.admin, plan, now_ms=now_ms())
    (left,) = refused.value.topics
    assert left.name.startswith(f"{stage.plan.due_topic}.tw.")
    assert 1 <= left.backlog <= 5, "five timers, in one entry or more"
    report = ensure(stage.admin, plan, now_ms=now_ms(), despite_former_topics=True)
    assert [finding.where for finding in report.findings if finding.level == "warning"] == [left.name]


def test_a_partition_that_nobody_has_loaded_counts(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of(partitions=3)) as stage:
        stage.hold([5_000] * 3)
        stage.admin.topics.unload(stage.tiers[0])
        with pytest.raises(TimersLeftBehind) as refused:
            ensure(stage.admin, replace(stage.plan, scheme=Native()), now_ms=now_ms())
        assert [(topic.name, topic.backlog) for topic in refused.value.topics] == [(stage.tiers[0], 3)]


def test_a_relay_does_not_start_beside_them_and_starts_once_they_are_gone(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of()) as stage:
        stage.hold([5_600] * 5)
        plan = replace(stage.plan, scheme=replace(TIERED, tiers_ms=(1_500,)))
        look = FormerTopics(stage.admin, plan)
        for start in (
            Relay(stage.client, plan, former_topics=look).start,
            DelayedConsumer(stage.client, plan, plan.subscriptions[0], former_topics=look).start,
        ):
            with pytest.raises(TimersLeftBehind, match="tier-4s"):
                start()
        stage.relay()
        stage.await_due(5)
        stage.await_all_acknowledged()
        with Relay(stage.client, plan, former_topics=look) as relay:
            eventually(lambda: relay.ready, 20)


def test_a_relay_that_cannot_look_says_so_and_works(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of()) as stage, AdminClient("http://127.0.0.1:9", retry_for_s=0) as nobody:
        stage.relay(former_topics=FormerTopics(nobody, stage.plan))
        (told,) = stage.events.named("relay_former_topics_unknown")
        assert told.fields["due_topic"] == stage.plan.due_topic


def test_the_service_refuses_the_new_plan_alone_and_runs_it_beside_the_former(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    with Stage(pulsar_broker, plan_of()) as stage:
        stage.hold([5_600] * 5)
        plan = replace(stage.plan, scheme=replace(TIERED, tiers_ms=(1_500,)), revision=2)
        save_plan(stage.plan, tmp_path / "former.toml")
        with RelayProcess(pulsar_broker, plan, tmp_path) as alone:
            assert alone.process.wait(60) == 1
            assert "tier-4s" in alone.log.read_text()
        with RelayProcess(pulsar_broker, plan, tmp_path, more=[str(tmp_path / "former.toml")]) as both:
            both.await_ready()
            stage.await_due(5)
            stage.await_all_acknowledged()  # before it is killed: a hop is acknowledged after it is stored
        command = [sys.executable, "-m", "timewheel", "topics", "ensure", str(tmp_path / "plan.toml")]
        command += ["--admin-url", pulsar_broker.admin_url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_calendar_rolls_on_and_tells_of_timers_in_intervals_of_another_length(pulsar_broker: Broker) -> None:
    """Refusing would keep the next interval's topic from being made, and sends would fail for want of it."""
    with Stage(pulsar_broker, plan_of(Calendar(interval_ms=60_000))) as stage:
        now = now_ms()
        route = stage.router.route(now + 5_000, now)
        stage.put(route.topic, Envelope("t", now + 5_000, now))
        stage.flush()
        rolled = roll(stage.admin, replace(stage.plan, scheme=Calendar(interval_ms=30_000)), now_ms())
        assert [finding.where for finding in rolled.made.findings if finding.level == "warning"] == [route.topic]
        assert rolled.made.steps
