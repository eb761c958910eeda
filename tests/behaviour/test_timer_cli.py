"""`timewheel timer` on a real broker: what is known of one timer, and moving it by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_cancel import SCHEMES, plan_on, provisioned
from tests.behaviour.test_cut_log import is_at_end, reading
from tests.behaviour.test_retry import WAIT_S, left
from tests.broker.due_topic import SUBSCRIPTION, now_ms, running
from tests.support.command_line import timewheel, well
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage, ParkTimer
from timewheel.core.cancellations import CancellationTable
from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan
from timewheel.inspect.status import Amount, status_of
from timewheel.inspect.status.places import status_facts
from timewheel.inspect.whereis import State, Wanted, whereis
from timewheel.inspect.whereis.search import whereabouts_facts
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, plan_on(topic, SCHEMES["tiered"], retry=True))


@pytest.fixture
def run(pulsar_broker: Broker, plan: Plan, tmp_path: Path) -> Run:
    save_plan(plan, tmp_path / "plan.toml")
    (tmp_path / "content").write_bytes(b"\x00moved")
    urls = ["--admin-url", pulsar_broker.admin_url, "--service-url", pulsar_broker.service_url]

    def command(word: str, *arguments: str, entered: str | None = None) -> subprocess.CompletedProcess[str]:
        return timewheel("timer", word, "plan.toml", *arguments, *urls, cwd=tmp_path, entered=entered or "")

    return command


@pytest.mark.real
def test_a_timer_is_moved_by_hand(client: Any, pulsar_broker: Broker, plan: Plan, run: Run) -> None:
    came: list[DelayedMessage] = []
    with DelayedProducer(client, plan) as producer:
        producer.send(b"first", deliver_after=timedelta(seconds=5), timer_id="meeting")
    moved = run(
        "reschedule", "meeting", "--after", "3s", "--content", "content", "--key", "k", "--property", "a=b=c", "--json"
    )
    assert moved.returncode == 0, moved.stderr
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), came.append):
        eventually(lambda: came and left(pulsar_broker, plan) == 0, WAIT_S)
        eventually(lambda: now_ms() > json.loads(moved.stdout)["due_ms"] + 3_000, WAIT_S)
    (one,) = came
    assert (one.data(), one.partition_key(), one.properties()) == (b"\x00moved", "k", {"a": "b=c"})
    assert one.generation == json.loads(moved.stdout)["generation"]

    by_time = run("reschedule", "meeting", "--at", str(now_ms()), "--content", "-", entered="typed")
    assert "earlier timers under this id are cancelled" in by_time.stdout, by_time.stderr
    for wrong in (
        ("--content", "content"),
        ("--after", "1s", "--at", "2026-01-01", "--content", "content"),
        ("--after", "1s", "--content", "nowhere"),
        ("--after", "1s", "--content", "content", "--property", "a"),
    ):
        assert run("reschedule", "meeting", *wrong).returncode == 2


def test_whereis_and_status_know_what_is_cancelled(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    with DelayedProducer(client, plan) as producer:
        handled = producer.send(b"x", timer_id="handled")
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION, relay=False)
        with running(consumer, lambda _: None):
            eventually(lambda: consumer.counts.done == 1 and left(pulsar_broker, plan) == 0, WAIT_S)
        at_ms = now_ms()
        timers = [
            producer.send(b"x", deliver_after=timedelta(seconds=40), timer_id=f"t{n}", group="g" if n > 6 else None)
            for n in range(10)
        ]
        for timer in (*timers[:4], handled):
            producer.cancel(timer)
        producer.cancel_group("g")
    with reading(client, plan) as log, AdminClient(pulsar_broker.admin_url) as admin:
        assert is_at_end(log)

        def seen(timer_id: str, cancellations: CancellationTable | None = log.table) -> tuple[State, str | None]:
            wanted = Wanted.of(timer_id, sent_ms=at_ms, within_ms=30_000)
            found = whereis(admin, plan, wanted, cancellations=cancellations)
            assert whereabouts_facts(found)["state"] == found.state.value
            return found.state, None if found.cancellation is None else found.cancellation.kind

        assert [seen(f"t{n}") for n in (0, 3, 4, 6, 7, 9)] == [
            *[(State.CANCELLED, "timer")] * 2,
            *[(State.HELD, None)] * 2,
            *[(State.CANCELLED, "group")] * 2,
        ]
        assert seen("t0", None) == (State.HELD, None), "nobody knows without the log"
        assert seen("handled") == (State.HANDLED, "timer"), "it may have been handled before"
        assert seen("nobody sent it")[1] is None
        found = status_of(admin, plan, is_cancelled=log.table.is_cancelled)
        assert (found.timers, found.cancelled) == (Amount(10.0), Amount(7.0))
        assert status_facts(found)["cancelled"] == {"count": 7, "error": 0}
        assert status_of(admin, plan).cancelled is None


@pytest.mark.real
@pytest.mark.usefixtures("run")  # writes the plan file
def test_the_commands_tell_it(client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path) -> None:
    with DelayedProducer(client, plan) as producer:
        timer = producer.send(b"x", deliver_after=timedelta(seconds=50))
        producer.cancel(timer)
    urls = ["--admin-url", pulsar_broker.admin_url]

    def said(*words: str, service_url: str = pulsar_broker.service_url) -> subprocess.CompletedProcess[str]:
        return timewheel(*words, *urls, "--service-url", service_url, cwd=tmp_path)

    there = well(said("whereis", "plan.toml", timer.id))
    assert f"{timer.id}: cancelled: the copies that are still stored are not delivered" in there.stdout
    assert "cancel   timers sent under this id before" in there.stdout
    assert "1 timer waits, 1 is cancelled and will not be handed out" in said("status", "plan.toml").stdout
    blind = well(said("status", "plan.toml", service_url="pulsar://localhost:1"))
    assert "Not seen: the log of cancellations" in blind.stderr
    assert "1 timer waits" in blind.stdout
    assert "are cancelled" not in blind.stdout


def test_all_that_is_known_of_a_timer_is_shown(client: Any, pulsar_broker: Broker, plan: Plan, run: Run) -> None:
    with DelayedProducer(client, plan) as producer:
        named = producer.send(b"x", deliver_after=timedelta(seconds=30), timer_id="order-7")
        generated = producer.send(b"x", deliver_after=timedelta(seconds=30))
        producer.cancel(named)
        grouped = producer.send(b"x", deliver_after=timedelta(seconds=30), group="flight-9")
        producer.cancel_group("flight-9")
        poison = producer.send(b"x", timer_id="poison")

    def handle(message: DelayedMessage) -> None:
        raise ParkTimer(f"nobody called {message.timer_id}")

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, relay=False)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == 1 and left(pulsar_broker, plan) == 0, WAIT_S)

    cancelled = well(run("show", "order-7"))
    assert "order-7: cancelled: timers sent under this id before" in cancelled.stdout
    assert "give --due or --sent-at" in cancelled.stdout
    by_group = well(run("show", grouped.id))
    assert f"{grouped.id}: cancelled: timers sent with the group flight-9 before" in by_group.stdout
    assert "not cancelled" not in by_group.stdout
    nowhere = run("show", "never-sent", "--sent-at", str(now_ms()), "--due", str(now_ms() + 20_000))
    assert nowhere.returncode == 4, nowhere.stdout
    there = run("show", generated.id)
    assert f"{generated.id}: not cancelled" in there.stdout
    assert f"{generated.id}: held in" in there.stdout
    parked = json.loads(run("show", "poison", "--json").stdout)
    assert parked == {
        "timer": "poison",
        "cancellation": None,
        "parked": [{"subscription": SUBSCRIPTION, "reason": "nobody called poison"}],
        "whereis": None,
    }
    assert "parked by billing since" in run("show", "poison").stdout
    by_due = well(run("show", "poison", "--due", str(poison.due_ms)))
    assert "poison: not handled: parked in" in by_due.stdout, by_due.stdout
    assert "poison: handled" not in by_due.stdout
    held = json.loads(run("show", "order-7", "--sent-at", str(now_ms()), "--within", "1m", "--json").stdout)
    assert held["whereis"]["state"] == "cancelled"
    assert held["cancellation"]["forget_ms"] > named.due_ms
