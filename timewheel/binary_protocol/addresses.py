"""Service URLs as addresses: where brokers are, and whether they speak TLS there."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from timewheel.core.errors import BadConnection

__all__ = ["Address", "ServiceUrl"]

_PLAIN, _TLS = "pulsar", "pulsar+ssl"
_PORTS = {_PLAIN: 6650, _TLS: 6651}


class Address(NamedTuple):
    """One port of one host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServiceUrl(NamedTuple):
    """What a service URL says.

    Attributes:
        addresses: At least one; they count the same.
        is_tls: Whether all of them speak TLS.
    """

    addresses: tuple[Address, ...]
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> ServiceUrl:
        """Read one, as ``pulsar+ssl://one:6651,two:6651``.

        Raises:
            BadConnection: It is none. The text, which may hold a password, is not repeated.
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
