"""Tests of what our services do, on a virtual Pulsar; by ``--real``, and if marked ``real``, on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.conftest import (
    Connect,
    client,
    cluster,
    connect,
    forgetful,
    mortal,
    namespace,
    new_tenant,
    on,
    secured,
    stage,
    topic,
    tuned,
    undelaying,
)
from tests.support.command_line import runs_here
from timewheel.broker.admin.client import AdminClient
from timewheel.testing import Broker
from timewheel.testing.virtual import VirtualPulsar

__all__ = [
    "client", "cluster", "connect", "forgetful", "mortal", "namespace", "on", "secured", "stage", "topic", "tuned",
    "undelaying",
]  # fmt: skip

LATENCY_NS = 200_000


def is_real(request: pytest.FixtureRequest) -> bool:
    """Return whether a test wants a real broker, as proofs do."""
    asked = ("real", "proof", "short")
    return bool(request.config.getoption("real")) or any(map(request.node.get_closest_marker, asked))


@pytest.fixture
def pulsar_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if is_real(request):
        yield request.getfixturevalue("pulsar_broker")
        return
    token = runs_here.set(True)
    try:
        with VirtualPulsar() as virtual:
            virtual.cluster.latency_ns = LATENCY_NS
            yield virtual
    finally:
        runs_here.reset(token)


@pytest.fixture
def pulsar_client(connect: Connect, pulsar_broker: Broker) -> Any:
    return connect(pulsar_broker)


@pytest.fixture
def admin(pulsar_broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(pulsar_broker.admin_url) as opened:
        yield opened


@pytest.fixture
def tenant(admin: AdminClient) -> str:
    """A tenant of the test's own."""
    return new_tenant(admin)
