"""pulsar-client on a real broker keeps the contract."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.contract.client_contract import ClientContract
from tests.contract.sharing_contract import SharingContract
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import DEDUPLICATION
from timewheel.core.names import partition_topic
from timewheel.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.client.surface import ClientLike
    from timewheel.testing import Broker


class RealTopics:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def make(self, *, deduplication: bool = False) -> str:
        topic = f"persistent://public/default/contract-{uuid.uuid4().hex[:10]}"
        self._admin.topics.create(topic, 1)
        if deduplication:
            self._admin.topic_policies.set(topic, DEDUPLICATION, True)
            eventually(lambda: self._deduplicates(topic), message="deduplication in force")
        return topic

    def make_unpartitioned(self) -> str:
        topic = f"persistent://public/default/contract-{uuid.uuid4().hex[:10]}"
        self._admin.topics.create_unpartitioned(topic)
        return topic

    def _deduplicates(self, topic: str) -> bool:
        partitions = self._admin.topics.partitioned_stats(topic).partitions.values()
        return [one.deduplication for one in partitions] == ["Enabled"]

    def terminate(self, topic: str) -> None:
        self._admin.topics.terminate(topic)

    def cursors(self, topic: str) -> frozenset[str]:
        return frozenset(self._admin.topics.internal_stats(partition_topic(topic, 0)).cursors)


class TestRealClient(ClientContract, SharingContract):
    @pytest.fixture
    def client(self, pulsar_broker: Broker) -> Iterator[ClientLike]:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client: Any = pulsar.Client(pulsar_broker.service_url, logger=quiet, operation_timeout_seconds=20)
        yield client
        with suppress(pulsar.AlreadyClosed):  # said of a client when one of its producers is closed, or its topic ended
            client.close()

    @pytest.fixture
    def topics(self, pulsar_broker: Broker) -> Iterator[RealTopics]:
        with AdminClient(pulsar_broker.admin_url) as admin:
            yield RealTopics(admin)
