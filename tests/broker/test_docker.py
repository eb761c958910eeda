"""A broker and our image in containers, really: needs a Docker engine (see conftest.py for runs that have none)."""

from __future__ import annotations

import os

import docker
import httpx
import pytest

from tests.broker.conftest import Connect
from tests.support.checkout import ROOT
from timewheel.testing import BrokerUnavailable, PulsarContainer
from timewheel.testing.admin_calls import broker_version
from timewheel.testing.container import engine_trouble
from timewheel.testing.plugin import skipped_or_failed
from timewheel.testing.settings import BROKER_VARIABLE, BrokerKind

MAX_BYTES = 1_000_000


@pytest.mark.timeout(900)  # the first one fetches an image
def test_a_real_container_gives_a_configured_broker_and_is_gone_afterwards(connect: Connect, topic: str) -> None:
    broker = PulsarContainer(config={"maxMessageSize": str(MAX_BYTES)})
    with skipped_or_failed(asked_for=os.environ.get(BROKER_VARIABLE) == BrokerKind.CONTAINER.value):
        broker.start()
    try:
        admin_url = broker.admin_url
        assert broker_version(admin_url) == broker.version
        client = connect(broker)
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        producer.send(b"before")
        broker.unload(topic)  # looks the topic up again, and is told the outer address again
        producer.send(b"after")
        assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]
        settings = httpx.get(f"{admin_url}/admin/v2/brokers/configuration/runtime", trust_env=False).json()
        assert settings["maxMessageSize"] == str(MAX_BYTES)
    finally:
        broker.stop()
    with pytest.raises(httpx.TransportError):
        broker_version(admin_url)


@pytest.mark.timeout(900)  # the first one fetches an image
def test_the_image_is_built_and_runs_as_nobody_and_writes_nowhere() -> None:
    with skipped_or_failed(asked_for=os.environ.get(BROKER_VARIABLE) == BrokerKind.CONTAINER.value):
        if (trouble := engine_trouble()) is not None:
            raise BrokerUnavailable(trouble)
    engine = docker.from_env()
    image, _ = engine.images.build(path=str(ROOT), dockerfile="deploy/Containerfile", rm=True)
    try:
        for arguments, said in ((["--version"], b"timewheel "), (["relay", "run", "--help"], b"--connection")):
            assert said in engine.containers.run(image, arguments, remove=True, read_only=True)
        assert image.attrs["Config"]["User"] == "65532:65532"
    finally:
        engine.images.remove(image.id, force=True)
        engine.close()
