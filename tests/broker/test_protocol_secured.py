"""The brokers' own protocol where a role decides and TLS is spoken: who is let in, and who is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.acknowledging import EntryAcknowledger
from timewheel.broker.protocol.authentication import ByToken
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerLost, BrokerRefused
from timewheel.broker.protocol.reading import EntryReader
from timewheel.cli.access import Access
from timewheel.core.connection import DEFAULTS, Connection
from timewheel.core.secret import Secret
from timewheel.hooks import Event
from timewheel.testing import eventually

HOUR_MS = 3_600_000
TIMEOUT_MS = 20_000
GROUP = "billing"


@pytest.fixture
def delivered_later(secured: Secured, topic: str) -> tuple[str, int]:
    """A topic with a subscription and one delayed message, and when that is to be delivered."""
    with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
        admin.topics.create_unpartitioned(topic)
        admin.subscriptions.create(topic, GROUP)
    deliver_at_ms = now_ms() + HOUR_MS
    send(secured, topic, deliver_at_ms)
    return topic, deliver_at_ms


def send(secured: Secured, topic: str, deliver_at_ms: int) -> None:
    client = pulsar.Client(
        secured.broker.service_url,
        authentication=pulsar.AuthenticationToken(token_for("admin")),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    client.create_producer(topic).send(b"x", deliver_at=deliver_at_ms)
    client.close()


def dialer_of(secured: Secured, **said: Any) -> Dialer:
    """As a command makes it, of what its connection's file says."""
    told: list[Event] = []
    given: dict[str, Any] = {"service_url": secured.tls_service_url, "tls_trust_certs_file_path": Path(secured.ca_path)}
    return Access(Connection(**{**given, **said}).over(DEFAULTS), (told.append,)).dialer()


def identity_of(secured: Secured, role: str) -> dict[str, Any]:
    identity = secured.certificate_of(role)
    return {
        "tls_certificate_file_path": Path(identity.certificate_path),
        "tls_private_key_file_path": Path(identity.key_path),
    }


@pytest.mark.parametrize("way", ["token", "token file", "certificate", "token without TLS"])
def test_whoever_the_connection_says_we_are_reads_and_acknowledges(
    secured: Secured, delivered_later: tuple[str, int], way: str, tmp_path: Path
) -> None:
    topic, deliver_at_ms = delivered_later
    (tmp_path / "token").write_text(token_for("admin"))
    ways: dict[str, dict[str, Any]] = {
        "token": {"token": Secret(token_for("admin"))},
        "token file": {"token_file": tmp_path / "token"},
        "certificate": identity_of(secured, "admin"),
        "token without TLS": {"token": Secret(token_for("admin")), "service_url": secured.broker.service_url},
    }
    dialer = dialer_of(secured, **ways[way])
    with EntryReader(dialer, topic) as reader:
        (entry,) = reader.read(TIMEOUT_MS)
    with EntryAcknowledger(dialer, topic, GROUP) as acknowledger:
        acknowledger.acknowledge([entry.position])

    assert entry.deliver_at_ms == deliver_at_ms
    with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
        assert admin.topics.stats(topic, precise_backlog=True).subscriptions[GROUP].backlog == 0


@pytest.mark.parametrize("way", ["token", "certificate"])
def test_a_role_without_the_right_is_refused_by_name(
    secured: Secured, delivered_later: tuple[str, int], way: str
) -> None:
    said = {"token": Secret(token_for("guest"))} if way == "token" else identity_of(secured, "guest")

    with pytest.raises(BrokerRefused, match="AuthorizationError") as refused:
        EntryReader(dialer_of(secured, **said), delivered_later[0])
    assert not refused.value.is_passing


def test_a_token_that_is_none_is_refused_and_not_repeated(secured: Secured, delivered_later: tuple[str, int]) -> None:
    forged = token_for("admin")[:-8] + "AAAAAAAA"

    with pytest.raises(BrokerRefused, match=r"refused to take the connection .AuthenticationError.") as refused:
        EntryReader(dialer_of(secured, token=Secret(forged)), delivered_later[0])
    assert forged not in str(refused.value)


def test_a_broker_whose_certificate_names_another_host_is_not_spoken_to(
    secured: Secured, delivered_later: tuple[str, int]
) -> None:
    url = secured.tls_service_url.replace("127.0.0.1", "localhost")
    with pytest.raises(BrokerLost, match="use a host that its certificate names"):
        EntryReader(dialer_of(secured, service_url=url, token=Secret(token_for("admin"))), delivered_later[0])

    unchecked = dialer_of(secured, service_url=url, token=Secret(token_for("admin")), tls_validate_hostname=False)
    with EntryReader(unchecked, delivered_later[0]) as reader:
        assert len(reader.read(TIMEOUT_MS)) == 1


def test_an_authority_that_is_not_trusted_ends_it(secured: Secured, delivered_later: tuple[str, int]) -> None:
    dialer = dialer_of(secured, token=Secret(token_for("admin")), tls_trust_certs_file_path=None)
    with pytest.raises(BrokerLost, match="trust its authority"):
        EntryReader(dialer, delivered_later[0])


def test_without_tls_at_the_port_of_tls_the_remedy_is_said(secured: Secured, delivered_later: tuple[str, int]) -> None:
    url = secured.tls_service_url.replace("pulsar+ssl", "pulsar")
    with pytest.raises(BinaryProtocolError) as refused:
        EntryReader(dialer_of(secured, service_url=url), delivered_later[0])
    assert "pulsar+ssl" in str(refused.value) or isinstance(refused.value, BrokerLost)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_token_that_expires_is_asked_for_again_and_without_a_newer_one_it_ends(
    secured: Secured, delivered_later: tuple[str, int], is_renewed: bool
) -> None:
    topic, deliver_at_ms = delivered_later
    expires_s = int(time.time()) + 4
    asked: list[str] = []

    def token() -> str:
        is_newer = is_renewed and time.time() >= expires_s
        asked.append(token_for("admin") if is_newer else token_for("admin", expires_s=expires_s))
        return asked[-1]

    dialer = Dialer(secured.broker.service_url, authentication=ByToken(token))
    with EntryReader(dialer, topic) as reader:
        assert len(reader.read(TIMEOUT_MS)) == 1
        opened = len(asked)
        if not is_renewed:
            with pytest.raises((BrokerLost, BrokerRefused)):
                eventually(lambda: reader.read(100) and False, 30)
            return
        # The broker asks within a second of the time, and closes the connection if it is not answered.
        eventually(lambda: reader.read(100) == [] and len(asked) > opened, 60)
        eventually(lambda: reader.read(100) == [] and time.time() > expires_s + 4, 60)
        send(secured, topic, deliver_at_ms + 1)
        (entry,) = reader.read(TIMEOUT_MS)
        assert entry.deliver_at_ms == deliver_at_ms + 1
