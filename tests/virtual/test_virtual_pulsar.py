"""A virtual Pulsar: services run on it as they are, weeks pass in a moment, and faults come at will."""

from __future__ import annotations

import asyncio
import datetime as dt
import runpy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from timewheel.broker.admin.policies import MESSAGE_TTL_S, SIZE_QUOTA, BacklogQuota
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer, DelayedMessage
from timewheel.core import Plan, parse_plan
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.names import partition_topic
from timewheel.errors import SendOutcomeUnknown
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.inspect.gaps import inspect_gaps
from timewheel.producers import AsyncDelayedProducer, DelayedProducer
from timewheel.provision import ensure
from timewheel.testing.virtual import VirtualPulsar

PLAIN = "persistent://public/default/plain"
EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = parse_plan("""
format = 1
due_topic = "persistent://public/default/reminders"
subscriptions = ["billing"]
max_delay = "31d"
[tiered]
window = "1h"
tiers = ["1h", "1d", "7d"]
""")


@pytest.fixture
def virtual_pulsar() -> Iterator[VirtualPulsar]:
    """The plugin's fixture begins at the present time, and slots follow the wall clock."""
    with VirtualPulsar(begins=dt.datetime(2027, 1, 1, tzinfo=dt.UTC)) as virtual:
        yield virtual


def provisioned(virtual: VirtualPulsar, plan: Plan = PLAN) -> Plan:
    with virtual.admin() as admin:
        ensure(admin, plan, now_ms=int(time.time() * 1000))
    return plan


def consuming(client: Any, handler: Callable[[DelayedMessage], None], plan: Plan = PLAN) -> DelayedConsumer:
    """A service: its consumer runs on a thread of its own, as the service's code would start it."""
    consumer = DelayedConsumer(client, plan, "billing")
    consumer.start()
    threading.Thread(target=consumer.run, args=(handler,), daemon=True).start()
    return consumer


@pytest.mark.parametrize("name", ["native", "tiered", "wheel", "calendar_days"])
def test_a_shipped_example_runs_on_it_as_it_is(
    name: str, virtual_pulsar: VirtualPulsar, capsys: pytest.CaptureFixture[str]
) -> None:
    began = virtual_pulsar.now
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if "late by" in line]
    assert len(lines) >= 4
    assert all(line.endswith("late by 0:00:00") for line in lines)
    assert dt.timedelta(seconds=4) < virtual_pulsar.now - began < dt.timedelta(minutes=1)


def test_a_renewal_is_handled_after_17_days_and_not_before(virtual_pulsar: VirtualPulsar) -> None:
    provisioned(virtual_pulsar)
    handled: list[tuple[bytes, dt.datetime]] = []
    client = virtual_pulsar.client()
    consuming(client, lambda message: handled.append((message.data(), dt.datetime.now(dt.UTC))))
    with DelayedProducer(client, PLAN) as producer:
        due = producer.send(b"sub-42", deliver_after=dt.timedelta(days=17)).due_at

    assert [waiting.due for waiting in virtual_pulsar.pending()] == [due]
    virtual_pulsar.advance(dt.timedelta(days=17) - dt.timedelta(seconds=1))
    assert handled == []
    virtual_pulsar.advance(seconds=1)
    assert handled == [(b"sub-42", due)]
    virtual_pulsar.advance(minutes=1)
    assert virtual_pulsar.pending() == []


def test_a_service_on_asyncio_waits_for_days_too(virtual_pulsar: VirtualPulsar) -> None:
    provisioned(virtual_pulsar)

    async def service() -> list[bytes]:
        client = pulsar.Client("pulsar://localhost:6650")
        async with AsyncDelayedProducer(client, PLAN) as producer, AsyncDelayedConsumer(client, PLAN, "billing") as own:
            await producer.send(b"sub-42", deliver_after=dt.timedelta(days=17))
            message = await own.receive(timeout=dt.timedelta(days=18))
            await own.acknowledge(message)
            return [message.data()]

    began = virtual_pulsar.now
    assert asyncio.run(service()) == [b"sub-42"]
    assert dt.timedelta(days=17) <= virtual_pulsar.now - began < dt.timedelta(days=17, minutes=1)


def test_what_a_thread_of_the_service_raises_is_raised_in_the_test(virtual_pulsar: VirtualPulsar) -> None:
    def service() -> None:
        time.sleep(3_600)
        raise ValueError("the service is broken")

    threading.Thread(target=service).start()
    virtual_pulsar.advance(minutes=59)
    with pytest.raises(ValueError, match="the service is broken"):
        virtual_pulsar.advance(minutes=2)


def test_a_service_that_is_killed_leaves_its_timers_to_another(virtual_pulsar: VirtualPulsar) -> None:
    provisioned(virtual_pulsar)
    handled: list[str] = []

    def service(name: str) -> None:
        client = virtual_pulsar.client()
        with DelayedConsumer(client, PLAN, "billing") as consumer:
            consumer.run(lambda _: handled.append(name))

    processes = [virtual_pulsar.start(service, name, name=name) for name in ("one", "two")]
    client = virtual_pulsar.client()
    with DelayedProducer(client, PLAN) as producer:
        for day in range(1, 11):
            producer.send(b"renew", deliver_after=dt.timedelta(days=day))
    virtual_pulsar.advance(days=5, hours=1)
    before = len(handled)
    processes[0].kill()
    virtual_pulsar.advance(days=6)
    assert before == 5
    assert handled[before:] == ["two"] * 5


def test_topics_that_are_unloaded_lose_and_repeat_nothing(virtual_pulsar: VirtualPulsar) -> None:
    provisioned(virtual_pulsar)
    handled: list[bytes] = []
    client = virtual_pulsar.client()
    consuming(client, lambda message: handled.append(message.data()))
    sent = [b"%d" % number for number in range(50)]
    with DelayedProducer(client, PLAN) as producer:
        for number, payload in enumerate(sent):
            producer.send(payload, deliver_after=dt.timedelta(hours=6 * number + 1))
    for _ in range(25):
        virtual_pulsar.advance(hours=13)
        for topic in list(virtual_pulsar.cluster.partitioned):
            virtual_pulsar.unload(topic)
    assert sorted(handled) == sorted(sent)


def test_a_wall_clock_that_jumps_back_makes_no_timer_early(virtual_pulsar: VirtualPulsar) -> None:
    provisioned(virtual_pulsar)
    handled: list[dt.datetime] = []
    client = virtual_pulsar.client()
    consuming(client, lambda _: handled.append(dt.datetime.now(dt.UTC)))
    with DelayedProducer(client, PLAN) as producer:
        due = producer.send(b"renew", deliver_after=dt.timedelta(hours=3)).due_at
    virtual_pulsar.advance(hours=2)
    virtual_pulsar.skew(dt.timedelta(hours=-1))
    virtual_pulsar.advance(hours=1, minutes=59)
    assert handled == []
    virtual_pulsar.advance(minutes=2)
    assert [moment - due for moment in handled] == [pytest.approx(dt.timedelta(0), abs=dt.timedelta(milliseconds=1))]


def test_gaps_and_doctor_see_what_is_there(virtual_pulsar: VirtualPulsar) -> None:
    """Every second of ten timers is due much later: each that is handled before one that waits is a gap."""
    plan = provisioned(virtual_pulsar, parse_plan("""
format = 1
due_topic = "persistent://public/default/native"
subscriptions = ["billing"]
max_delay = "31d"
[native]
"""))  # fmt: skip
    client = virtual_pulsar.client()
    consuming(client, lambda _: None, plan)
    with DelayedProducer(client, plan) as producer:
        for number in range(10):
            producer.send(b"x", deliver_after=dt.timedelta(days=20 if number % 2 else 1))
    virtual_pulsar.advance(days=2)
    with virtual_pulsar.admin() as admin:
        snapshot = inspect_gaps(admin, [partition_topic(plan.due_topic, 0)], BrokerProfile.named("4.0"))
        verdict = verdict_on(inspect_plan(admin, plan, target="plan.toml"))
    (gaps,) = snapshot.subscriptions
    assert gaps.parts[0].gap_count == 4, "the first is below the mark-delete position"
    assert not [finding for finding in verdict.findings if finding.severity.name == "ERROR"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_host_that_cannot_be_reached_is_given_up_after_a_minute(virtual_pulsar: VirtualPulsar, is_lost: bool) -> None:
    """Its timers go to another, and it goes on when it is back."""
    provisioned(virtual_pulsar)
    handled: list[tuple[str, bytes]] = []

    def service(name: str) -> None:
        with DelayedConsumer(virtual_pulsar.client(), PLAN, "billing") as consumer:
            consumer.run(lambda message: handled.append((name, message.data())))

    processes = [virtual_pulsar.start(service, name, name=name) for name in ("one", "two")]
    with DelayedProducer(virtual_pulsar.client(), PLAN) as producer:
        for number in range(20):
            producer.send(b"%d" % number, deliver_after=dt.timedelta(hours=2, seconds=number))
    virtual_pulsar.advance(hours=1, minutes=59, seconds=59)
    processes[0].disconnect()
    if is_lost:
        processes[0].kill()
        processes[0].reconnect()  # its switch is back, it is not
    virtual_pulsar.advance(minutes=2)
    handled_by_two = {payload for name, payload in handled if name == "two"}
    assert handled_by_two == {b"%d" % number for number in range(20)}
    if not is_lost:
        processes[0].reconnect()
        handled.clear()
        virtual_pulsar.advance(minutes=2)
        assert handled == []
        with DelayedProducer(virtual_pulsar.client(), PLAN) as producer:
            for number in range(20):
                producer.send(b"%d" % number, deliver_after=dt.timedelta(seconds=number))
        virtual_pulsar.advance(minutes=1)
        assert {name for name, _ in handled} == {"one", "two"}
        assert sorted(payload for _, payload in handled) == sorted(b"%d" % number for number in range(20))


def test_what_is_sent_while_nothing_can_be_written_is_stored_later_though_its_send_has_no_outcome(
    virtual_pulsar: VirtualPulsar,
) -> None:
    provisioned(virtual_pulsar)
    handled: list[bytes] = []
    client = virtual_pulsar.client()
    consuming(client, lambda message: handled.append(message.data()))
    with DelayedProducer(client, PLAN, send_timeout_millis=10_000) as producer:
        virtual_pulsar.stop_writes()
        began = virtual_pulsar.now
        with pytest.raises(SendOutcomeUnknown):
            producer.send(b"renew", deliver_after=dt.timedelta(days=1), timer_id="sub-42")
        assert dt.timedelta(seconds=10) <= virtual_pulsar.now - began < dt.timedelta(seconds=15)
        virtual_pulsar.resume_writes()
        producer.send(b"renew", deliver_after=dt.timedelta(days=1), timer_id="sub-42")
    assert len(virtual_pulsar.pending()) == 2
    virtual_pulsar.advance(days=2)
    assert handled == [b"renew"], "the second copy has the same id"


def test_a_time_to_live_and_a_quota_drop_what_waits_but_not_the_timers_of_a_plan(virtual_pulsar: VirtualPulsar) -> None:
    with virtual_pulsar.admin() as admin:
        admin.namespaces.set_policy("public/default", MESSAGE_TTL_S, 86_400)
        provisioned(virtual_pulsar)
        quota = BacklogQuota(limit_bytes=2_000, action="consumer_backlog_eviction")
        admin.topics.create_unpartitioned(PLAIN)
        admin.subscriptions.create(PLAIN, "billing")
        verdict = verdict_on(inspect_plan(admin, PLAN, target="plan.toml"))
        client = virtual_pulsar.client()
        plain = client.create_producer(PLAIN)
        for _ in range(4):
            plain.send(b"x" * 1_000, deliver_after=dt.timedelta(days=17))
        with DelayedProducer(client, PLAN) as producer:
            producer.send(b"sub-42", deliver_after=dt.timedelta(days=17))

        virtual_pulsar.advance(hours=23)
        assert len(virtual_pulsar.pending(PLAIN)) == 4
        admin.topic_policies.set(PLAIN, SIZE_QUOTA, quota)
        virtual_pulsar.advance(minutes=2)
        assert len(virtual_pulsar.pending(PLAIN)) in (1, 2)
        virtual_pulsar.advance(minutes=70)

        assert virtual_pulsar.pending(PLAIN) == []
        assert [waiting.payload for waiting in virtual_pulsar.pending()] == [b"sub-42"]
        assert admin.topics.stats(PLAIN).subscriptions["billing"].expired in (1, 2)
    assert not [finding for finding in verdict.findings if finding.severity.name == "ERROR"]
