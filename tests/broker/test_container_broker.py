"""A broker in a container of another machine, its engine played, its broker real: clients reach it and stay with it.

The engine listens on an address of its own, 127.0.0.2, as one on another machine would; the broker believes in
127.0.0.1, which is where it is for itself. What a client is told must be the first.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import psutil
import pulsar

from tests.support.docker_engine import Engine, local_broker, point_at
from timewheel.testing import pulsar_service
from timewheel.testing.maven import broker_jars, find_java
from timewheel.testing.plugin import skipped_or_failed
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ELSEWHERE = "127.0.0.2"


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
        with pulsar_service() as broker, closing(quiet_client(broker.service_url)) as client:
            assert broker.service_url.startswith(f"pulsar://{ELSEWHERE}:")
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic)
            producer.send(b"before")
            broker.unload(topic)  # clients look the topic up again, and are told the outer address again
            producer.send(b"after")
            assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]
            (inner_port,) = map(int, re.findall(r"\d+", runtime_setting(broker.admin_url, "brokerServicePort")))
            connected = {(peer.ip, peer.port) for peer in peers_of_this_process()}
            assert urlsplit(broker.service_url).netloc in {f"{host}:{port}" for host, port in connected}
            assert inner_port not in {port for _, port in connected}
        assert engine.containers == {}


def quiet_client(service_url: str) -> Any:
    """Not the one of the fixture `connect`, which closes when the broker is gone, and says so."""
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def runtime_setting(admin_url: str, name: str) -> str:
    settings: dict[str, str] = httpx.get(f"{admin_url}/admin/v2/brokers/configuration/runtime", trust_env=False).json()
    return settings[name]


def peers_of_this_process() -> list[Any]:
    return [each.raddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
