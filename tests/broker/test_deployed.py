"""What stands in deploy/, carried out from zero as the page says, in a folder that is taken for the root of a machine.

There is no systemd and no cluster here: a unit is started by its own lines, with the socket that systemd would give it,
and a pod by the command of its container, with its files where they are mounted. The broker is a real one.
"""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import pulsar
import pytest
import yaml

from tests.support import overlay
from tests.support.checkout import ROOT
from tests.support.pages import blocks
from tests.support.pages import commands as typed
from tests.support.processes import ran
from timewheel.broker.admin import AdminClient
from timewheel.core import Plan
from timewheel.core.connection_file import load_connection
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, LocalPulsar, eventually
from timewheel.testing.ports import free_ports

PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
KUBERNETES = ROOT / "deploy" / "kubernetes"
START_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalPulsar]:
    """With the tenant of the examples."""
    # A broker that stores few gaps is a warning of the doctor, and no alarm.
    config = {"managedLedgerMaxUnackedRangesToPersist": "1000"}
    with LocalPulsar(config=config) as broker, AdminClient(broker.admin_url) as admin:
        admin.tenants.create("acme")
        yield broker


class Machine:
    """A folder as its root, and what was started on it."""

    def __init__(self, root: Path, broker: Broker) -> None:
        self.root, self.broker = root, broker
        self.logs: dict[str, Path] = {}
        self._stack = ExitStack()
        self._ports: dict[str, int] = dict(zip(("8080", "8090", "8091", "8092"), free_ports(4), strict=True))
        programs = root / "opt" / "timewheel" / "bin"
        programs.mkdir(parents=True)
        for name in ("timewheel", "python"):
            (programs / name).write_text(
                f'#!/bin/sh\nexec {sys.executable} {"-m timewheel " if name == "timewheel" else ""}"$@"\n'
            )
            (programs / name).chmod(0o755)
        (root / "etc" / "systemd" / "system").mkdir(parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def here(self, text: str) -> str:
        """A line with this root, and with ports that are free."""
        for folder in ("/etc/", "/opt/"):
            text = text.replace(folder, f"{self.root}{folder}")
        for host in ("127.0.0.1", "0.0.0.0"):
            for port, free in self._ports.items():
                text = text.replace(f"{host}:{port}", f"127.0.0.1:{free}")
        return text

    def is_ready(self, port: str) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._ports[port]}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def run(self, command: list[str], **variables: str) -> str:
        ended = ran(command, cwd=ROOT, env={**os.environ, **variables}, timeout=START_S)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def start(self, name: str, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        """In the background, until the end."""
        self.logs[name] = log = self.root / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
            )

        def end() -> None:
            process.terminate()
            process.wait(60)

        self._stack.callback(end)
        return process

    # systemd

    def type(self, line: str) -> None:
        """One line of the page."""
        words = shlex.split(line)
        match words:
            case ["groupadd", *_] | ["systemctl", "daemon-reload"] | ["python3", *_] | ["/opt/timewheel/bin/pip", *_]:
                return
            case ["systemctl", *options, unit]:
                assert options in (["start"], ["enable", "--now"]), line
                self.systemctl(unit.removesuffix(".timer"))
            case _:
                self.run(["sh", "-ec", self.here(line.replace(" -g timewheel", ""))])
        if words[-1].endswith("/etc/timewheel/"):
            self.connect(self.root / "etc" / "timewheel" / "connection.toml")

    def connect(self, file: Path) -> None:
        """As whoever follows the page edits it."""
        lines = [
            f'service_url = "{self.broker.service_url}"',
            f'admin_url = "{self.broker.admin_url}"',
            *(line for line in file.read_text().splitlines() if line.startswith("token_file")),
        ]
        file.write_text("\n".join(["[connection]", *lines]))
        assert load_connection(file).service_url == self.broker.service_url

    def systemctl(self, unit: str) -> None:
        """Start a unit, and wait until it counts as started."""
        base, _, instance = unit.partition("@")
        file = self.root / "etc" / "systemd" / "system" / (f"{base}@.service" if instance else f"{base}.service")
        parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(file)
        service = dict(parser["Service"])
        command = shlex.split(self.here(service["ExecStart"].replace("%i", instance).replace("%H", "host-1")))
        if service.get("Type") == "oneshot":
            self.run(command)
            return
        name, _, value = service.get("Environment", "").partition("=")
        variables = {name: value.replace("pulsar://localhost:6650", self.broker.service_url)} if name else {}
        if service.get("Type") != "notify":
            self.start(unit, command, **variables)
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(self.root / f"{len(self.logs)}.notify"))
            told.settimeout(START_S)
            self.start(unit, command, NOTIFY_SOCKET=str(self.root / f"{len(self.logs)}.notify"))
            assert b"READY=1" in told.recv(4_096), self.logs[unit].read_text()

    # Kubernetes

    def apply(self, name: str | Path) -> None:
        """What `kubectl apply -k` would start: jobs to their end, and one pod of each of the others."""
        made = ran(["kubectl", "kustomize", str(KUBERNETES / name)], check=True)
        found = list(yaml.safe_load_all(made.stdout))
        configs = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
        for kind in ("Job", "StatefulSet", "Deployment", "CronJob"):
            for one in (one for one in found if one["kind"] == kind):
                template = one["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else one["spec"]
                self._pod(one["metadata"]["name"], kind, template["template"]["spec"], configs)

    def _pod(self, name: str, kind: str, pod: dict[str, Any], configs: dict[str, dict[str, str]]) -> None:
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            folder = self.root / mount["mountPath"][1:]
            folder.mkdir(parents=True, exist_ok=True)
            if "configMap" in (volume := volumes[mount["name"]]):
                for file in folder.iterdir():
                    file.unlink()
                for file_name, text in configs[volume["configMap"]["name"]].items():
                    (folder / file_name).write_text(text)
        program = container.get("command", ["timewheel"])
        words = [*(f"/opt/timewheel/bin/{word}" for word in program), *container["args"]]
        command = [self.here(word).replace("$(POD_NAME)", f"{name}-0") for word in words]
        # The broker has no TLS.
        given = {
            one["name"]: self.here(one.get("value", "")) for one in container.get("env", ()) if "TLS" not in one["name"]
        }
        if "PULSAR_SERVICE_URL" in given:
            given["PULSAR_SERVICE_URL"] = self.broker.service_url
        if kind in ("Job", "CronJob"):
            self.run(command, **given)
        else:
            self.start(name, command, **given)
        if "readinessProbe" in container:
            eventually(lambda: self.is_ready("8080"), START_S, message=self.logs[name].read_text())


@pytest.fixture
def machine(cluster: LocalPulsar, tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, cluster) as made:
        yield made


def handled(machine: Machine, plan: Path, log: str) -> None:
    """A timer is handled by whoever writes this log, and one that is far from due waits in a tier."""
    client = pulsar.Client(machine.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with DelayedProducer(client, Plan.load(plan)) as producer:
        producer.send(b"renew", deliver_after=timedelta(seconds=2), timer_id="soon")
        producer.send(b"renew", deliver_after=timedelta(days=20), timer_id="far")
    client.close()
    eventually(lambda: "handled soon" in machine.logs[log].read_text(), START_S, message=machine.logs[log].read_text())


def lines_below(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [command.line for block in blocks(section, "console") for command in typed(block.content)]


@pytest.mark.parametrize("token", ["", "renewed-at-every-connect"], ids=["no token", "a token"])
@pytest.mark.short
def test_the_page_leads_from_nothing_to_a_relay_under_systemd(machine: Machine, token: str) -> None:
    topic_that_services_use(machine.broker)
    lines = lines_below("systemd")
    first_start = next(number for number, line in enumerate(lines) if "start timewheel-topics" in line)
    for line in lines[:first_start]:
        machine.type(line)
    if token:
        folder = machine.root / "etc" / "timewheel"
        (folder / "token").write_text(token)
        with (folder / "connection.toml").open("a") as file:
            file.write('\ntoken_file = "token"\n')
    for line in lines[first_start:]:
        machine.type(line)
    eventually(lambda: machine.is_ready("8090"), START_S)
    assert {*machine.logs} == {
        "timewheel-relay", "timewheel-shadow", "timewheel-handler", "timewheel-exporter@reminders",
    }  # fmt: skip
    assert machine.is_ready("8091")
    eventually(lambda: machine.is_ready("8092"), START_S)
    handled(machine, machine.root / "etc/timewheel/plans/renewals.toml", "timewheel-handler")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds what is applied")
@pytest.mark.parametrize("name", ["base", "shadow", "calendar", "embedded"])
@pytest.mark.short
def test_what_is_applied_leads_from_nothing_to_what_runs(machine: Machine, name: str) -> None:
    connect_pods(machine)
    if name == "shadow":
        topic_that_services_use(machine.broker)
    machine.apply(name)
    if name in ("base", "shadow"):
        assert machine.is_ready("8080")
    if name == "embedded":
        handled(machine, machine.root / "etc/timewheel/plans/plan.toml", "handler-renewals")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds what is applied")
def test_a_plan_of_ones_own_is_refused_as_the_page_shows_and_then_runs(machine: Machine) -> None:
    connect_pods(machine)
    folder = overlay.write(machine.root / "invoices", overlay.text(), overlay.example("invoices", "shadow"))
    plan = Plan.load(folder / "plan.toml")
    differ, missing = (block.content for block in blocks(PAGE, "text"))
    with pytest.raises(AssertionError) as refused:
        machine.apply(folder)
    assert shown_in(missing, refused.value)
    with AdminClient(machine.broker.admin_url) as admin:
        admin.namespaces.create("acme/crm")
        admin.topics.create(plan.due_topic, plan.partitions)
    with pytest.raises(AssertionError) as refused:
        machine.apply(folder)
    assert shown_in(differ, refused.value)
    topic_that_services_use(machine.broker, plan)

    machine.apply(folder)

    assert machine.is_ready("8080")
    (inside,) = [shlex.split(line.partition(" -- ")[2]) for line in overlay.lines() if " -- " in line]
    status = [machine.here(word) for word in (f"/opt/timewheel/bin/{inside[0]}", *inside[1:])]
    shown = machine.run(status)
    assert f"{plan.due_topic}: shadowing since" in shown
    assert " no consumer " in shown


def shown_in(block: str, error: AssertionError) -> bool:
    """Whether a page's lines are in what a Job printed, which pytest sets in."""
    return all(line.strip() in str(error) for line in block.splitlines())


def connect_pods(machine: Machine) -> None:
    """The secret that the page makes."""
    connection = machine.root / "etc" / "timewheel" / "connection"
    connection.mkdir(parents=True)
    shutil.copy(KUBERNETES / "base" / "connection.toml", connection)
    (connection / "token").write_text("any")
    machine.connect(connection / "connection.toml")


def topic_that_services_use(broker: Broker, plan: Plan | None = None) -> None:
    """A shadow is for a topic that is there, with its subscriptions."""
    plan = plan or Plan.load(KUBERNETES / "shadow" / "plans" / "orders.toml")
    with AdminClient(broker.admin_url) as admin:
        admin.namespaces.create("acme/crm")
        if admin.topics.partitions(plan.due_topic) is None:
            admin.topics.create(plan.due_topic, plan.partitions)
        for subscription in plan.subscriptions:
            admin.subscriptions.create(plan.due_topic, subscription)
