"""pulsar-client on a real broker keeps the contract."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.contract.client_contract import ClientContract, Topics
from tests.contract.keeping_contract import KeepingContract
from tests.contract.sharing_contract import SharingContract
from tests.support.own_broker import own_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.client.surface import ClientLike
    from timewheel.testing import Broker


@pytest.fixture(scope="module")
def watchful_broker() -> Iterator[Broker]:
    with own_broker({"backlogQuotaCheckIntervalInSeconds": "1"}) as broker:
        yield broker


class _Real:
    @pytest.fixture
    def broker(self, pulsar_broker: Broker) -> Broker:
        return pulsar_broker

    @pytest.fixture
    def client(self, broker: Broker) -> Iterator[ClientLike]:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client: Any = pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=20)
        yield client
        with suppress(pulsar.AlreadyClosed):  # said of a client when one of its producers is closed, or its topic ended
            client.close()

    @pytest.fixture
    def topics(self, broker: Broker) -> Iterator[Topics]:
        with closing(Topics(broker.admin_url)) as topics:
            yield topics


class TestRealClient(_Real, ClientContract, SharingContract):
    """On the broker of the run."""


class TestRealKeeping(_Real, KeepingContract):
    @pytest.fixture
    def broker(self, watchful_broker: Broker) -> Broker:
        return watchful_broker
