"""What the pages share: the broker that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.kept import Kept
from timewheel.testing import LocalPulsar


@pytest.fixture
def broker_of_the_pages(kept: Kept) -> LocalPulsar:
    """At the addresses that the pages name, which are Pulsar's own defaults."""
    return kept.get("broker of the pages", _at_the_defaults)


@contextmanager
def _at_the_defaults() -> Iterator[LocalPulsar]:
    """Run it as long as tests of the lane share it.

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
