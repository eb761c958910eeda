"""Service URLs as addresses: hosts, ports and whether they use TLS."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from timewheel.core.errors import BadConnection

_PLAIN, _TLS = "pulsar", "pulsar+ssl"
_PORTS = {_PLAIN: 6650, _TLS: 6651}


class Address(NamedTuple):
    """A port of a host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServiceUrl(NamedTuple):
    """A parsed service URL.

    Attributes:
        addresses: At least one address; the order has no meaning.
        is_tls: Whether all of them use TLS.
    """

    addresses: tuple[Address, ...]
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> ServiceUrl:
        """Parse a service URL such as ``pulsar+ssl://one:6651,two:6651``.

        Raises:
            BadConnection: The text is no service URL. The error does not repeat it: it may hold a password.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in _PORTS:
            raise BadConnection("service_url", f"must begin with {_PLAIN}:// or {_TLS}://")
        hosts = rest.rstrip("/").split(",")
        return cls(tuple(_address(host, _PORTS[scheme]) for host in hosts), scheme == _TLS)


def _address(text: str, default_port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadConnection("service_url", "has a host or a port that is none") from error
    if not host or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise BadConnection("service_url", "has something else in it than hosts and ports")
    return Address(host, default_port if port is None else port)
