"""What stands around handlers, and the inbox among it, on a real broker."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, backlog, make_topic, now_ms, running
from tests.broker.test_cancel import plan_on, provisioned
from timewheel.consumers import DelayedConsumer, DelayedMessage, Middleware, Postpone, SkipTimer
from timewheel.consumers.inbox import MemoryInbox, SqliteInbox
from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan
from timewheel.errors import InboxUnavailable
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

WAIT_S = 60


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    make_topic(pulsar_broker, topic, partitions=2, subscriptions=(SUBSCRIPTION,))
    return Plan(due_topic=topic, subscriptions=(SUBSCRIPTION,), partitions=2)


def send(client: Any, plan: Plan, *names: str, keys: tuple[str, ...] = ("a",)) -> None:
    """Each as often as there are keys: with another key it may lie in another partition."""
    with DelayedProducer(client, plan) as producer:
        for name in names:
            for key in keys:
                producer.send(b"x", timer_id=name, partition_key=key)


def test_a_timer_whose_copies_reach_two_replicas_is_handled_by_one(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(40)]
    send(client, plan, *names, keys=("a", "b", "c"))
    handled = Handled()
    inboxes = [SqliteInbox(tmp_path / "inbox.sqlite3", synchronous="normal") for _ in range(2)]
    one, two = (DelayedConsumer(client, plan, SUBSCRIPTION, inbox=inbox, receiver_queue_size=1) for inbox in inboxes)
    with running(one, handled, workers=2), running(two, handled, workers=2):
        eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0, WAIT_S)
        assert one.counts.done + two.counts.done == 40
    for inbox in inboxes:
        inbox.close()
    assert handled.times == Counter(names)


def test_after_a_restart_it_is_remembered(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    inbox = MemoryInbox()
    send(client, plan, "t")
    for skipped in range(2):
        handled = Handled()
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION, inbox=inbox)
        with running(consumer, handled):
            eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0, WAIT_S)
        assert (consumer.counts.skipped, handled.times.total()) == (skipped, 1 - skipped)
        send(client, plan, "t")


class Sometimes(MemoryInbox):
    """Away for the first claims."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 3

    def claim(self, key: str, owner: str, lease_ms: int) -> Any:
        self.away -= 1
        if self.away >= 0:
            raise InboxUnavailable("the store", "it is away", "wait")
        return super().claim(key, owner, lease_ms)


def test_a_store_that_is_away_costs_time_and_no_timer(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    events, handled = Events(), Handled()
    send(client, plan, "t")
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, inbox=Sometimes(), hooks=(events,))
    with running(consumer, handled):
        eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0, WAIT_S)
        assert consumer.counts.postponed == 3
    assert handled.times == Counter(["t"])
    told: list[Any] = [event.fields["count"] for event in events.named("inbox_did_not_answer")]
    assert (told[0], sum(told)) == (1, 3), "at once, and then together"


class Tenants(Middleware):
    """Stands around each handler, and notes; skips one tenant."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def before(self, message: DelayedMessage) -> None:
        self.notes.append(f"before {message.timer_id}")
        if message.properties().get("tenant") == "gone":
            raise SkipTimer("the tenant is gone")

    def after(self, message: DelayedMessage) -> None:
        self.notes.append(f"after {message.timer_id}")

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        self.notes.append(f"failed {message.timer_id} {type(error).__name__}")


def test_a_handler_may_put_a_timer_off_and_what_stands_around_it_may_skip_one(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic))  # with cancels: what is put off is asked about again
    middleware, at_ms = Tenants(), []

    def handle(_: DelayedMessage) -> None:
        at_ms.append(now_ms())
        if len(at_ms) == 1:
            raise Postpone(dt.timedelta(seconds=1))

    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="skipped", properties={"tenant": "gone"})
        producer.send(b"x", timer_id="put off")
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, middleware=[middleware])
    with running(consumer, handle):
        eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0, WAIT_S)
        counts = consumer.counts
    assert len(at_ms) == 2
    assert at_ms[1] - at_ms[0] >= 1_000
    assert (counts.skipped, counts.postponed, counts.done, counts.failed) == (1, 1, 1, 0)
    assert sorted(middleware.notes) == sorted(
        ["before skipped", "before put off", "failed put off Postpone", "before put off", "after put off"]
    )


SERVICE = """
import signal, sys, time
import pulsar
from timewheel.consumers import DelayedConsumer
from timewheel.core import Plan

# Whoever starts the tests in the background of a shell has SIGINT ignored, and what it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

def handle(message):
    print("begun", flush=True)
    time.sleep(1)
    print("done", flush=True)

with DelayedConsumer(client, Plan.load(sys.argv[2]), "billing") as consumer:
    consumer.run(handle, workers=1)
client.close()
print("left", flush=True)
"""


def ends_what_it_has_begun(broker: Broker, plan: Plan, folder: Path, script: str, number: signal.Signals) -> None:
    """A service that is at the first of 20 timers is sent a signal."""
    save_plan(plan, folder / "plan.toml")
    command = [sys.executable, "-c", script, broker.service_url, str(folder / "plan.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        watchdog = threading.Timer(WAIT_S, service.kill)
        watchdog.start()
        assert service.stdout is not None
        assert service.stdout.readline() == "begun\n"
        service.send_signal(number)
        rest = service.stdout.read().split()
        watchdog.cancel()
    assert service.returncode == 0
    assert rest[-1] == "left"
    handled = rest.count("done")
    assert rest.count("begun") == handled - 1
    assert handled < 20
    # What was handled is acknowledged, and nothing else.
    eventually(lambda: backlog(broker, plan.due_topic) == 20 - handled, WAIT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_told_to_end_ends_what_it_has_begun(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path, number: signal.Signals
) -> None:
    send(client, plan, *(f"t{number}" for number in range(20)))
    ends_what_it_has_begun(pulsar_broker, plan, tmp_path, SERVICE, number)
