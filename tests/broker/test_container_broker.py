"""A broker in a container of another machine, its engine played, its broker real: clients reach it and stay with it.

The engine listens on an address of its own, 127.0.0.2, as one on another machine would; the broker believes in
127.0.0.1, which is where it is for itself. What a client is told must be the first.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.docker_engine import Engine, local_broker, point_at
from timewheel.testing import pulsar_service
from timewheel.testing.maven import broker_jars, find_java
from timewheel.testing.plugin import skipped_or_failed
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ELSEWHERE = "127.0.0.2"


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
