"""A connection is kept alive from both sides, and given up in time when there is nobody at its other end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.support.kept import Kept
from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.acknowledging import EntryAcknowledger
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost, BrokerSilent
from timewheel.broker.protocol.reading import EntryReader
from timewheel.client.positions import EntryPosition
from timewheel.testing import LocalPulsar, eventually

HOUR_MS = 3_600_000
TIMEOUT_MS = 20_000
GROUP = "billing"
ASKS_EVERY_S = 1


@pytest.fixture
def nervous(kept: Kept) -> LocalPulsar:
    """A broker that asks every second whether its clients are there, and gives them up a second later."""
    return kept.get("nervous", lambda: own_broker({"keepAliveIntervalSeconds": str(ASKS_EVERY_S)}))


@pytest.fixture
def client(nervous: LocalPulsar) -> Iterator[Any]:
    opened = pulsar.Client(nervous.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


@pytest.fixture
def native(nervous: LocalPulsar, topic: str) -> str:
    with AdminClient(nervous.admin_url) as admin:
        admin.topics.create_unpartitioned(topic)
        admin.subscriptions.create(topic, GROUP)
    return topic


def send(client: Any, topic: str) -> EntryPosition:
    producer = client.create_producer(topic)
    message_id = producer.send(b"x", deliver_at=now_ms() + HOUR_MS)
    producer.close()
    return EntryPosition(message_id.ledger_id(), message_id.entry_id())


def test_whoever_is_called_now_and_then_is_kept_and_whoever_is_not_is_told(
    nervous: LocalPulsar, client: Any, native: str
) -> None:
    dialer = Dialer(nervous.service_url)
    reader, acknowledger = EntryReader(dialer, native), EntryAcknowledger(dialer, native, GROUP)
    forgotten = EntryReader(dialer, native)
    until_s = time.monotonic() + 5 * ASKS_EVERY_S
    while time.monotonic() < until_s:
        assert reader.read(200) == []
        acknowledger.keep_alive()
    position = send(client, native)
    (entry,) = reader.read(TIMEOUT_MS)
    acknowledger.acknowledge([position])
    assert entry.position == position

    with pytest.raises(BrokerLost, match="connect again"):
        eventually(lambda: forgotten.read(0) and False, 5)
    reader.close()
    acknowledger.close()


def test_a_frozen_broker_is_given_up_in_time(nervous: LocalPulsar, client: Any, native: str) -> None:
    position = send(client, native)
    acknowledger = EntryAcknowledger(Dialer(nervous.service_url, request_ms=3_000), native, GROUP)
    nervous.pause()
    try:
        began_s = time.monotonic()
        with pytest.raises(BrokerSilent, match="no answer within 3000 ms"):
            acknowledger.acknowledge([position])
        assert 2.9 < time.monotonic() - began_s < 20
        with pytest.raises(BrokerSilent, match="no answer to CONNECT"):
            EntryReader(Dialer(nervous.service_url, request_ms=500), native)
    finally:
        nervous.resume()


def test_a_killed_broker_is_told_as_a_lost_connection(nervous: LocalPulsar, client: Any, native: str) -> None:
    send(client, native)
    reader = EntryReader(Dialer(nervous.service_url), native)
    assert len(reader.read(TIMEOUT_MS)) == 1
    nervous.kill()
    try:
        with pytest.raises(BrokerLost, match="no connection to"):
            reader.read(TIMEOUT_MS)
        with pytest.raises(BrokerLost, match="is a broker there"):
            EntryReader(Dialer(nervous.service_url), native)
    finally:
        nervous.start()
