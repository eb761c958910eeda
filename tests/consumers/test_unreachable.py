"""A service URL without a broker: one error of ours with topic, cause and remedy, for every role."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from timewheel.client.reaching import ReachingClient, reaching
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer
from timewheel.core import Plan
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Cancel, Tiered
from timewheel.errors import BrokerUnreachable, CancelFailed, SendFailed
from timewheel.producers import AsyncDelayedProducer, DelayedProducer
from timewheel.relay import Relay
from timewheel.testing.ports import free_ports

DUE = "persistent://acme/crm/reminders"
PLAN = Plan(due_topic=DUE, subscriptions=("billing",), scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))
WITH_CANCEL = Plan(due_topic=DUE, subscriptions=("billing",), cancel=Cancel())
TEN_DAYS = dt.timedelta(days=10)


@pytest.fixture(scope="module", params=["refused", "unknown host"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A real client of a port where nothing listens, or of a name that nobody has."""
    (port,) = free_ports(1)
    url = f"pulsar://127.0.0.1:{port}" if request.param == "refused" else "pulsar://no-such-host.invalid:6650"
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(url, operation_timeout_seconds=1, logger=silent)
    yield client
    client.close()


async def _started(client: Any) -> None:
    async with AsyncDelayedConsumer(client, PLAN, "billing"):
        raise AssertionError


@pytest.mark.parametrize(
    "start",
    [
        lambda client: DelayedConsumer(client, PLAN, "billing").start(),
        lambda client: DelayedConsumer(client, WITH_CANCEL, "billing").start(),
        lambda client: Relay(client, PLAN).start(),
        lambda client: Relay(client, PLAN).check(),
        lambda client: asyncio.run(_started(client)),
    ],
    ids=["consumer", "log of cancellations", "relay", "check", "async consumer"],
)
def test_whoever_starts_is_told_the_topic_and_how_to_check(client: Any, start: Callable[[Any], object]) -> None:
    with pytest.raises(BrokerUnreachable, match=r"operation_timeout_seconds .*; .* nc -vz HOST 6650") as caught:
        start(client)
    assert caught.value.call == "a lookup"
    assert caught.value.topic.startswith(DUE)
    assert isinstance(caught.value, pulsar.Timeout), "as pulsar-client's own code expects"
    assert isinstance(caught.value, pulsar.ConnectError), "as pulsar-client's own code expects"
    assert isinstance(caught.value.__cause__, pulsar.PulsarException)


def _sent(client: Any) -> None:
    with DelayedProducer(client, PLAN) as producer:
        producer.send(b"x", deliver_after=TEN_DAYS)


def _cancelled(client: Any) -> None:
    with DelayedProducer(client, WITH_CANCEL) as producer:
        producer.cancel("id")


async def _sent_async(client: Any) -> None:
    async with AsyncDelayedProducer(client, PLAN) as producer:
        await producer.send(b"x", deliver_after=TEN_DAYS)


@pytest.mark.parametrize(
    ("call", "kind"),
    [(_sent, SendFailed), (lambda client: asyncio.run(_sent_async(client)), SendFailed), (_cancelled, CancelFailed)],
    ids=["send", "async send", "cancel"],
)
def test_a_send_fails_as_ever_and_its_cause_says_how_to_check(
    client: Any, call: Callable[[Any], object], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"no broker answered a lookup of .* nc -vz HOST 6650") as caught:
        call(client)
    assert isinstance(caught.value.__cause__, BrokerUnreachable)


class _Advertising:
    """A client whose first broker answers lookups, and whose topics' brokers cannot be reached."""

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [topic]

    def refuse(self, *_: Any, **__: Any) -> Any:
        raise pulsar.ConnectError("Pulsar error: ConnectError")

    create_producer = subscribe = create_reader = refuse


@pytest.mark.parametrize(
    "opening",
    [
        lambda client: client.create_producer(DUE),
        lambda client: client.subscribe([DUE, f"{DUE}.retry"], "billing"),
        lambda client: client.create_reader(DUE, pulsar.MessageId.earliest),
    ],
    ids=["producer", "consumer", "reader"],
)
def test_after_an_answered_lookup_the_address_that_a_broker_advertises_is_to_check(
    opening: Callable[[Any], object],
) -> None:
    client = reaching(_Advertising())
    client.get_topic_partitions(DUE)
    with pytest.raises(BrokerUnreachable, match=f"advertises.*: pulsar-admin topics lookup {DUE}$"):
        opening(client)


def test_a_client_is_wrapped_once_and_passes_on_all_other_calls() -> None:
    mine = _Advertising()
    client = reaching(mine)
    assert reaching(client) is client
    assert client.refuse == mine.refuse
    assert isinstance(client, ReachingClient)
