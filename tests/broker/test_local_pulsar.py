"""LocalPulsar is the real thing: it can be configured, restarted, killed, frozen and unloaded, and it never lingers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pulsar
import pytest

from tests.broker.conftest import Connect
from timewheel.testing import BrokerFailed, LocalPulsar, eventually
from timewheel.testing.local_pulsar import START_TIMEOUT_S
from timewheel.testing.settings import version_asked_for

EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_TIMEOUT_MS = 20_000


@pytest.fixture
def broker(tuned: LocalPulsar) -> LocalPulsar:
    """One broker that these tests may restart and kill."""
    return tuned


@pytest.fixture
def admin(broker: LocalPulsar) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.admin_url}/admin/v2", timeout=20, trust_env=False) as client:
        yield client


def send(client: Any, topic: str, payloads: list[bytes]) -> list[Any]:
    """Publish and return the confirmed ids."""
    producer = client.create_producer(topic, batching_enabled=False)
    try:
        return [producer.send(payload) for payload in payloads]
    finally:
        producer.close()


def receive(client: Any, topic: str, count: int, subscription: str = "s") -> list[bytes]:
    """Receive and acknowledge; the acks are with the broker when this returns."""
    consumer = client.subscribe(topic, subscription, pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    try:
        payloads = []
        for _ in range(count):
            message = consumer.receive(RECEIVE_TIMEOUT_MS)
            payloads.append(message.data())
            consumer.acknowledge(message)
        return payloads
    finally:
        consumer.close()


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def test_any_setting_can_be_overridden_and_the_rest_is_ours(admin: httpx.Client) -> None:
    runtime = admin.get("/brokers/configuration/runtime").json()
    assert runtime["managedLedgerMaxUnackedRangesToPersist"] == "777"
    assert runtime["loadBalancerEnabled"] == "false"


def test_the_largest_entry_that_a_client_may_send_is_stored(broker: LocalPulsar, connect: Connect, topic: str) -> None:
    # A client sends up to 5 MiB, its own header included. Without nettyMaxFrameSizeBytes the bookie refuses a frame of
    # the last hundred bytes of that, and the broker answers with one new ledger after another (624 of them in 5 s) for
    # ever. The header's length depends on names, so step through those bytes until the client itself refuses.
    limit = 5 * 1024 * 1024
    producer = connect(broker).create_producer(topic, batching_enabled=False, send_timeout_millis=10_000)
    stored: list[int] = []
    for size in range(limit - 160, limit, 4):
        try:
            producer.send(bytes(size))
        except pulsar.MessageTooBig:
            break
        stored.append(size)
    assert max(stored) + 4 < limit, "the client never refused"
    assert max(stored) > limit - 100, "the client refused before the bytes in question"


def listening(broker: LocalPulsar) -> set[tuple[str, int]]:
    """Where the broker's process listens, as (address, port)."""
    connections = psutil.Process(broker.pid).net_connections("tcp")
    # Java's sockets are of the IPv6 kind, and show 127.0.0.1 as a mapped address.
    return {
        (found.laddr.ip.removeprefix("::ffff:"), found.laddr.port)
        for found in connections
        if found.status == psutil.CONN_LISTEN
    }


def test_it_starts_from_the_archive_of_its_classes(broker: LocalPulsar) -> None:
    mapped = Path(f"/proc/{broker.pid}/maps").read_text()
    assert f"pulsar-{broker.version}/classes-java-" in mapped


def test_restart_keeps_ports_messages_and_acks(broker: LocalPulsar, connect: Connect, topic: str) -> None:
    client = connect(broker, operation_timeout_seconds=120)
    service_url, pid = broker.service_url, broker.pid
    receive(client, topic, 0)
    send(client, topic, [b"%d" % n for n in range(20)])
    assert receive(client, topic, 10) == [b"%d" % n for n in range(10)]
    broker.restart()
    assert broker.service_url == service_url
    assert broker.pid not in {pid, None}
    assert receive(client, topic, 10) == [b"%d" % n for n in range(10, 20)]


def test_kill_keeps_what_was_confirmed_and_ports_on_loopback(broker: LocalPulsar, connect: Connect, topic: str) -> None:
    before = listening(broker)
    assert len(before) == 3  # broker, web, bookie
    assert {address for address, _ in before} == {"127.0.0.1"}
    # The kernel gives ports from 32768 on to outgoing connections, and one could take a port while the broker is down.
    assert max(port for _, port in before) < 32_768
    # A busy machine's client backs off while the broker is down, and is heard late when it is back.
    client = connect(broker, operation_timeout_seconds=120)
    payloads = [b"%d" % n for n in range(500)]
    receive(client, topic, 0)
    send(client, topic, payloads)
    with pytest.raises(TimeoutError):
        broker.wait(0)
    broker.kill()
    assert broker.pid is None
    assert broker.wait(0) == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="not running"):
        broker.kill()
    broker.start()
    assert listening(broker) == before
    assert receive(client, topic, len(payloads)) == payloads


@pytest.mark.parametrize("port", ["brokerServicePort", "webServicePort"])
def test_another_broker_on_its_port_does_not_answer_in_its_place(broker: LocalPulsar, port: str) -> None:
    taken = broker.config[port]
    with pytest.raises(BrokerFailed, match=f"port {taken} is in use"), LocalPulsar(config={port: taken}):
        raise AssertionError("it began, and nobody would know which of them answers")


def test_unload_reloads_the_topic(broker: LocalPulsar, connect: Connect, topic: str) -> None:
    client = connect(broker)
    (before,) = send(client, topic, [b"before"])
    broker.unload(topic)
    (after,) = send(client, topic, [b"after"])
    assert after.ledger_id() > before.ledger_id()  # a topic that is loaded opens a new ledger


def test_unload_of_a_topic_that_is_not_there_says_so(broker: LocalPulsar, topic: str) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        broker.unload(topic)


def test_pause_freezes_it_and_resume_lets_it_go_on(broker: LocalPulsar, admin: httpx.Client) -> None:
    broker.pause()
    try:
        with pytest.raises(httpx.ReadTimeout):
            admin.get("/brokers/version", timeout=1.0)
    finally:
        broker.resume()
    assert admin.get("/brokers/version").text == broker.version


def test_a_setting_that_the_broker_refuses_is_told_with_the_log() -> None:
    broker = LocalPulsar(config={"brokerServicePort": "not-a-port"}, start_timeout_s=60)
    with pytest.raises(BrokerFailed, match="not-a-port"), broker:
        pass
    assert broker.pid is None


@pytest.fixture
def hung() -> Iterator[tuple[LocalPulsar, str, int]]:
    """A broker beside the other one whose first start was frozen, what was said of that, and the process it was."""
    said: list[str] = []
    frozen: list[int] = []

    def hang() -> None:
        eventually(lambda: other.pid, 120, poll=0.01)
        assert other.pid is not None
        frozen.append(other.pid)
        os.kill(other.pid, signal.SIGSTOP)

    def on_progress(line: str) -> None:
        said.append(line)
        other._start_timeout_s = START_TIMEOUT_S  # the frozen one is given up soon; the next may be slow as any

    other = LocalPulsar(start_timeout_s=5, progress=on_progress)
    thread = threading.Thread(target=hang)
    thread.start()
    with other:
        thread.join()
        yield other, said[-1], frozen[0]


@pytest.mark.short
def test_one_that_hangs_is_started_again_meets_no_other_and_leaves_nothing(
    hung: tuple[LocalPulsar, str, int], broker: LocalPulsar, connect: Connect, topic: str
) -> None:
    other, said, frozen = hung
    # A start that hangs is made once more.
    assert said.endswith("starting it again")
    assert "did not become healthy" in said
    assert other.pid != frozen
    assert not psutil.pid_exists(frozen)
    # Two at once do not meet.
    assert other.pid != broker.pid
    assert {other.service_url, other.admin_url}.isdisjoint({broker.service_url, broker.admin_url})
    send(connect(broker), topic, [b"here"])
    send(connect(other), topic, [b"there"])
    assert receive(connect(broker), topic, 1) == [b"here"]
    assert receive(connect(other), topic, 1) == [b"there"]
    # A stop leaves nothing behind.
    pid, folder = other.pid, other.folder
    assert pid is not None
    assert other.log_path.is_file()
    other.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert other.pid is None
    other.stop()  # a second time is nothing


def test_a_broker_that_hangs_at_every_start_is_told_with_the_log() -> None:
    broker = LocalPulsar(start_timeout_s=0.1)
    with (
        pytest.raises(BrokerFailed, match=r"did not become healthy.*did not answer within 0\.1 s; its log ends"),
        broker,
    ):
        pass
    assert broker.pid is None


@contextmanager
def command(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`timewheel broker`, which owns a broker as any process may; killed at the end if it has not ended by itself."""
    line = [sys.executable, "-m", "timewheel", "broker", *options]
    with (
        (tmp_path / "stderr").open("wb") as errors,
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def java_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Its broker's process, which may not have come up yet."""

    def find() -> psutil.Process | None:
        for child in psutil.Process(process.pid).children(recursive=True):
            # Before it comes one that is asked for its version, and gone at any moment.
            with suppress(psutil.NoSuchProcess):
                if "org.apache.pulsar.PulsarStandaloneStarter" in child.cmdline():
                    return child
        return None

    return eventually(find, 60)


def folder_of(java: psutil.Process) -> Path:
    """Its broker's own folder, where it works. While a Java machine starts it visits another for a moment."""

    def find() -> Path | None:
        folder = Path(java.cwd())
        return folder if folder.name.startswith("timewheel-pulsar-") else None

    return eventually(find, 60)


@pytest.mark.short
def test_the_command_prints_where_it_is_and_ends_in_order_on_ctrl_c(tmp_path: Path) -> None:
    with command(tmp_path, "--json", "--set", "brokerDeleteInactiveTopicsEnabled=false") as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["version"] == version_asked_for()
        runtime = httpx.get(f"{said['admin_url']}/admin/v2/brokers/configuration/runtime", trust_env=False).json()
        assert runtime["brokerDeleteInactiveTopicsEnabled"] == "false"
        assert psutil.Process(said["pid"]).name() == "java"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not psutil.pid_exists(said["pid"])


def test_the_command_ends_in_order_while_its_broker_still_starts(tmp_path: Path) -> None:
    with command(tmp_path) as process:
        java = java_of(process)
        folder = folder_of(java)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "stderr").read_text()
    assert not java.is_running()
    assert not folder.exists()
