"""A real broker for tests, demos and your own experiments, and helpers to test with.

    with LocalPulsar() as broker:
        client = pulsar.Client(broker.service_url)

Most names are loaded on first use: pytest imports this package in every run where timewheel is installed, for the sake
of its plugin, and should not pay for httpx there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.doors import names_on_first_use
from timewheel.testing.errors import BrokerFailed, BrokerUnavailable
from timewheel.testing.eventually import eventually

if TYPE_CHECKING:
    from timewheel.testing.container import PulsarContainer
    from timewheel.testing.local_pulsar import LocalPulsar
    from timewheel.testing.service import Broker, pulsar_service

__all__ = [
    "Broker",
    "BrokerFailed",
    "BrokerUnavailable",
    "LocalPulsar",
    "PulsarContainer",
    "eventually",
    "pulsar_service",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "Broker": ".service",
        "LocalPulsar": ".local_pulsar",
        "PulsarContainer": ".container",
        "pulsar_service": ".service",
    },
)
