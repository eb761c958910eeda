"""A broker with settings of a test module's own, by the project's rule about brokers that cannot be had."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from timewheel.testing import BrokerUnavailable, LocalPulsar

__all__ = ["own_broker"]


@contextmanager
def own_broker(
    config: Mapping[str, str], kind: Callable[..., LocalPulsar] = LocalPulsar, *, version: str | None = None
) -> Iterator[LocalPulsar]:
    """A running broker, of the run's version if none is said, stopped at the end.

    Where there can be none: a skip by hand and a failure in CI.
    """
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(kind(version, config=config))
        except BrokerUnavailable as error:
            if os.environ.get("CI", "").lower() in {"1", "true"}:
                pytest.fail(f"no Pulsar, and this is CI: {error}", pytrace=False)
            pytest.skip(f"no Pulsar: {error}")
        yield broker
