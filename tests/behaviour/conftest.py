"""Tests of what our services do, on a virtual Pulsar; by ``--real``, and if marked ``real``, on a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.broker.conftest import (
    Connect,
    client,
    cluster,
    connect,
    namespace,
    new_tenant,
    on,
    secured,
    stage,
    topic,
    tuned,
    undelaying,
)
from tests.broker.conftest import forgetful as real_forgetful
from tests.broker.conftest import mortal as real_mortal
from tests.support.command_line import runs_here
from timewheel.broker.admin.client import AdminClient
from timewheel.testing import Broker
from timewheel.testing.virtual import VirtualPulsar
from timewheel.testing.virtual.pulsar import VirtualProcess

__all__ = [
    "client", "cluster", "connect", "namespace", "on", "real_forgetful", "real_mortal", "secured", "stage", "topic",
    "tuned", "undelaying",
]  # fmt: skip

LATENCY_NS = 200_000


def is_real(request: pytest.FixtureRequest) -> bool:
    """Return whether a test wants a real broker, as proofs do."""
    asked = ("real", "proof", "short")
    return bool(request.config.getoption("real")) or any(map(request.node.get_closest_marker, asked))


@contextmanager
def virtually() -> Iterator[VirtualPulsar]:
    """Run clients and commands on a virtual Pulsar."""
    token = runs_here.set(True)
    try:
        with VirtualPulsar() as virtual:
            virtual.cluster.latency_ns = LATENCY_NS
            yield virtual
    finally:
        runs_here.reset(token)


def real_or_virtual(request: pytest.FixtureRequest, real: str) -> Iterator[Broker]:
    """Yield the real broker of a fixture to a test that wants one, a virtual one to others."""
    if is_real(request):
        yield request.getfixturevalue(real)
        return
    with virtually() as virtual:
        yield virtual


@pytest.fixture
def pulsar_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    yield from real_or_virtual(request, "pulsar_broker")


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


START_S = 5  # of a broker


class Mortal:
    """A virtual broker with the verbs of `LocalPulsar`; clients that the test opens before it do not notice."""

    def __init__(self, virtual: VirtualPulsar) -> None:
        self._cluster, (self._broker,) = virtual.cluster, virtual.cluster.brokers
        clients = VirtualProcess(virtual, "clients")
        virtual.scheduler.current.process = clients.process
        self._clients_of = partial(virtual.clients_of, clients.process)
        self.service_url, self.admin_url, self.unload = virtual.service_url, virtual.admin_url, virtual.unload
        self.pause, self.resume = clients.disconnect, clients.reconnect

    def kill(self) -> None:
        """Take with it what a paused one has not read."""
        for one in self._clients_of():
            one.link.clear()
        self._cluster.kill(self._broker)
        self.resume()

    def start(self) -> None:
        time.sleep(START_S)
        self._broker.is_up = True

    def restart(self) -> None:
        """End it in good order, and start it."""
        for name in [*self._cluster.topics]:
            self.unload(name)
        self._broker.is_up = False
        self.start()


@pytest.fixture
def mortal(request: pytest.FixtureRequest) -> Any:
    """A broker to be killed and frozen."""
    if is_real(request):
        return request.getfixturevalue("real_mortal")
    return Mortal(request.getfixturevalue("pulsar_broker"))


@pytest.fixture
def forgetful(request: pytest.FixtureRequest) -> Any:
    """A broker that keeps ten ranges of acknowledgements."""
    if is_real(request):
        return request.getfixturevalue("real_forgetful")
    virtual = request.getfixturevalue("pulsar_broker")
    virtual.cluster.profile = replace(virtual.cluster.profile, gap_limit_ranges=10)
    return virtual
