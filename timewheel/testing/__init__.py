"""A real broker or cluster for tests, demos and experiments, and helpers for tests.

    with LocalPulsar() as broker:
        client = pulsar.Client(broker.service_url)

Most names are loaded on first use: pytest imports this package for its plugin in every run on a machine with timewheel
installed, and such a run should not have to import httpx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import names_on_first_use
from timewheel.testing.errors import BrokerFailed, BrokerUnavailable
from timewheel.testing.eventually import eventually

if TYPE_CHECKING:
    from timewheel.testing.container import PulsarContainer
    from timewheel.testing.local_cluster import LocalCluster
    from timewheel.testing.local_pulsar import LocalPulsar
    from timewheel.testing.service import Broker, pulsar_service

__all__ = [
    "Broker",
    "BrokerFailed",
    "BrokerUnavailable",
    "LocalCluster",
    "LocalPulsar",
    "PulsarContainer",
    "eventually",
    "pulsar_service",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        ".container": "PulsarContainer",
        ".local_cluster": "LocalCluster",
        ".local_pulsar": "LocalPulsar",
        ".service": "Broker pulsar_service",
    },
)
