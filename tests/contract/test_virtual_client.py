"""pulsar-client on a virtual Pulsar keeps the contract of the real one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.contract.client_contract import ClientContract
from timewheel.broker.admin.policies import DEDUPLICATION
from timewheel.core.names import partition_topic
from timewheel.testing.virtual import VirtualPulsar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.broker.admin.client import AdminClient
    from timewheel.client.surface import ClientLike


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


class TestVirtualClient(ClientContract):
    @pytest.fixture
    def virtual(self) -> Iterator[VirtualPulsar]:
        with VirtualPulsar() as virtual:
            yield virtual

    @pytest.fixture
    def client(self, virtual: VirtualPulsar) -> ClientLike:
        client: ClientLike = virtual.client()
        return client

    @pytest.fixture
    def topics(self, virtual: VirtualPulsar) -> VirtualTopics:
        return VirtualTopics(virtual.admin())
