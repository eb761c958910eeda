"""`timewheel relay run` as its operators see it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import Stage, plan_of
from tests.support.wrong_hops import HopClient, RelayPoint
from timewheel.core.envelope import Envelope
from timewheel.core.planfile import save_plan
from timewheel.testing import Broker, eventually


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[Stage]:
    with Stage(pulsar_broker, plan_of()) as made:
        yield made


def test_it_says_when_it_is_ready_and_drains_at_sigterm(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever asks by HTTP, in a file, and to systemd, again and again."""
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(tmp_path / "notify"))
    systemd.settimeout(30)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with systemd, RelayProcess(stage.broker, stage.plan, tmp_path) as relay:
        relay.await_ready()
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1\nWATCHDOG=1"] * 2
        found = relay.ask("/readyz")
        assert (found.status_code, found.json()["ready"]) == (200, True)
        assert relay.ask("/livez").status_code == 200
        # One hop each, spread over two seconds.
        now = now_ms()
        for number in range(2_000):
            entered_ms = now + number - 500
            stage.put(stage.tiers[-1], Envelope(f"t{number}", entered_ms + 1_500 + 700, entered_ms))
        stage.flush()
        relay.await_forwarded(1)
        assert relay.terminate() == 0, relay.log.read_text()
        assert not relay.ready_file.exists()
    assert relay.log.read_text() == "", "nothing to complain of"
    done = len(stage.copies())
    assert 0 < done < 2_000, "it ended in the middle"
    stage.relay()
    stage.await_due(2_000)
    stage.await_all_acknowledged()
    stage.assert_no_copies()


def test_what_happens_is_told_in_lines_of_json(stage: Stage, tmp_path: Path) -> None:
    with RelayProcess(stage.broker, stage.plan, tmp_path) as relay:
        relay.await_ready()
        stage.producer(stage.tiers[0]).send(b"garbled", properties={"tw-id": "x", "tw-timer": "1 soon"})
        eventually(relay.log.read_text, 60)
        assert relay.terminate() == 0, relay.log.read_text()
    (told,) = map(json.loads, relay.log.read_text().splitlines())
    assert (told["logger"], told["event"], told["level"]) == ("timewheel", "relay_dead_letter", "warning")
    assert told["topic"] == f"{stage.tiers[0]}-partition-0"


STUCK = """
    import sys, threading
    import pulsar
    from timewheel.relay import Relay
    from timewheel.relay.service import Service
    from timewheel.core.plan import Plan

    def stuck_in_the_client(*_, **__):
        threading.Event().wait()

    class Stuck:
        def __init__(self, client):
            self.subscribe, self.get_topic_partitions = client.subscribe, client.get_topic_partitions
            self.create_producer = lambda *_, **__: self
            self.send_async = stuck_in_the_client

    client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    relay = Relay(Stuck(client), Plan.load(sys.argv[2]), stuck_ms=6_000)
    Service([relay], watchdog_ms=3_000).run()
"""


def test_a_stuck_service_ends_itself_so_that_another_can_take_over(stage: Stage, tmp_path: Path) -> None:
    """The client lives on and the broker sees nothing wrong: only the process itself can tell."""
    save_plan(stage.plan, tmp_path / "plan.toml")
    command = [sys.executable, "-c", textwrap.dedent(STUCK), stage.broker.service_url, str(tmp_path / "plan.toml")]
    stage.hold([2_100])
    stuck = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert stuck.stderr is not None
        assert stuck.wait(60) == 1
        assert "stuck_in_the_client" in stuck.stderr.read(), "the stack says where"
    finally:
        stuck.kill()
        stuck.communicate()
    assert not stage.due()
    stage.relay()
    stage.await_due(1)


def test_an_embedded_relay_that_is_stuck_says_that_it_is_not_ready(stage: Stage) -> None:
    go_on = threading.Event()

    def wait_at(point: RelayPoint) -> None:
        if point == "before_forward":
            go_on.wait(60)

    relay = stage.relay(client=HopClient(stage.client, wait_at), stuck_ms=5_000)
    stage.hold([2_100])
    eventually(lambda: not relay.ready, 60, poll=0.2)
    go_on.set()
    eventually(lambda: relay.ready, 60, poll=0.2)
    stage.await_due(1)
