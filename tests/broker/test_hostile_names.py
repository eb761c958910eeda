"""Every command, where names, ids, keys, properties and reasons are what somebody chose who may produce."""

from __future__ import annotations

import csv
import functools
import json
import os
import pty
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.support.command_line import timewheel
from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import HOUR_MS
from timewheel.core.names import Names
from timewheel.core.plan import Cancel, Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.provision.provisioning import ensure

if TYPE_CHECKING:
    from timewheel.testing import Broker

ESCAPES = "\x1b]0;TITLE\x07\x1b[2J\x9b31m\u202e[bold]x[/y]\ntimewheel: all is well"
SHELL = "$(touch${IFS}PWNED);id>PWNED2;z'\""
FORMULA = '=HYPERLINK("x")'
RECEIVE_MS = 10_000


@dataclass(frozen=True)
class Stage:
    """Topics of a namespace that somebody named, and a plan whose topics he may send to."""

    options: tuple[str, ...]
    service: tuple[str, ...]
    namespace: str
    topic: str
    plan_file: str
    folder: Path

    def commands(self) -> dict[str, list[str]]:
        """Each with its words; the service's URL where it takes one."""
        plan, both = self.plan_file, [*self.service, *self.options]
        told = {
            "gaps": ["gaps", self.namespace, "--gap-limit", "100", "--csv", str(self.folder / "gaps.csv")],
            "gaps of a topic": ["gaps", self.topic, "--gap-limit", "100"],
            "gaps of nothing": ["gaps", self.topic + ESCAPES.replace("/", "")],
            "explain": ["gaps", "explain", self.topic, "--subscription", FORMULA + ESCAPES, "--gap-limit", "100"],
            "doctor of a topic": ["doctor", self.topic],
            "doctor": ["doctor", plan],
            "sample": ["sample", self.topic, "-o", str(self.folder / "sample.parquet")],
            "status": ["status", plan],
            "whereis": ["whereis", plan, ESCAPES, "--sent-at", "2026-01-01"],
            "ensure": ["topics", "ensure", plan, "--dry-run"],
            "dead-letters list": ["dead-letters", "list", plan],
            "dead-letters show": ["dead-letters", "show", plan],
            "parked list": ["parked", "list", plan],
            "no plan": ["status", str(self.folder / ESCAPES)],
            "no command": [ESCAPES],
        }
        at_brokers = {
            "cancellations list": ["cancellations", "list", plan],
            "timer show": ["timer", "show", plan, ESCAPES],
            "dead-letters replay": ["dead-letters", "replay", plan, "--all", "--dry-run"],
            "shadow status": ["shadow", "status", plan],
            "shadow verify": ["shadow", "verify", plan],
            "shadow start": ["shadow", "start", plan, "--dry-run"],
        }
        reached = {
            name: [*words, *self.options] for name, words in told.items() if name not in ("no plan", "no command")
        }
        return {
            **reached,
            **{name: [*words, *both] for name, words in at_brokers.items()},
            "no plan": told["no plan"],
            "no command": told["no command"],
        }


@pytest.fixture(scope="module")
def stage(pulsar_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("hostile")
    namespace = f"hostile-{uuid.uuid4().hex[:8]}/crm"
    topic = f"persistent://{namespace}/pay{SHELL}"
    due = f"persistent://{namespace}/due"
    plan = Plan(
        due_topic=due, subscriptions=("billing",), partitions=1, scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)),
        relay="service", intake=True, cancel=Cancel(), retry=True,
    )  # fmt: skip
    now_ms = time.time_ns() // 1_000_000
    with AdminClient(pulsar_broker.admin_url) as admin:
        assert admin.tenants.create(namespace.partition("/")[0])
        assert admin.namespaces.create(namespace)
        ensure(admin, plan, now_ms=now_ms)
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, FORMULA + ESCAPES, consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, producer_name=ESCAPES, batching_enabled=False)
        for number in range(400):
            due_ms = now_ms + 3 * HOUR_MS if number % 2 else None
            producer.send_async(b"x", None, partition_key=ESCAPES, deliver_at=due_ms)
        producer.flush()
        for _ in range(200):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
        odd = {ESCAPES: ESCAPES, "tw-id": ESCAPES, "tw-timer": f"1 {ESCAPES}"}
        reasons = {"tw-dead-reason": ESCAPES, "tw-dead-from": ESCAPES}
        for name in (due, Names(plan).intake, Names(plan).dead_letter):
            own = client.create_producer(name, batching_enabled=False)
            own.send(ESCAPES.encode(), properties={**odd, **reasons}, partition_key=ESCAPES)
            own.send(b"", properties={"tw-id": ESCAPES, "tw-due": ESCAPES, **reasons})
        dead_letters = client.create_producer(Names(plan).parked("billing"), batching_enabled=False)
        dead_letters.send(b"", properties={**odd, "tw-parked-reason": ESCAPES, "tw-parked-error": ESCAPES})
        cuts = client.create_producer(Names(plan).cancellations, batching_enabled=False)
        cuts.send(json.dumps(["t", ESCAPES, now_ms, now_ms + HOUR_MS]).encode())
        plan_file = folder / f"plan{SHELL}.toml"
        save_plan(plan, plan_file)
        yield Stage(
            options=("--admin-url", pulsar_broker.admin_url), service=("--service-url", pulsar_broker.service_url),
            namespace=namespace, topic=topic, plan_file=str(plan_file), folder=folder,
        )  # fmt: skip
    finally:
        client.close()


NAMES = sorted(Stage((), (), "", "", "", Path()).commands())
ON_A_TERMINAL = (
    "dead-letters show", "doctor", "doctor of a topic", "explain", "gaps", "no command", "sample", "status", "whereis",
)  # fmt: skip
"""All kinds of text: sentences, tables, errors. Every command prints by the same module."""


@functools.cache
def done(stage: Stage, name: str) -> subprocess.CompletedProcess[str]:
    return timewheel(*stage.commands()[name])


@pytest.mark.parametrize("name", NAMES)
def test_no_command_writes_what_a_terminal_would_act_on(stage: Stage, name: str) -> None:
    text = done(stage, name).stdout + done(stage, name).stderr
    assert "Traceback" not in text
    assert text.strip()
    assert all(line.isprintable() for line in text.split("\n")), text
    assert "\ntimewheel: all is well" not in text


@pytest.mark.parametrize("name", ON_A_TERMINAL)
@pytest.mark.short
def test_on_a_terminal_neither(stage: Stage, name: str) -> None:
    words = stage.commands()[name]
    own, theirs = pty.openpty()
    command = [sys.executable, "-m", "timewheel", *words]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(own, 65_536):
                text += part
        except OSError:
            pass  # its end
        process.wait(120)
    os.close(own)

    shown = text.decode()
    assert shown.strip()
    for escape in ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e"):
        assert escape not in shown
    assert "\ntimewheel: all is well" not in shown.replace("\r", "")


@pytest.mark.parametrize("name", ["gaps", "gaps of a topic", "explain", "doctor of a topic", "doctor", "sample"])
def test_a_printed_command_runs_nothing_that_a_name_says(stage: Stage, name: str) -> None:
    lines = [line for line in done(stage, name).stdout.splitlines() if "timewheel " in line or "pulsar-admin " in line]
    commands = [line[line.index(tool) :] for line in lines for tool in ("timewheel ", "pulsar-admin ") if tool in line]
    assert commands
    for command in (one for one in commands if "PWNED" in one):
        assert all(SHELL in word for word in shlex.split(command) if "touch" in word), command
        dry = f"timewheel() {{ :; }}; pulsar-admin() {{ :; }}; {command}"
        subprocess.run(["bash", "-c", dry], cwd=stage.folder, check=False, timeout=60, capture_output=True)
    assert not [path for path in stage.folder.iterdir() if path.name.startswith("PWNED")]


def test_a_table_for_spreadsheets_has_no_formula(stage: Stage) -> None:
    done(stage, "gaps")
    with (stage.folder / "gaps.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert f"'{FORMULA}" in {row["subscription"][: len(FORMULA) + 1] for row in rows}
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "@"))]


def test_json_is_ascii_and_has_the_names_as_they_are(stage: Stage) -> None:
    told = timewheel(*stage.commands()["dead-letters list"], "--json").stdout
    assert told.isascii()
    ids = {dead_letter["timer_id"] for dead_letter in json.loads(told)["dead_letters"]}
    assert ids == {ESCAPES}
