"""Programs that end without closing what they made, as short scripts do: with status 0, soon, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.due_topic import make_plan
from tests.support.checkout import ROOT
from tests.support.processes import ran
from timewheel.broker.admin import AdminClient
from timewheel.core import Cancel, Plan, Tiered, save_plan
from timewheel.core.names import partition_topic
from timewheel.testing import Broker

ROUNDS = 3
"""Threads that come back from the client at the wrong moment abort a process in every second run, or in every tenth."""
HEAD = """
import asyncio, datetime as dt, pulsar, sys, threading
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer
from timewheel.core import Plan
from timewheel.producers import AsyncDelayedProducer, DelayedProducer
client = pulsar.Client(sys.argv[1], logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
plan = Plan.load(sys.argv[2])
HOUR, SECOND = dt.timedelta(hours=1), dt.timedelta(seconds=1)
def timer():
    DelayedProducer(client, plan).send(b"x", deliver_after=SECOND)
"""
SENDS = {
    "a script": 'producer = DelayedProducer(client, plan)\nproducer.send(b"x", deliver_after=2 * HOUR)',
    "a function": 'def main():\n    DelayedProducer(client, plan).send(b"x", deliver_after=2 * HOUR)\nmain()',
    "callbacks": "producer = DelayedProducer(client, plan)\n"
    'producer.send_async(b"x", lambda error, timer: None, deliver_after=2 * HOUR)',
    "asyncio": "async def main():\n"
    '    await AsyncDelayedProducer(client, plan).send(b"x", deliver_after=2 * HOUR)\nasyncio.run(main())',
}
RECEIVES = {
    "a script": 'timer(); consumer = DelayedConsumer(client, plan, "billing")\n'
    "consumer.acknowledge(consumer.receive())",
    "a function": "def main():\n    timer()\n"
    '    consumer = DelayedConsumer(client, plan, "billing")\n    consumer.acknowledge(consumer.receive())\nmain()',
    "a thread": 'timer(); done = threading.Event(); consumer = DelayedConsumer(client, plan, "billing")\n'
    "threading.Thread(target=consumer.run, args=(lambda message: done.set(),), daemon=True).start()\ndone.wait()",
    "asyncio": "async def main():\n    timer()\n"
    '    consumer = AsyncDelayedConsumer(client, plan, "billing")\n'
    "    await consumer.acknowledge(await consumer.receive())\nasyncio.run(main())",
    "the client closed": 'consumer = DelayedConsumer(client, plan, "billing").start()\n'
    "while not consumer.ready:\n    threading.Event().wait(0.01)\nclient.close()",
}


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    tiers = Tiered(window_ms=3_600_000, tiers_ms=(3_600_000,))
    return make_plan(pulsar_broker, topic, tiers, cancel=Cancel())  # a relay and the log of cancellations run inside


@pytest.fixture
def plan_file(plan: Plan, tmp_path: Path) -> Path:
    save_plan(plan, tmp_path / "plan.toml")
    return tmp_path / "plan.toml"


def ended(broker: Broker, plan_file: Path, script: str) -> None:
    """Run a script; it ends with status 0, and without a word of Python or of the C++ runtime."""
    for _ in range(ROUNDS):
        done = ran(
            [sys.executable, "-c", f"{HEAD}\n{script}\nprint('the end', flush=True)", broker.service_url, plan_file],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("the end\n")


@pytest.mark.parametrize("script", SENDS.values(), ids=SENDS)
def test_what_a_script_has_sent_is_stored(pulsar_broker: Broker, plan: Plan, plan_file: Path, script: str) -> None:
    ended(pulsar_broker, plan_file, script)
    with AdminClient(pulsar_broker.admin_url) as admin:
        stored = admin.topics.internal_stats(partition_topic(f"{plan.due_topic}.tw.tier-1h", 0)).entries_added
    assert stored == ROUNDS


@pytest.mark.parametrize("script", RECEIVES.values(), ids=RECEIVES)
def test_a_consumer_and_its_relay_end_with_their_script(pulsar_broker: Broker, plan_file: Path, script: str) -> None:
    ended(pulsar_broker, plan_file, script)


def test_a_script_that_raises_keeps_its_own_status(pulsar_broker: Broker, plan_file: Path) -> None:
    script = f'{HEAD}\nproducer = DelayedProducer(client, plan)\nproducer.send(b"x", deliver_after=HOUR)\nsys.exit(7)'
    done = subprocess.run(
        [sys.executable, "-c", script, pulsar_broker.service_url, plan_file], cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 7
