"""A real broker for tests, demos and your own experiments, and helpers to test with.

    with LocalPulsar() as broker:
        client = pulsar.Client(broker.service_url)
"""

from timewheel.testing.errors import BrokerFailed, BrokerUnavailable
from timewheel.testing.eventually import eventually
from timewheel.testing.local_pulsar import LocalPulsar

__all__ = ["BrokerFailed", "BrokerUnavailable", "LocalPulsar", "eventually"]
