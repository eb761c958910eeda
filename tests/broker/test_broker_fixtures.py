"""What users get from `timewheel.testing` in their own tests, with a clear word where no broker can be had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.docker_engine import Engine, local_broker, point_at
from tests.support.processes import ran
from timewheel.testing import pulsar_service
from timewheel.testing.maven import broker_jars, find_java
from timewheel.testing.plugin import skipped_or_failed
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from pathlib import Path

    from timewheel.testing import Broker


USERS_TEST = """
def test_it(pulsar_client):
    producer = pulsar_client.create_producer("mine")
    assert producer.send(b"x") is not None
"""


def run_users_test(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test as a user of the installed package would, on a machine without java, mvn and a Docker engine."""
    (folder / "test_mine.py").write_text(USERS_TEST)
    # PYTHONPATH: a checkout beside the one that is installed is tested with its own code.
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PYTHONPATH") if name in os.environ}
    (folder / "bin").mkdir()
    return ran(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=folder,
        env={
            **kept,
            "PATH": str(folder / "bin"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DOCKER_HOST": f"unix://{folder / 'no-engine.sock'}",
            **environment,
        },
        timeout=120,
    )


def test_the_fixtures_give_a_broker_of_the_version_asked_for(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    assert pulsar_broker.version == version_asked_for()
    consumer = pulsar_client.subscribe(topic, "s")
    pulsar_client.create_producer(topic).send(b"hello")
    assert consumer.receive(20_000).data() == b"hello"


@pytest.mark.parametrize(("variables", "ends"), [({}, (0, "1 skipped")), ({"CI": "true"}, (1, "1 error"))])
def test_without_a_broker_a_run_by_hand_skips_and_one_in_ci_fails_with_the_reason(
    tmp_path: Path, variables: dict[str, str], ends: tuple[int, str]
) -> None:
    ended = run_users_test(tmp_path, **variables)
    assert (ended.returncode, ends[1] in ended.stdout) == (ends[0], True), ended.stdout
    assert "apt install maven" in ended.stdout


def test_a_given_broker_is_used_and_left_running(pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER", pulsar_broker.service_url)
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER_ADMIN", pulsar_broker.admin_url)
    for _ in range(2):  # a second time: the first did not stop it
        with pulsar_service(progress=told.append) as given:
            assert given.service_url == pulsar_broker.service_url
            assert given.version == pulsar_broker.version
    assert told == []


def test_the_broker_of_the_commands_is_used_if_none_is_chosen_and_that_is_told(
    pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.delenv("TIMEWHEEL_TEST_BROKER", raising=False)
    monkeypatch.setenv("PULSAR_SERVICE_URL", pulsar_broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", pulsar_broker.admin_url)
    with pulsar_service(progress=told.append) as given:
        assert given.service_url == pulsar_broker.service_url
    (line,) = told
    assert line == (
        f"testing on {pulsar_broker.service_url}, because PULSAR_SERVICE_URL is set; TIMEWHEEL_TEST_BROKER would choose"
    )


ELSEWHERE = "127.0.0.2"
"""Where the played engine listens, as one on another machine would. Its broker is a real one, and believes in
127.0.0.1, which is where it is for itself: what a client is told must be the first."""


CLIENT = """
import sys
import pulsar

service_url, topic = sys.argv[1:]
client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Info))
consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
producer.send(b"before")
assert consumer.receive(20_000).data() == b"before"
print("unload", file=sys.stderr, flush=True)
input()
producer.send(b"after")
while consumer.receive(20_000).data() != b"after":
    pass  # after the unload the first comes again, since it is not acknowledged
client.close()
"""
"""A process of its own: the client keeps the logger that the first one of a process was given."""


def test_a_client_reaches_the_broker_of_a_remote_engine(
    topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with skipped_or_failed():  # what the engine is to run is a local broker
        find_java()
        broker_jars(version_asked_for())
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER", "container")
    image = f"apachepulsar/pulsar:{version_asked_for()}"
    with Engine(registry={image}, program=local_broker).on_host(ELSEWHERE) as engine:
        point_at(engine.address, monkeypatch, tmp_path)
        with pulsar_service() as broker:
            assert broker.service_url.startswith(f"pulsar://{ELSEWHERE}:")
            command = [sys.executable, "-c", CLIENT, broker.service_url, topic]
            client = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            with client:
                assert client.stdout is not None
                said = ""
                for line in client.stdout:
                    said += line
                    if line == "unload\n":
                        break
                broker.unload(topic)  # clients look the topic up again, and are told the outer address again
                said += client.communicate("\n", timeout=120)[0]
            assert client.returncode == 0, said
            # Not by its connections: of a standalone broker the client keeps the address that it came by, in any case.
            told = re.findall(r"lookup-broker-url (\S+),", said)
            assert len(told) >= 2, said
            assert set(told) == {broker.service_url}
        assert engine.containers == {}
