"""A URL with the scheme or the port of another service of the broker is answered with the fact and the right URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.secured import Secured
from timewheel.cli.access import Access
from timewheel.cli.connecting import ConnectionOptions
from timewheel.client.port_probe import mistake_in
from timewheel.errors import AdminUnreachable, BrokerLost, BrokerUnreachable, TimewheelError
from timewheel.testing.ports import free_ports

TOPIC = "persistent://public/default/reminders"


def urls(secured: Secured) -> dict[str, str]:
    """The right URL of each port by its scheme."""
    right = (secured.broker.admin_url, secured.tls_url, secured.broker.service_url, secured.tls_service_url)
    return {urlsplit(url).scheme: url for url in right}


def failed(call: Callable[[], object]) -> TimewheelError:
    with pytest.raises(TimewheelError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("spoken", ["http", "https", "pulsar", "pulsar+ssl"])
@pytest.mark.parametrize("scheme", ["http", "https", "pulsar", "pulsar+ssl"])
def test_a_port_that_speaks_otherwise_is_told_with_the_right_url(secured: Secured, scheme: str, spoken: str) -> None:
    url = urls(secured)[spoken]
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    said = mistake_in(scheme, at.hostname, at.port)
    if scheme == spoken:
        assert said == ""
    elif ("http" in scheme) == ("http" in spoken):
        assert said == f"{at.netloc} speaks {'TLS' if spoken in {'https', 'pulsar+ssl'} else 'no TLS'}: write {url}"
    else:
        usual = {"http": "web port is usually 8080", "pulsar": "brokers' own port is usually 6650"}
        usual |= {"https": "web port is usually 8443", "pulsar+ssl": "brokers' own port is usually 6651"}
        assert f"{at.netloc} is the port of the " in said
        assert said.endswith(f", {url}; the {usual[scheme]}")


def test_every_client_says_so_and_has_no_words_of_openssl(secured: Secured) -> None:
    right = urls(secured)

    def access(**given: str) -> Access:
        connection = ConnectionOptions(**given, tls_ca=Path(secured.ca_path)).merged()  # type: ignore[arg-type]
        return Access(connection, ())

    def look_up(url: str) -> None:
        with access(service_url=url).client(TOPIC, operation_timeout_seconds=1) as client:
            client.get_topic_partitions(TOPIC)

    wrong = right["http"].replace("http", "https")
    with access(admin_url=wrong).admin() as admin:
        said = failed(admin.brokers.version)
    assert isinstance(said, AdminUnreachable)
    assert f"speaks no TLS: write {right['http']}; It comes from --admin-url" in said.reason
    assert said.wrong_url, "so that it is not repeated"

    wrong = right["pulsar"].replace("pulsar", "pulsar+ssl")
    said = failed(lambda: access(service_url=wrong).dialer().reach(TOPIC))
    assert isinstance(said, BrokerLost)
    assert f"speaks no TLS: write {right['pulsar']}" in said.reason
    said = failed(lambda: look_up(wrong))
    assert isinstance(said, BrokerUnreachable)
    assert f"speaks no TLS: write {right['pulsar']}" in said.cause


def test_a_port_where_nobody_listens_has_no_mistake_of_this_kind() -> None:
    (closed,) = free_ports(1)
    assert mistake_in("http", "127.0.0.1", closed) == ""
    assert mistake_in("http", "no-such-host.invalid", closed) == ""
    assert mistake_in("http", "x" * 70, closed) == ""
