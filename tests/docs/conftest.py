"""What the pages share: the broker that they name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timewheel.testing import LocalPulsar


@pytest.fixture(scope="package")
def broker_of_the_pages() -> Iterator[LocalPulsar]:
    """At the addresses that the pages name, which are Pulsar's own defaults."""
    with LocalPulsar(config={"brokerServicePort": "6650", "webServicePort": "8080"}) as broker:
        yield broker
