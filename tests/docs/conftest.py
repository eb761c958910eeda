"""What the pages share: the broker that they name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timewheel.testing import LocalPulsar


@pytest.fixture(scope="package")
def broker_of_the_pages() -> Iterator[LocalPulsar]:
    """At the addresses that the pages name, which are Pulsar's own defaults.

    A broker that ended by itself fails the last test that shares it, with the end of its log: without that, all that
    the others say is that nobody answers.
    """
    with LocalPulsar(config={"brokerServicePort": "6650", "webServicePort": "8080"}) as broker:
        yield broker
        try:
            code = broker.wait(0)
        except TimeoutError:
            return
        pytest.fail(f"the broker of the pages ended by itself, with {code}; its log ends:\n{broker.log_tail(200)}")
