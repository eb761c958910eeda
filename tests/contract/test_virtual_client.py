"""pulsar-client on a virtual Pulsar keeps the contract of the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.client_contract import ClientContract, Topics
from tests.contract.keeping_contract import KeepingContract
from tests.contract.sharing_contract import SharingContract

if TYPE_CHECKING:
    from timewheel.client.surface import ClientLike
    from timewheel.testing.virtual import VirtualPulsar


class TestVirtualClient(ClientContract, SharingContract, KeepingContract):
    @pytest.fixture(params=[0, 500_000], ids=["at once", "half a millisecond away"], autouse=True)
    def latency(self, request: pytest.FixtureRequest, virtual_pulsar: VirtualPulsar) -> None:
        virtual_pulsar.cluster.latency_ns = request.param

    @pytest.fixture
    def client(self, virtual_pulsar: VirtualPulsar) -> ClientLike:
        client: ClientLike = virtual_pulsar.client()
        return client

    @pytest.fixture
    def topics(self, virtual_pulsar: VirtualPulsar) -> Topics:
        return Topics(virtual_pulsar.admin_url)
