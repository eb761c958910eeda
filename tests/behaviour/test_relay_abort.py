"""The way out of a plan: all that holding topics have is in the due topic at once, and the broker delays it."""

from __future__ import annotations

import datetime as dt
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from tests.support.command_line import timewheel, well
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import DELAYED_DELIVERY, DelayedDelivery
from timewheel.consumers import DelayedConsumer
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.routing import Hold
from timewheel.core.topology import topology
from timewheel.provision import ensure
from timewheel.testing import Broker, eventually

DAYS = Tiered(window_ms=10_000, tiers_ms=(10_000, 10 * MINUTE_MS, 10 * HOUR_MS, 10 * DAY_MS))
RINGS = Wheel(rings=(Ring(slot_ms=10_000, slots=24), Ring(slot_ms=3 * MINUTE_MS, slots=22)))
SCHEMES: dict[str, tuple[Scheme, int]] = {
    "tiers": (DAYS, 20 * DAY_MS),
    "tiers that the broker holds": (replace(DAYS, hold="broker"), 20 * DAY_MS),
    "rings": (RINGS, 50 * MINUTE_MS),
}
"""With a delay that no test waits for."""
FAR, NEAR = 40, 5
NEAR_MS = 27_000


class Leaving:
    """A stage whose plan has become native, and the command."""

    def __init__(self, stage: Stage, folder: Path, *, provisions: bool = True, **more: Any) -> None:
        self.stage = stage
        self.plan: Plan = replace(stage.plan, scheme=Native(), revision=2, **more)
        self.file = folder / "native plan.toml"
        save_plan(self.plan, self.file)
        if provisions:
            ensure(self.stage.admin, self.plan, now_ms=now_ms(), ignore_former_topics=True)

    def command(self, *words: str, file: Path | None = None) -> list[str]:
        broker = self.stage.broker
        command = [sys.executable, "-m", "timewheel", *words, str(file or self.file), "--admin-url", broker.admin_url]
        return command + (["--service-url", broker.service_url] if words[0] == "relay" else [])

    def run(self, *words: str, file: Path | None = None) -> subprocess.CompletedProcess[str]:
        return timewheel(*self.command(*words, file=file)[3:], timeout=180)

    @contextmanager
    def begun(self) -> Iterator[subprocess.Popen[str]]:
        command = self.command("relay", "abort")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def staged(scheme: Scheme = DAYS, far_ms: int = 20 * DAY_MS, **more: Any) -> Plan:
    return plan_of(scheme, max_delay_ms=far_ms + MINUTE_MS, **more)


def held(stage: Stage) -> int:
    """Entries in the holding topics of the stage's plan."""
    found = 0
    for topic in topology(stage.plan, 0).holding:
        stats = stage.admin.topics.partitioned_stats(topic.name, precise_backlog=True)
        found += sum(part.subscriptions[RELAY_SUBSCRIPTION].backlog for part in stats.partitions.values())
    return found


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.short
def test_all_that_waits_goes_back_at_once_and_none_is_lost_early_or_twice(
    pulsar_broker: Broker, tmp_path: Path, name: str
) -> None:
    """The stay is ten days, and the way out takes seconds. One scheme waits for what is due next: in the due topic all
    are alike.
    """
    with Stage(pulsar_broker, staged(*SCHEMES[name], partitions=2)) as stage:
        stage.hold([SCHEMES[name][1]] * FAR, prefix="far")
        near_ms = NEAR_MS if name == "tiers" else SCHEMES[name][1]
        near = {envelope.timer_id for envelope in stage.hold([near_ms] * NEAR, prefix="near")}
        stage.close_producers()
        leaving = Leaving(stage, tmp_path)

        done = well(leaving.run("relay", "abort"))
        assert "put back by this process in" in done.stdout
        assert re.search(rf": {FAR + NEAR} timers; 0 cancelled, 0 dead letters", done.stdout), done.stdout
        assert held(stage) == 0
        stage.assert_no_copies()
        assert len(stage.copies()) == FAR + NEAR

        (remedy,) = re.findall(
            r"remove the empty topics: timewheel (topics ensure) '(.*)' (--remove-drained)", done.stdout
        )
        assert remedy[1] == str(leaving.file)
        removed = leaving.run("topics", "ensure", "--remove-drained")
        assert removed.stdout.count(": removed") == len(topology(stage.plan, 0).holding), removed.stdout

        consumer = stage.enter(DelayedConsumer(stage.client, leaving.plan, BUSINESS, hooks=(stage.events,)))
        eventually(lambda: consumer.ready, 60)
        while near and name == "tiers":
            message = consumer.receive(timeout_millis=NEAR_MS + 60_000)
            assert message.due_at is not None
            assert message.due_at <= dt.datetime.now(dt.UTC)
            assert message.timer_id in near, "twice, or not yet due"
            near.remove(message.timer_id)
            consumer.acknowledge(message)

        def delayed() -> int:
            stats = stage.admin.topics.partitioned_stats(stage.plan.due_topic, precise_backlog=True)
            return sum(part.subscriptions[BUSINESS].delayed for part in stats.partitions.values())

        eventually(lambda: delayed() == FAR + len(near), 60, message="the broker delays the others")


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.short
def test_killed_in_the_middle_and_run_again_it_loses_none(pulsar_broker: Broker, tmp_path: Path, name: str) -> None:
    count = 3_000
    with Stage(pulsar_broker, staged(*SCHEMES[name])) as stage:
        stage.hold([SCHEMES[name][1]] * count)
        stage.close_producers()
        leaving = Leaving(stage, tmp_path)
        with leaving.begun() as process:
            eventually(
                lambda: stage.admin.topics.partitioned_stats(stage.plan.due_topic).total.published, 60, poll=0.02
            )
            process.send_signal(signal.SIGKILL)
            process.wait()
        well(leaving.run("relay", "abort"))
        assert held(stage) == 0
        copies = stage.copies()
        assert len(copies) == count
        if name != "tiers that the broker holds":  # there each hop under way at the kill may be made twice
            assert set(copies.values()) == {1}


@pytest.mark.real
def test_relays_that_have_the_plan_send_back_too(pulsar_broker: Broker, tmp_path: Path) -> None:
    """Of a Failover subscription one consumer works on a partition: these have some of them."""
    with Stage(pulsar_broker, staged(partitions=4, relay="service")) as stage:
        leaving = Leaving(stage, tmp_path)
        stage.hold([20 * DAY_MS] * 40)
        stage.close_producers()
        with RelayProcess(pulsar_broker, leaving.plan, tmp_path) as service:
            service.await_ready()
            well(leaving.run("relay", "abort"))
            assert service.process.poll() is None
        assert held(stage) == 0
        stage.assert_no_copies()
        assert len(stage.copies()) == 40


@pytest.mark.short
def test_while_a_relay_or_a_producer_works_by_the_earlier_plan_it_says_so(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    # By a draw for each partition, one of the two relays has it: all of them are the new one's once in 65,000 times.
    with Stage(pulsar_broker, staged(partitions=16)) as stage:
        leaving = Leaving(stage, tmp_path)
        old = stage.relay(relay_id="0-old")
        stage.hold([20 * DAY_MS] * 160)
        stage.close_producers()
        with leaving.begun() as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            said = next(line for line in lines if "0-old" in line)
            assert re.search(r"\d entr(y waits|ies wait) outside the topic", said)
            assert "restart those that run an earlier plan" in said
            old.stop()
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        sender = stage.producer(stage.tiers[0])
        done = leaving.run("relay", "abort")
        assert done.returncode == 1
        assert f"producers of an earlier plan are connected to {stage.tiers[0]}: restart those" in done.stdout
        stage.put(stage.tiers[0], Envelope("late comer", now_ms() + 20 * DAY_MS, now_ms()))
        stage.flush()
        stage.close_producers()
        del sender
        assert leaving.run("relay", "abort").returncode == 0
        stage.assert_no_copies()
        assert len(stage.copies()) == 161


def test_back_to_tiers_in_the_middle_what_is_put_back_stays_and_the_rest_waits_again(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    with Stage(pulsar_broker, staged()) as stage:
        leaving = Leaving(stage, tmp_path)
        stage.hold([20 * DAY_MS] * 5, prefix="before")
        assert stage.admin.topics.partitions(stage.tiers[0]) == 1
        stage.close_producers()
        assert leaving.run("relay", "abort").returncode == 0
        stage.plan = replace(stage.plan, revision=leaving.plan.revision + 1)
        ensure(stage.admin, stage.plan, now_ms=now_ms())
        relay = stage.relay()
        stage.hold([20 * DAY_MS] * 5, prefix="after")
        eventually(lambda: any(part.head_release_ms for part in relay.status().partitions), 60)
        assert {name[:6] for name in stage.copies()} == {"before"}
        assert held(stage) >= 1


def test_a_plan_that_still_holds_and_topics_that_are_not_ready_are_refused(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    with Stage(pulsar_broker, staged()) as stage:
        stage.hold([20 * DAY_MS])
        leaving = Leaving(stage, tmp_path, provisions=False, subscriptions=(BUSINESS, "more"))
        former = tmp_path / "former.toml"
        save_plan(stage.plan, former)
        for file, status, named in (
            (
                former,
                2,
                r"scheme = 'tiered': native to leave: write \[native\].*topics ensure \S+ --ignore-former-topics",
            ),
            (leaving.file, 1, r"is not as the native plan needs it.*topics ensure '.*' --ignore-former-topics"),
        ):
            refused = leaving.run("relay", "abort", file=file)
            assert (refused.returncode, refused.stdout) == (status, ""), refused.stderr
            assert re.search(named, refused.stderr), refused.stderr
        assert held(stage) == 1


def test_a_broker_that_takes_no_such_delay_is_met_before_anything_moves(pulsar_broker: Broker, tmp_path: Path) -> None:
    with Stage(pulsar_broker, staged()) as stage:
        stage.hold([20 * DAY_MS])
        leaving = Leaving(stage, tmp_path)
        value = DelayedDelivery(active=True, tick_ms=1_000, max_delay_ms=HOUR_MS)
        stage.admin.topic_policies.set(stage.plan.due_topic, DELAYED_DELIVERY, value)
        stage.admin.topic_policies.await_value(stage.plan.due_topic, DELAYED_DELIVERY, value)
        refused = leaving.run("relay", "abort")
        assert refused.returncode == 1
        assert "the longest delay is 1h; timers wait 20d 1m" in refused.stderr
        assert held(stage) == 1


def test_a_namespace_that_the_native_plan_forgets_is_emptied_too(pulsar_broker: Broker, tmp_path: Path) -> None:
    """A native plan holds nothing, so it reads naturally without the line."""
    namespace = f"public/held-{uuid.uuid4().hex[:8]}"
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.namespaces.create(namespace)
    with Stage(pulsar_broker, staged(holding_namespace=namespace)) as stage:
        stage.hold([20 * DAY_MS] * 3)
        stage.close_producers()
        leaving = Leaving(stage, tmp_path, holding_namespace=None)
        done = well(leaving.run("relay", "abort"))
        assert ": 3 timers; 0 cancelled, 0 dead letters" in done.stdout
        assert held(stage) == 0
        stage.assert_no_copies()


@pytest.mark.short
def test_a_timer_beyond_the_delay_that_the_broker_takes_is_named_as_the_reason(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    """The native plan's own max_delay is less than what the earlier plan took."""
    with Stage(pulsar_broker, staged()) as stage:
        stage.hold([2 * DAY_MS])
        stage.close_producers()
        leaving = Leaving(stage, tmp_path, max_delay_ms=30 * HOUR_MS)
        value = DelayedDelivery(active=True, tick_ms=1_000, max_delay_ms=36 * HOUR_MS)
        stage.admin.topic_policies.set(stage.plan.due_topic, DELAYED_DELIVERY, value)
        stage.admin.topic_policies.await_value(stage.plan.due_topic, DELAYED_DELIVERY, value)
        with leaving.begun() as process:
            assert process.stderr is not None
            said = next(line for line in iter(process.stderr.readline, "") if "outside the topic: " in line)
            assert "the broker takes delays up to 36h" in said
            assert said.rstrip().endswith(f"set-delayed-delivery {stage.plan.due_topic} -e -t 1s -md 0s")
            without = DelayedDelivery(active=True, tick_ms=1_000)
            stage.admin.topic_policies.set(stage.plan.due_topic, DELAYED_DELIVERY, without)
            out, _ = process.communicate(timeout=180)
            assert process.returncode == 0, out
        stage.assert_no_copies()


def test_a_calendar_is_left_by_its_consumers(pulsar_broker: Broker, tmp_path: Path) -> None:
    with Stage(pulsar_broker, plan_of(Calendar(interval_ms=60_000))) as stage:
        at_ms = now_ms()
        route = stage.router.route(at_ms + 3_000, at_ms)
        assert not isinstance(route, Hold)
        stage.put(route.topic, Envelope("t", at_ms + 3_000, at_ms), deliver_at=route.deliver_at_ms)
        stage.flush()
        stage.close_producers()
        leaving = Leaving(stage, tmp_path, provisions=False, former_intervals_ms=(60_000,))
        ensure(stage.admin, leaving.plan, now_ms=now_ms())
        done = well(leaving.run("relay", "abort"))
        assert f"{route.topic}: 1 entry waits here, of an earlier plan: this plan's consumers read it" in done.stdout
        assert "remove the empty topics" not in done.stdout
        consumer = stage.enter(DelayedConsumer(stage.client, leaving.plan, BUSINESS, hooks=(stage.events,)))
        message = consumer.receive(timeout_millis=60_000)
        assert message.due_at is not None
        assert message.due_at <= dt.datetime.now(dt.UTC)
        consumer.acknowledge(message)
        eventually(lambda: "remove the empty topics" in leaving.run("relay", "abort").stdout, 60, poll=1)
