"""From `timewheel gaps` to a plan that is set up, by nothing but the commands that are printed, typed as they stand."""

from __future__ import annotations

import os
import random
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.own_broker import own_broker
from tests.support.processes import ran
from timewheel.broker.admin.client import AdminClient
from timewheel.core.plan import Native, Plan
from timewheel.testing import LocalPulsar

TOPIC = "persistent://public/default/o'clock;$(>hacked)&co"
GROUP = "billing"
LIMIT = 1_000
PARTITIONS = 2
SENT = 12_000
SHORT = 3  # exit status of a plan that fits a burst, and not twice as many timers
HOUR_MS = 3_600_000
DELAYS_MS = (3_000, 3_000, 3_000, HOUR_MS, 2 * HOUR_MS, 24 * HOUR_MS)
"""Half are due soon; the others wait, so that each handled one between two of these begins a gap."""


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalPulsar]:
    with own_broker({"managedLedgerMaxUnackedRangesToPersist": str(LIMIT)}) as broker:
        yield broker


@pytest.fixture
def topic(broker: LocalPulsar) -> str:
    """A topic past its limit, and a service's subscription."""
    with AdminClient(broker.admin_url) as admin:
        admin.topics.create(TOPIC, PARTITIONS)
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(TOPIC, GROUP, pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    now_ms = time.time_ns() // 1_000_000
    drawn = random.Random(28)  # partitions take turns: an order with a period would leave them few gaps
    delays_ms = [drawn.choice(DELAYS_MS) for _ in range(SENT)]
    for delay_ms in delays_ms:
        producer.send_async(b"renew", None, deliver_at=now_ms + delay_ms)
    producer.flush()
    for _ in range(sum(delay_ms < HOUR_MS for delay_ms in delays_ms)):
        consumer.acknowledge(consumer.receive(20_000))
    client.close()
    return TOPIC


class Shell:
    """A shell in a folder, in which lines are typed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        here = {name: value for name, value in os.environ.items() if not name.startswith(("PULSAR_", "TIMEWHEEL_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**here, "PATH": path}

    def type(self, line: str, *statuses: int) -> str:
        """What a line prints; it ends with one of these statuses, or 0."""
        done = ran(["bash", "-c", line], cwd=self._folder, env=self._variables, timeout=300)
        assert done.returncode in (statuses or (0,)), f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout


def printed(output: str, command: str, *, label: str = "") -> str:
    """The one line's rest that is such a command, of the lines that begin with the label."""
    found = re.findall(rf"^{label}.*?(timewheel {command}\b.*)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return str(found[0])


@pytest.mark.timeout(600)
@pytest.mark.short
def test_the_printed_commands_lead_from_gaps_to_topics_that_are_set_up(
    broker: LocalPulsar, topic: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    # The cluster is reached by an option, which is typed once.
    looked = shell.type(shlex.join(["timewheel", "gaps", topic, "--admin-url", broker.admin_url]))
    assert f"limit     {LIMIT:,}, read from the broker" in looked
    explained = shell.type(printed(looked, "gaps explain"))
    assert "mixed delays" in explained
    sampled = shell.type(printed(explained, "sample"))
    assert printed(sampled, "plan") == printed(explained, "plan")
    planned = shell.type(printed(sampled, "plan"), SHORT)
    assert "second burst" in planned
    assert "Plan again with --growth 2" in planned

    plan = Plan.load(tmp_path / "plan.toml")
    assert f"of {LIMIT:,} that the broker keeps" in planned
    assert "Assumed" not in planned
    assert "Stay with native delays" not in planned
    # A topic that has partitions may have more of them, and then native delays can be enough.
    assert not isinstance(plan.scheme, Native) or plan.partitions > PARTITIONS
    assert (plan.due_topic, plan.subscriptions, plan.tick_ms) == (topic, (GROUP,), 1_000)
    assert plan.partitions >= PARTITIONS
    held = re.search(r"FIRST   (\S+) holds ([\d,]+|about [\d,]+) timers under the broker's own delay", planned)
    assert held is not None, planned
    assert held[1] == topic
    assert int(re.sub(r"\D", "", held[2])) == pytest.approx(SENT // 2, rel=0.1)
    assert printed(planned, "shadow start").startswith(shlex.join(["timewheel", "shadow", "start", topic, "-o"]))

    anew = shell.type(printed(planned, "plan", label="new "), SHORT)
    assert Plan.load(tmp_path / "plan.toml") == plan, "it stays"
    new = Plan.load(tmp_path / "plan-timers.toml")
    assert (new.due_topic, new.subscriptions) == (f"{topic}-timers", (GROUP,))
    assert "FIRST" not in anew
    made = shell.type(printed(anew, "topics ensure", label="then "))
    assert f"{topic}-timers" in made
    assert not (tmp_path / "hacked").exists()
