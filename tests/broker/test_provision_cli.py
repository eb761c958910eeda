"""`timewheel topics` on a real broker, as a user runs it."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.support.command_line import timewheel
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import SUBSCRIPTION_EXPIRY_MIN
from timewheel.core.durations import SECOND_MS
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import save_plan
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from timewheel.testing import Broker

PLAN = """
format = 1
due_topic = "persistent://{namespace}/reminders"
subscriptions = ["billing"]
partitions = 2
{table}
"""
TIERED = '[tiered]\nwindow = "1d"\ntiers = ["1d", "5d"]'


@pytest.fixture
def plan_file(tmp_path: Path, namespace: str) -> Path:
    path = tmp_path / "reminders.toml"
    path.write_text(PLAN.format(namespace=namespace, table=TIERED))
    return path


def test_ensure_shows_does_and_then_has_nothing_to_do(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker
) -> None:
    where = ["--admin-url", pulsar_broker.admin_url]

    told = timewheel("topics", "ensure", str(plan_file), *where, "--dry-run")
    assert (told.returncode, told.stderr) == (0, "")
    # Four topics: the due topic, two tiers, dead letters; each with a subscription and five policies.
    named = "subscription billing"
    assert f"\npersistent://{namespace}/reminders: create with 2 partitions, {named}, 5 policies\n" in told.stdout
    lines = told.stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1] == "4 topics: would take 28 steps"
    every = timewheel("topics", "ensure", str(plan_file), *where, "--dry-run", "--verbose", env={"COLUMNS": "40"})
    assert len(every.stdout.splitlines()) == 29
    assert f"persistent://{namespace}/reminders: create subscription billing at earliest" in every.stdout
    assert admin.topics.list(namespace) == ()

    done = timewheel("topics", "ensure", str(plan_file), *where, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert len(report["steps"]) == 28
    assert report["findings"] == []
    assert report["steps"][7] == {"topic": f"persistent://{namespace}/reminders", "step": "create with 2 partitions"}
    assert len(admin.topics.list_partitioned(namespace)) == 4

    again = timewheel("topics", "ensure", str(plan_file), *where)
    assert (again.returncode, again.stdout, again.stderr) == (0, "4 topics: all as it should be\n", "")


def test_ensure_fails_where_messages_can_be_lost(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker
) -> None:
    admin.namespaces.set_policy(namespace, SUBSCRIPTION_EXPIRY_MIN, 30)
    done = timewheel("topics", "ensure", str(plan_file), "--admin-url", pulsar_broker.admin_url)
    assert done.returncode == 1
    assert f"set-subscription-expiration-time {namespace} -t 0" in done.stdout
    assert len(admin.topics.list_partitioned(namespace)) == 4, "what can be done is done"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--admin-url", "http://127.0.0.1:1"], 1, "no connection to http://127.0.0.1:1"),
        (["--admin-url", "localhost:8080"], 2, "--admin-url must begin with http://"),
        (["--token", "a", "--token-file", "b"], 2, "not token and token_file"),
        (["--tls-ca", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_what_cannot_work_is_one_clear_line(plan_file: Path, arguments: list[str], status: int, words: str) -> None:
    done = timewheel("topics", "ensure", str(plan_file), *arguments, env={"COLUMNS": "500", "TERM": "dumb"})
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_plan_and_a_plan_that_does_not_roll_are_usage_errors(tmp_path: Path, plan_file: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(PLAN.format(namespace="acme/crm", table='[tiered]\nwindow = "1d"\ntiers = ["2d"]'))
    done = timewheel("topics", "ensure", str(bad))
    assert (done.returncode, "tiered.tiers" in done.stderr) == (2, True)
    done = timewheel("topics", "roll", str(plan_file))
    assert (done.returncode, "no calendar plan" in done.stderr) == (2, True)


@pytest.mark.short
def test_roll_watches_until_it_is_told_to_end(
    admin: AdminClient, namespace: str, tmp_path: Path, pulsar_broker: Broker
) -> None:
    plan = Plan(
        due_topic=f"persistent://{namespace}/reminders",
        subscriptions=("billing",),
        scheme=Calendar(interval_ms=2 * SECOND_MS),
        max_delay_ms=4 * SECOND_MS,
        guard_ms=0,
    )
    path = tmp_path / "calendar.toml"
    save_plan(plan, path)
    where = [str(path), "--admin-url", pulsar_broker.admin_url]

    once = timewheel("topics", "roll", *where, "--dry-run", "--json")
    assert once.returncode == 0, once.stderr
    assert json.loads(once.stdout)["open_topics"] == 0

    command = [sys.executable, "-m", "timewheel", "topics", "roll", *where, "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            seen: list[str] = []
            made: set[str] = set()

            def turned_over() -> bool:
                assert watcher.stdout is not None
                rolled = json.loads(watcher.stdout.readline())
                made.update(admin.topics.list_partitioned(namespace))
                seen.extend(topic["topic"] for topic in rolled["retired"] if topic["stage"] == "deleted")
                return len(seen) >= 3

            # Empty topics of two seconds each: made ahead, passed, removed.
            eventually(turned_over, timeout=60)
            assert set(seen) <= made
            assert not set(seen) & set(admin.topics.list_partitioned(namespace))
        finally:
            watcher.send_signal(signal.SIGTERM)
        watcher.stdout.read()
        assert watcher.wait(30) == 0
    assert len(seen) == len(set(seen)), "each once"


def test_a_first_plan_for_a_topic_with_native_timers_says_that_they_stay(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker, pulsar_client: Any
) -> None:
    topic, where = f"persistent://{namespace}/reminders", ["--admin-url", pulsar_broker.admin_url]
    admin.topics.create(topic, 2)
    consumer = pulsar_client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)
    producer = pulsar_client.create_producer(topic)
    for _ in range(20):
        producer.send(b"renew", deliver_after=dt.timedelta(days=3))

    def delayed() -> int:
        return admin.topics.partitioned_stats(topic).total.subscriptions["billing"].delayed

    eventually(lambda: delayed() == 20, 60, message="the broker has read all of them")

    first = timewheel("topics", "ensure", str(plan_file), *where)
    said = f"info: {topic}: 20 timers wait here under the broker's own delay: this plan moves none of them"
    assert first.returncode == 0
    assert said in first.stdout
    assert "first a shadow" not in first.stdout, "so few"
    assert "own delay" not in timewheel("topics", "ensure", str(plan_file), *where).stdout, "later on some always wait"
    consumer.close()
    producer.close()


def test_of_two_plans_of_a_topic_the_older_is_named_and_what_is_printed_ends_the_circle(
    plan_file: Path, pulsar_broker: Broker
) -> None:
    """The doctor asked for the old file's topics, and ensure, run for that, refused it for the new partitions."""
    where = ["--admin-url", pulsar_broker.admin_url]
    new = plan_file.with_name("new.toml")
    grown = plan_file.read_text().replace("partitions = 2", "partitions = 4")
    new.write_text("revision = 2\n" + grown.replace('"5d"]', '"10d"]'))
    for options in ([str(plan_file)], [str(new), "--grow"], [str(new), "--remove-drained"]):
        assert timewheel("topics", "ensure", *options, *where).returncode == 0

    found = timewheel("doctor", str(plan_file), *where, env=os.environ | {"COLUMNS": "400"})
    assert found.returncode == 4
    assert "was provisioned by revision 2 of its plan, and this file has revision 1: it is the older" in found.stdout
    assert "missing-topic" not in found.stdout
    for options in (["--dry-run"], [], ["--grow"]):
        refused = timewheel("topics", "ensure", str(plan_file), *options, *where)
        assert refused.returncode == 1
        assert "use the file with revision = 2 for all processes, and remove this one" in refused.stderr
        assert "timewheel topics ensure" in refused.stderr
    # The newer file goes on working, and is not in its own way.
    assert timewheel("topics", "ensure", str(new), *where).returncode == 0
    sound = timewheel("doctor", str(new), *where)
    assert "topic-in-the-way" not in sound.stdout
    assert "missing-topic" not in sound.stdout
    # Back to the old plan, as printed; then the other file is the older of the two.
    plan_file.write_text(f"revision = 3\n{grown}")
    assert timewheel("topics", "ensure", str(plan_file), *where).returncode == 0
    assert "missing-topic" not in timewheel("doctor", str(plan_file), *where).stdout
    assert "use the file with revision = 3" in timewheel("topics", "ensure", str(new), *where).stderr
