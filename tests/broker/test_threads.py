"""Every role starts and stops beside every other, in any order, and leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import permutations

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS, TIERED, WHEEL, Stage, plan_of
from tests.support.processes import StartedThreads
from timewheel.consumers import DelayedConsumer
from timewheel.core.plan import Calendar, Scheme
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.relay import Relay
from timewheel.relay.service import Service
from timewheel.testing import Broker, eventually

Stop = Callable[[], object]


@pytest.fixture(scope="module")
def stages(pulsar_broker: Broker) -> Iterator[dict[str, Stage]]:
    with ExitStack() as stack:
        schemes: dict[str, Scheme] = {"tiered": TIERED, "wheel": WHEEL, "calendar": Calendar(interval_ms=3_600_000)}
        yield {name: stack.enter_context(Stage(pulsar_broker, plan_of(scheme))) for name, scheme in schemes.items()}


def start_producer(stages: dict[str, Stage]) -> Stop:
    producer = DelayedProducer(stages["tiered"].client, stages["tiered"].plan)
    producer.send(b"", deliver_after=timedelta(seconds=6))
    return producer.close


def start_consumer(stages: dict[str, Stage]) -> Stop:
    """With its relay inside, handling on workers; started and closed by threads of its user."""
    stage = stages["tiered"]
    consumer = DelayedConsumer(stage.client, stage.plan, BUSINESS)
    running = threading.Thread(target=lambda: consumer.run(lambda _: None, workers=2), name="timewheel test user")
    running.start()
    eventually(lambda: consumer.ready, 60)

    def stop() -> None:
        consumer.stop()
        running.join(30)
        consumer.close()

    return stop


def start_calendar(stages: dict[str, Stage]) -> Stop:
    stage = stages["calendar"]
    ensure(stage.admin, stage.plan, now_ms=now_ms())
    consumer = DelayedConsumer(stage.client, stage.plan, BUSINESS).start()
    return consumer.close


def start_service(stages: dict[str, Stage]) -> Stop:
    """Relays of two plans, one of them a wheel, with a port that tells health."""
    plans = [stages[name] for name in ("tiered", "wheel")]
    relays = [Relay(stage.client, stage.plan) for stage in plans]
    service = Service(relays, drain_ms=1_000, address=("127.0.0.1", 0))
    running = threading.Thread(target=service.run, name="timewheel test user")
    running.start()
    eventually(lambda: all(relay.ready for relay in relays), 60)

    def stop() -> None:
        service.end()
        running.join(60)

    return stop


ROLES: dict[str, Callable[[dict[str, Stage]], Stop]] = {
    "producer": start_producer,
    "consumer": start_consumer,
    "calendar": start_calendar,
    "service": start_service,
}
NAMES = tuple(ROLES)
ORDERS = [
    pytest.param(order, id="-".join(order), marks=[] if order[0] < order[-1] and i % 3 == 0 else [pytest.mark.proof])
    for i, order in enumerate(permutations(NAMES))
]


@contextmanager
def no_thread_left() -> Iterator[StartedThreads]:
    started = StartedThreads()
    yield started
    eventually(lambda: started.names() == [], 60)


@pytest.mark.parametrize("order", ORDERS)
def test_roles_stop_in_any_order_and_leave_no_thread(stages: dict[str, Stage], order: tuple[str, ...]) -> None:
    with no_thread_left() as started:
        stops = {name: ROLES[name](stages) for name in NAMES}
        assert started.names(), "they run in threads of their own"
        for name in order:
            stops[name]()


def test_control_a_role_that_is_not_stopped_is_found(stages: dict[str, Stage]) -> None:
    started = StartedThreads()
    stop = start_producer(stages)
    assert started.names()
    stop()
