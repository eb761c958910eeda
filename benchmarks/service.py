"""The broker that benchmarks run on: one that is given, or one of their own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

from timewheel.broker.admin import AdminClient
from timewheel.core import Native, Plan, Scheme
from timewheel.provision import ensure
from timewheel.testing import Broker, pulsar_service

__all__ = ["connected", "now_ms", "provisioned", "service"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def service() -> Iterator[Broker]:
    """The broker that ``TIMEWHEEL_TEST_BROKER`` chooses, else one that is started and stopped."""
    with pulsar_service(quick_start=False, progress=print) as broker:
        yield broker


@contextmanager
def connected(broker: Broker) -> Iterator[Any]:
    """A quiet client."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def provisioned(broker: Broker, name: str, scheme: Scheme | None = None, **changes: Any) -> Plan:
    """A plan of this run's own, its topics made."""
    plan = Plan(
        due_topic=f"persistent://public/default/bench-{name}-{uuid.uuid4().hex[:6]}",
        subscriptions=("bench",),
        scheme=scheme or Native(),
        **changes,
    )
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms())
    return plan
