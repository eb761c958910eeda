"""A broker in a container of another machine, its engine played, its broker real: clients reach it and stay with it.

The engine listens on an address of its own, 127.0.0.2, as one on another machine would; the broker believes in
127.0.0.1, which is where it is for itself. What a client is told must be the first.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from typing import TYPE_CHECKING

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


class Lines(logging.Handler):
    """Keeps what is logged; a file of the client's own has it only when its buffer is full."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def test_a_client_reaches_the_broker_of_a_remote_engine(
    topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with skipped_or_failed():  # what the engine is to run is a local broker
        find_java()
        broker_jars(version_asked_for())
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER", "container")
    lines: list[str] = []
    logger = logging.getLogger("tests.client_of_a_remote_broker")
    logger.addHandler(Lines(lines))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    image = f"apachepulsar/pulsar:{version_asked_for()}"
    with Engine(registry={image}, program=local_broker).on_host(ELSEWHERE) as engine:
        point_at(engine.address, monkeypatch, tmp_path)
        with pulsar_service() as broker, closing(pulsar.Client(broker.service_url, logger=logger)) as client:
            assert broker.service_url.startswith(f"pulsar://{ELSEWHERE}:")
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic)
            producer.send(b"before")
            broker.unload(topic)  # clients look the topic up again, and are told the outer address again
            producer.send(b"after")
            assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]

            # Not by its connections: of a standalone broker the client keeps the address that it came by, in any case.
            told = set(re.findall(r"lookup-broker-url (\S+),", "\n".join(lines)))
            assert told == {broker.service_url}
        assert engine.containers == {}
