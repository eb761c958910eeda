"""A plan changes while timers wait: nothing is lost, and nothing is left behind in silence."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import TIERED, WHEEL, Stage, plan_of
from tests.support.command_line import timewheel, well
from tests.support.through import Through
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminError
from timewheel.core.names import RELAY_SUBSCRIPTION, Names, namespace_of, partition_topic
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.core.planfile import save_plan
from timewheel.core.steps import steps
from timewheel.core.topology import UndrainedTopics
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.inspect.status import status_of
from timewheel.provision import FormerTopics, ensure, roll
from timewheel.provision.former_topics import RemovalStage, delete_once_left, left_behind, remove_drained
from timewheel.provision.provisioning import Report
from timewheel.relay import Relay
from timewheel.relay.driver import former_topic_drainer, hop_producers
from timewheel.testing import Broker, eventually

NARROW = Tiered(window_ms=1_500, tiers_ms=(1_500, 3_000))
WIDE = replace(NARROW, window_ms=4_000)


class Unanswered(Through):
    """The user's client, but for one topic no send ever gets an answer: as with a broker that hangs."""

    def __init__(self, client: Any, topic: str) -> None:
        super().__init__(client)
        self._topic = topic

    def create_producer(self, topic: str, **options: Any) -> Any:
        producer = self._inner.create_producer(topic, **options)
        return _Swallowing(producer) if topic.startswith(self._topic) else producer


class _Swallowing(Through):
    def send_async(self, *_: Any, **__: Any) -> None:
        """Under way for ever."""

    def flush(self) -> None:
        """Nothing is waited for."""


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
        eventually(lambda: "B" in stage.copies(), 60, poll=0.1)
        first.stop(200)
        assert set(stage.copies()) == {"B"}
        changed = replace(stage.plan, scheme=WIDE, revision=2)
        with Relay(stage.client, changed, hooks=(stage.events,)) as second:
            eventually(lambda: second.status().total("forwarded") >= 2, 60, poll=0.1, message=str(second.status()))
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


AT_ONCE = 6
BY_MINUTE = Calendar(interval_ms=60_000)
CHANGES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "a tier was taken out": (TIERED, {"scheme": replace(TIERED, tiers_ms=(1_500,))}),
    "other tiers": (TIERED, {"scheme": replace(TIERED, tiers_ms=(1_500, 5_000))}),
    "held by the broker now": (TIERED, {"scheme": replace(TIERED, hold="broker")}),
    "held by the relay now": (replace(TIERED, hold="broker"), {"scheme": TIERED}),
    "one more slot": (WHEEL, {"scheme": replace(WHEEL, rings=(replace(WHEEL.rings[0], slots=7),))}),
    "tiers instead of rings": (WHEEL, {"scheme": TIERED}),
    "rings instead of tiers": (TIERED, {"scheme": WHEEL, "max_delay_ms": 8_000}),
    "native instead of tiers": (TIERED, {"scheme": Native()}),
    "native instead of rings": (WHEEL, {"scheme": Native()}),
    "a calendar instead of tiers": (TIERED, {"scheme": BY_MINUTE}),
    "a holding namespace": (TIERED, {"holding_namespace": "public/held"}),
    "no longer": (TIERED, {"max_delay_ms": 5_000, "guard_ms": 600}),
}
DUE_CHANGES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "another interval": (BY_MINUTE, {"scheme": Calendar(interval_ms=30_000), "former_intervals_ms": (60_000,)}),
    "tiers instead of a calendar": (BY_MINUTE, {"scheme": TIERED, "former_intervals_ms": (60_000,)}),
    "native instead of a calendar": (BY_MINUTE, {"scheme": Native(), "former_intervals_ms": (60_000,)}),
    "a calendar instead of native": (Native(), {"scheme": BY_MINUTE}),
}
"""Timers wait in what was a due topic."""


def filled(stage: Stage, count: int = 5) -> set[str]:
    """Timers of the stage's plan, due in 5.9 s, wherever it puts them."""
    names = {f"t{number}" for number in range(count)}
    for name in sorted(names):
        at_ms = now_ms()
        route = stage.router.route(at_ms + 5_900, at_ms)
        stage.put(route.topic, Envelope(name, at_ms + 5_900, at_ms), deliver_at=route.deliver_at_ms or None)
    stage.flush()
    return names


def provision(stage: Stage, plan: Plan) -> Report:
    return ensure(stage.admin, plan, now_ms=now_ms(), create_namespaces=True, ignore_former_topics=True)


def received(stage: Stage, plan: Plan, names: set[str], **options: Any) -> DelayedConsumer:
    """A consumer of the new plan that has had every timer once, none early; it is running still."""
    consumer = stage.enter(DelayedConsumer(stage.client, plan, plan.subscriptions[0], hooks=(stage.events,), **options))
    waiting = set(names)
    while waiting:
        message = consumer.receive(timeout_millis=30_000)
        assert message.due_at is not None
        assert message.due_at <= dt.datetime.now(dt.UTC)
        assert message.timer_id in waiting, "twice, or none of ours"
        waiting.remove(message.timer_id)
        consumer.acknowledge(message)
    return consumer


def at_once(play: Callable[[str], None], changes: Iterable[str]) -> None:
    """All of them side by side, since each mostly waits; what goes wrong is told by its change."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plays = {change: pool.submit(play, change) for change in changes}
    failed = {change: error for change, done in plays.items() if (error := done.exception()) is not None}
    if failed:
        raise ExceptionGroup(", ".join(failed), [error for error in failed.values() if isinstance(error, Exception)])


def test_a_relay_drains_what_an_earlier_plan_held(pulsar_broker: Broker) -> None:
    def play(change: str) -> None:
        before, changed = CHANGES[change]
        with Stage(pulsar_broker, plan_of(before)) as stage:
            names = filled(stage)
            plan = replace(stage.plan, revision=2, **changed)
            provision(stage, plan)
            inspect = FormerTopics(stage.admin, plan)
            consumer = received(stage, plan, names, former_topics=inspect)
            drained = {event.fields["topic"] for event in stage.events.named("relay_drains_former_topic")}
            former = {topic.name for topic in inspect() if topic.holding}
            if before != plan.scheme:
                assert drained, "or this test shows nothing"
            assert drained <= former
            assert not stage.events.named("relay_former_topic_unreadable")
            consumer.close()
            stage.close_producers()
            stage.await_all_acknowledged()
            removals = remove_drained(stage.admin, plan)
            assert {removal.topic for removal in removals} >= former
            assert {removal.stage for removal in removals} <= {RemovalStage.REMOVED}
            assert inspect() == ()

    at_once(play, CHANGES)


def test_consumers_read_what_was_a_due_topic(pulsar_broker: Broker) -> None:
    def play(change: str) -> None:
        before, changed = DUE_CHANGES[change]
        with Stage(pulsar_broker, plan_of(before)) as stage:
            names = filled(stage)
            plan = replace(stage.plan, revision=2, **changed)
            report = ensure(stage.admin, plan, now_ms=now_ms())
            assert all("this plan's consumers read it" in finding.read for finding in report.findings)
            assert report.findings
            received(stage, plan, names, former_topics=FormerTopics(stage.admin, plan))

    at_once(play, DUE_CHANGES)


def test_a_topic_in_use_stays_and_one_with_timers_too(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of(max_delay_ms=600_000)) as stage:
        stage.hold([500_000])  # in the long tier
        producer = stage.producer(stage.tiers[1])
        plan = replace(stage.plan, scheme=Native())
        stages = {removal.topic: removal.stage for removal in remove_drained(stage.admin, plan, let_go_ms=0)}
        assert stages == {stage.tiers[0]: RemovalStage.WAITS, stage.tiers[1]: RemovalStage.IN_USE}
        producer.send(b"still there")
        dry = remove_drained(stage.admin, replace(stage.plan, scheme=WHEEL, max_delay_ms=8_000), dry_run=True)
        assert {str(removal) for removal in dry} == {"1 entry waits there"}


def test_a_topic_without_its_subscription_is_not_taken_for_empty(stage: Stage) -> None:
    stage.hold([50_000] * 3)
    stage.admin.subscriptions.delete(stage.tiers[0], RELAY_SUBSCRIPTION)
    removals = remove_drained(stage.admin, replace(stage.plan, scheme=Native()), dry_run=True)
    assert {removal.topic: removal.stage for removal in removals} == {
        stage.tiers[0]: RemovalStage.WAITS,
        stage.tiers[1]: RemovalStage.EMPTY,
    }


@pytest.mark.short
def test_a_relay_drains_what_comes_to_a_former_tier_later_and_lets_go_of_it_when_it_is_empty(
    pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling deployment: the relay has the new plan before the producers have."""
    monkeypatch.setattr(former_topic_drainer, "LOOK_MS", 500)
    with Stage(pulsar_broker, plan_of(replace(TIERED, tiers_ms=(1_500,)))) as stage:
        inspect = FormerTopics(stage.admin, stage.plan)
        relay = stage.relay(former_topics=inspect)
        former = replace(stage.plan, scheme=TIERED)
        provision(stage, former)
        at_ms = now_ms()
        tier = Names(former).of_step(steps(former)[0])[0]
        stage.put(tier, Envelope("late comer", at_ms + 5_000, at_ms))
        stage.flush()
        drained = eventually(lambda: [one for one in inspect() if one.drained_by], 60)
        assert (drained[0].name, drained[0].drained_by) == (tier, (relay.relay_id,))
        assert left_behind(replace(stage.plan, relay="embedded"), drained) == ()
        assert [message.properties()["tw-id"] for message in stage.await_due(1)] == ["late comer"]
        assert len(relay.status().partitions) == 2
        stage.close_producers()
        eventually(lambda: not inspect()[0].backlog, 60)
        (removal,) = remove_drained(stage.admin, stage.plan)
        assert (removal.topic, removal.stage) == (tier, RemovalStage.REMOVED)
        # It holds nothing of that topic any more; the thread that did ends a moment later.
        eventually(lambda: len(relay.status().partitions) == 1 and relay.ready, 60)
        assert inspect() == ()


def test_a_topic_that_cannot_be_read_is_told_and_the_relay_is_not_ready(stage: Stage) -> None:
    strange = f"{stage.plan.due_topic}.tw.r3.ring-1d.001"
    stage.admin.topics.create(strange, 1)
    stage.admin.subscriptions.create(strange, RELAY_SUBSCRIPTION)
    relay = stage.relay(former_topics=FormerTopics(stage.admin, stage.plan))
    assert relay.ready, "nothing waits there"
    relay.stop()
    stage.put(strange, Envelope("t", now_ms() + 5_000, now_ms()))
    stage.flush()
    other = stage.relay(start=False, former_topics=FormerTopics(stage.admin, stage.plan)).start()
    eventually(lambda: other.status().unreadable == (strange,), 60)
    assert not other.ready
    (told,) = stage.events.named("relay_former_topic_unreadable")
    assert (told.level, told.fields["topic"], told.fields["backlog"]) == ("error", strange, 1)


@pytest.mark.real
def test_control_a_delete_while_a_client_is_away_for_a_moment_makes_it_revive_the_topic(stage: Stage) -> None:
    """The client does not know the broker's word for the end of a topic, and drops its connection over it."""
    tier = stage.tiers[0]
    stage.open_client().subscribe(
        partition_topic(tier, 0), RELAY_SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Failover
    )
    with pytest.raises(AdminError, match="412"):
        stage.admin.topics.delete(tier)
    stage.admin.topics.terminate(tier)
    assert eventually(lambda: stage.admin.topics.delete(tier), 1, poll=0.01), "its consumer is not connected"
    # It says that it is connected for a moment more, so the broker is asked.
    revived = partition_topic(tier, 0)
    eventually(lambda: revived in stage.admin.topics.list("public/default"), 60, message="the client made no topic")
    assert stage.admin.topics.partitions(tier) is None


def test_a_topic_is_not_deleted_while_a_client_is_away_for_a_moment(stage: Stage) -> None:
    tier = stage.tiers[0]
    consumer = stage.open_client().subscribe(
        partition_topic(tier, 0), RELAY_SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Failover
    )
    stage.admin.topics.terminate(tier)
    assert not delete_once_left(stage.admin, [tier])
    consumer.close()
    eventually(lambda: delete_once_left(stage.admin, [tier]) == {tier}, 60)
    assert stage.admin.topics.partitions(tier) is None


@pytest.mark.parametrize(
    ("place", "before", "changed", "remedy"),
    [
        ("embedded", TIERED, {"scheme": Native()}, "timewheel relay abort PLAN"),
        ("service", BY_MINUTE, {"scheme": Native()}, r'former_intervals = \["1m"\]'),
    ],
)
def test_nothing_is_provisioned_while_nobody_would_move_timers_on(
    pulsar_broker: Broker, tmp_path: Path, place: Any, before: Scheme, changed: dict[str, Any], remedy: str
) -> None:
    with Stage(pulsar_broker, plan_of(before, relay=place)) as stage:
        filled(stage)
        plan = replace(stage.plan, revision=2, **changed)
        with pytest.raises(UndrainedTopics):
            ensure(stage.admin, plan, now_ms=now_ms(), dry_run=True)
        with pytest.raises(UndrainedTopics, match=rf"{remedy}.*--ignore-former-topics") as refused:
            ensure(stage.admin, plan, now_ms=now_ms())
        (left,) = refused.value.topics
        assert left.name.startswith(f"{stage.plan.due_topic}.tw.")
        assert 1 <= left.backlog <= 5, "five timers, in one entry or more"
        empty = f"{plan.due_topic}.tw.tier-9d"
        stage.admin.topics.create(empty, 1)
        save_plan(plan, tmp_path / "plan.toml")
        for options, said in (("--dry-run", "empty: would be removed"), ("--verbose", "removed")):
            command = ("topics", "ensure", tmp_path / "plan.toml", options, "--remove-drained")
            done = timewheel(*command, "--admin-url", pulsar_broker.admin_url)
            assert done.returncode == 1
            assert re.search("would take|all as it should be", done.stdout)
            assert f"{empty}: {said}\n" in done.stdout
            assert re.search(rf"{re.escape(left.name)}: \d entr\w+ waits? there", done.stdout)
            assert "--ignore-former-topics" in done.stderr
        report = ensure(stage.admin, plan, now_ms=now_ms(), ignore_former_topics=True)
        assert [finding.subject for finding in report.findings if finding.severity.word == "warning"] == [left.name]


def test_a_partition_that_nobody_has_loaded_counts(pulsar_broker: Broker) -> None:
    with Stage(pulsar_broker, plan_of(partitions=3)) as stage:
        stage.hold([5_000] * 3)
        stage.admin.topics.unload(stage.tiers[0])
        with pytest.raises(UndrainedTopics) as refused:
            ensure(stage.admin, replace(stage.plan, scheme=Native()), now_ms=now_ms())
        assert [(topic.name, topic.backlog) for topic in refused.value.topics] == [(stage.tiers[0], 3)]


@pytest.mark.real
def test_the_service_drains_and_the_command_removes(pulsar_broker: Broker, tmp_path: Path) -> None:
    with Stage(pulsar_broker, plan_of(relay="service")) as stage:
        stage.hold([5_600] * 5)
        stage.close_producers()
        plan = replace(stage.plan, scheme=replace(TIERED, tiers_ms=(1_500,)), revision=2)
        save_plan(plan, tmp_path / "plan.toml")

        def ensured(*options: str) -> str:
            command = ("topics", "ensure", tmp_path / "plan.toml", *options, "--remove-drained")
            done = well(timewheel(*command, "--admin-url", pulsar_broker.admin_url))
            return done.stdout

        assert re.search(rf"{re.escape(stage.tiers[0])}: \d entr.* wait", ensured("--dry-run"))
        with RelayProcess(pulsar_broker, plan, tmp_path) as service:
            service.await_ready()
            stage.await_due(5)
            stage.await_all_acknowledged()
        assert f"{stage.tiers[0]}: removed" in ensured()
        assert json.loads(ensured("--json"))["removals"] == []


def test_a_calendar_rolls_on_and_tells_of_timers_in_intervals_of_another_length(pulsar_broker: Broker) -> None:
    """Refusing would keep the next interval's topic from being made, and sends would fail for want of it."""
    with Stage(pulsar_broker, plan_of(BY_MINUTE)) as stage:
        now = now_ms()
        route = stage.router.route(now + 5_000, now)
        stage.put(route.topic, Envelope("t", now + 5_000, now))
        stage.flush()
        rolled = roll(stage.admin, replace(stage.plan, scheme=Calendar(interval_ms=30_000)), now_ms())
        assert [finding.subject for finding in rolled.made.findings if finding.severity.word == "warning"] == [
            route.topic
        ]
        assert rolled.made.steps


@pytest.mark.parametrize("relay", ["embedded", "service"])
@pytest.mark.short
def test_timers_in_a_holding_namespace_that_the_next_plan_does_not_name_are_no_secret(
    pulsar_broker: Broker, relay: Any
) -> None:
    held = f"public/held-{uuid.uuid4().hex[:8]}"
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.namespaces.create(held)
    with Stage(pulsar_broker, plan_of(holding_namespace=held, relay=relay)) as stage:
        names = filled(stage)
        plan = replace(stage.plan, holding_namespace=None, revision=2)
        remedy = rf'write former_namespaces = \["{held}"\] in the plan'
        with pytest.raises(UndrainedTopics, match=remedy):
            ensure(stage.admin, plan, now_ms=now_ms())
        for _ in range(2):  # it is not forgotten once it was overruled
            report = ensure(stage.admin, plan, now_ms=now_ms(), ignore_former_topics=True)
            (warning,) = (one for one in report.findings if held in one.subject)
            assert re.match(remedy, warning.cure)
        verdict = verdict_on(inspect_plan(stage.admin, plan, target="p.toml"))
        (left,) = [one for one in verdict.findings if one.slug == "left-behind"]
        assert re.match(remedy, left.cure)
        assert [namespace_of(topic.name) for topic in status_of(stage.admin, plan).former] == [held]

        cured = replace(plan, former_namespaces=(held,), relay="embedded", revision=3)
        assert not any("former_namespaces" in one.cure for one in provision(stage, cured).findings)
        consumer = received(stage, cured, names, former_topics=FormerTopics(stage.admin, cured))
        consumer.close()
        stage.close_producers()
        stage.await_all_acknowledged()
        remove_drained(stage.admin, cured)
        plan = replace(plan, revision=4)
        ensure(stage.admin, plan, now_ms=now_ms())
