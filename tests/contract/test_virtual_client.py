"""pulsar-client on a virtual Pulsar keeps the contract of the real one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.contract.client_contract import ClientContract
from tests.contract.sharing_contract import SharingContract
from timewheel.broker.admin.policies import DEDUPLICATION
from timewheel.core.names import partition_topic

if TYPE_CHECKING:
    from timewheel.broker.admin.client import AdminClient
    from timewheel.client.surface import ClientLike
    from timewheel.testing.virtual import VirtualPulsar


class VirtualTopics:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._names = map("persistent://public/default/contract-{}".format, itertools.count())

    def make(self, *, deduplication: bool = False) -> str:
        topic = next(self._names)
        self._admin.topics.create(topic, 1)
        if deduplication:
            self._admin.topic_policies.set(topic, DEDUPLICATION, True)
        return topic

    def make_unpartitioned(self) -> str:
        topic = next(self._names)
        self._admin.topics.create_unpartitioned(topic)
        return topic

    def terminate(self, topic: str) -> None:
        self._admin.topics.terminate(topic)

    def cursors(self, topic: str) -> frozenset[str]:
        return frozenset(self._admin.topics.internal_stats(partition_topic(topic, 0)).cursors)


class TestVirtualClient(ClientContract, SharingContract):
    @pytest.fixture(params=[0, 500_000], ids=["at once", "half a millisecond away"], autouse=True)
    def latency(self, request: pytest.FixtureRequest, virtual_pulsar: VirtualPulsar) -> None:
        virtual_pulsar.cluster.latency_ns = request.param

    @pytest.fixture
    def client(self, virtual_pulsar: VirtualPulsar) -> ClientLike:
        client: ClientLike = virtual_pulsar.client()
        return client

    @pytest.fixture
    def topics(self, virtual_pulsar: VirtualPulsar) -> VirtualTopics:
        return VirtualTopics(virtual_pulsar.admin())
