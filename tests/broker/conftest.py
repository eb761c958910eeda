"""What all tests on a real broker share, on top of the fixtures of `timewheel.testing.plugin`."""

from __future__ import annotations

import re
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.testing import Broker


class Connect(Protocol):
    """What the fixture `connect` gives."""

    def __call__(self, broker: Broker, **options: Any) -> Any: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open raw clients, quiet ones, that are closed when the test ends."""
    with ExitStack() as stack:

        def open_client(broker: Broker, **options: Any) -> Any:
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pulsar.Client(broker.service_url, **{"logger": quiet, "operation_timeout_seconds": 20, **options})
            stack.callback(client.close)
            return client

        yield open_client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own, so that one broker can serve all."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"
