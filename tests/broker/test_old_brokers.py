"""What operates a setup, on brokers that are years old: each command says what is so, or that it cannot tell.

Not all of timewheel is tried here: only what reads brokers' answers, and what makes topics.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pulsar
import pytest

from tests.behaviour.test_whereis import MAX_READS, SCHEMES, is_right, searched
from tests.broker.cursor_stage import staged
from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import Stage, plan_of
from tests.broker.test_gap_reload import SETTINGS, STATES, foretold
from tests.broker.test_protocol import position_of, read_all, send_all
from tests.support.own_broker import own_broker
from tests.support.processes import ran
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.consumers import EntryAcknowledger, EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import ConsumerLost
from timewheel.core.names import partition_topic
from timewheel.core.plan import Native
from timewheel.core.planfile import save_plan
from timewheel.inspect.doctor import Severity, inspect_plan, verdict_on
from timewheel.producers import DelayedProducer
from timewheel.provision.provisioning import ensure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

OLD = ("2.10.5", "3.0.7")  # the last lines before 4.0 that are still met with
IN_METADATA_BEFORE = "managedLedgerMaxUnackedRangesToPersistInZooKeeper"
IN_METADATA = "managedLedgerMaxUnackedRangesToPersistInMetadataStore"

OF_THE_SETTINGS = {"low-gap-limit", "endless-ledgers"}
"""What the doctor finds in the settings that the first test needs."""

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module", params=OLD)
def broker(request: pytest.FixtureRequest) -> Iterator[LocalPulsar]:
    settings = {**SETTINGS, IN_METADATA_BEFORE: SETTINGS[IN_METADATA]} if request.param < "2.11" else SETTINGS
    with own_broker(settings, version=request.param) as started:
        yield started


def run(broker: LocalPulsar, *arguments: str) -> subprocess.CompletedProcess[str]:
    told = ran([sys.executable, "-m", "timewheel", *arguments, "--admin-url", broker.admin_url])
    assert "Traceback" not in told.stderr, told.stderr
    return told


def test_an_unload_delivers_again_what_the_command_says(
    broker: LocalPulsar, topic: str, evidence: Evidence, seed: int
) -> None:
    with staged(broker, "ranges") as stage:
        gaps, most = foretold(stage, topic, np.random.default_rng(seed), 1)
    evidence(
        f"what `timewheel gaps` says an unload delivers again, Pulsar {broker.version}",
        {"states": STATES, "gaps": gaps, "messages again, at most": most, "wrong by": 0},
        seed=seed,
        on_broker=False,
    )


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_timers_are_found_where_they_are(broker: LocalPulsar, name: str) -> None:
    found, _ = searched(broker, SCHEMES[name], 40, 3_000, 1_500)
    wrong = [one for one in found if not is_right(one)]
    assert not wrong, wrong[0]
    reads = sorted(one.cost.reads for one in found)
    assert reads[-3] <= MAX_READS, Counter(reads)


@pytest.mark.parametrize(
    ("name", "partitions"), [*((name, 4) for name in sorted(SCHEMES)), ("native", 0), ("tiered", 0), ("wheel", 0)]
)
def test_topics_are_made_whole_and_stay_so(broker: LocalPulsar, name: str, partitions: int) -> None:
    plan = plan_of(SCHEMES[name], partitions=partitions, guard_ms=1_000, max_delay_ms=100_000)
    with AdminClient(broker.admin_url) as admin:
        made = ensure(admin, plan, now_ms=now_ms())
        again = ensure(admin, plan, now_ms=now_ms())
        seen = verdict_on(inspect_plan(admin, plan, target="plan.toml"))

    assert made.steps
    assert not [step for step in again.steps if step.topic in {step.topic for step in made.steps}]
    found = {one.slug: one.read for one in seen.findings if one.severity > Severity.INFO}
    assert not found.keys() - OF_THE_SETTINGS, found
    assert not seen.left_out, "all of it could be read"


def test_commands_say_what_is_so_and_what_they_cannot_read(broker: LocalPulsar, tmp_path: Path) -> None:
    plan = plan_of(Native(), partitions=1)
    file = str(tmp_path / "plan.toml")
    save_plan(plan, tmp_path / "plan.toml")
    assert run(broker, "gaps", file).returncode == 1
    assert run(broker, "status", file).returncode == 1
    missing = run(broker, "doctor", file)
    assert (missing.returncode, "missing-topic" in missing.stdout) == (4, True), missing.stdout

    with Stage(broker, plan) as stage, DelayedProducer(stage.client, plan) as producer:
        made = [run(broker, command, file) for command in ("gaps", "status", "doctor")]
        assert [told.returncode for told in made] == [0, 0, 3], [told.stdout for told in made]
        assert "1 warning, 1 note;" in made[-1].stdout, "of the settings, and of a single bookie"
        after = dt.timedelta(seconds=50)
        timer = producer.send(b"x", deliver_after=after, properties={"Source": "crm"})
        facts = json.loads(run(broker, "status", file, "--json").stdout)
        assert (facts["timers"], facts["unseen"]) == ({"count": 1, "error": 0}, [])
        assert run(broker, "whereis", file, timer.id).returncode == 0

        # These brokers make a header of each property, and not every key is the name of one.
        hidden = producer.send(b"x", deliver_after=after, properties={"a key": "that is no header"})
        facts = json.loads(run(broker, "status", file, "--json").stdout)
        assert [one["what"] for one in facts["unseen"]] == [partition_topic(plan.due_topic, 0)]
        assert "cannot be read" in facts["unseen"][0]["reason"]
        sought = run(broker, "whereis", file, hidden.id)
        assert sought.returncode == 1, "not found, and not all places could be searched"
        assert "cannot be read" in " ".join(sought.stdout.split())


def test_entries_are_read_and_acknowledged_by_the_brokers_own_protocol(broker: LocalPulsar, topic: str) -> None:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with AdminClient(broker.admin_url) as admin:
        admin.topics.create_unpartitioned(topic)
        admin.subscriptions.create(topic, "billing")
        consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
        begin_ms = now_ms() + 3_600_000
        sent: list[dict[str, Any]] = [
            {"deliver_at": begin_ms + at * 7, "properties": {"i": str(at)}} for at in range(500)
        ]
        positions = send_all(client.create_producer(topic), [*sent, {}])
        dialer = Dialer(broker.service_url)
        with EntryReader(dialer, topic) as reader:
            entries = read_all(reader, 501)
            assert reader.last_position() == positions[-1]
        with EntryReader(dialer, topic, after=positions[99]) as reader:
            assert read_all(reader, 401)[0].position == positions[100]
        found = [(entry.deliver_at_ms, entry.properties.get("i")) for entry in entries[:500]]
        assert found == [(message["deliver_at"], message["properties"]["i"]) for message in sent]
        assert (entries[500].deliver_at_ms, entries[500].batch_size) == (None, 0)

        with EntryAcknowledger(dialer, topic, "billing") as acknowledger:
            acknowledger.acknowledge(positions[:500])
            assert position_of(consumer.receive(20_000).message_id()) == positions[500]
            assert admin.topics.stats(topic, precise_backlog=True).subscriptions["billing"].backlog == 1
            admin.topics.unload(topic)
            with pytest.raises(ConsumerLost):
                acknowledger.acknowledge(positions[:1])
    client.close()
