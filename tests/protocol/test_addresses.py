"""Service URLs are read as clients of Pulsar write them."""

from __future__ import annotations

import pytest

from timewheel.broker.protocol.session import Address, ServiceUrl
from timewheel.core.errors import BadConnection


@pytest.mark.parametrize(
    ("text", "addresses", "is_tls"),
    [
        ("pulsar://one:1234", ("one:1234",), False),
        ("pulsar://one", ("one:6650",), False),
        ("pulsar+ssl://one", ("one:6651",), True),
        ("pulsar+ssl://one:1,two,10.0.0.3:3/", ("one:1", "two:6651", "10.0.0.3:3"), True),
        ("pulsar://[::1]:7", ("[::1]:7",), False),
        ("pulsar://[::1]", ("[::1]:6650",), False),
    ],
)
def test_urls_are_addresses(text: str, addresses: tuple[str, ...], is_tls: bool) -> None:
    found = ServiceUrl.parse(text)

    assert (tuple(map(str, found.addresses)), found.is_tls) == (addresses, is_tls)


def test_an_address_of_version_6_has_no_brackets_where_it_is_connected_to() -> None:
    assert ServiceUrl.parse("pulsar://[::1]:7").addresses == (Address("::1", 7),)


@pytest.mark.parametrize(
    "text",
    [
        "", "one:6650", "http://one", "pulsar:/one", "pulsar://", "pulsar://,one", "pulsar://one,", "pulsar://one:x",
        "pulsar://one:99999", "pulsar://me:secret@one", "pulsar://one/path", "pulsar://one?secret", "pulsar://[::1",
        "PULSAR://one", "pulsar://one#secret",
    ],
)  # fmt: skip
def test_what_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadConnection, match="service_url") as refused:
        ServiceUrl.parse(text)

    assert "secret" not in str(refused.value)
