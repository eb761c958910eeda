"""Bytes to and from a broker: a socket, plain or with TLS, that never waits longer than its time-out."""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from timewheel.broker.protocol.addresses import Address
from timewheel.broker.protocol.errors import BrokerLost

RECEIVE_BYTES = 256 * 1024
"""Bytes received at once: some thousand entries, and the most that is read ahead of the caller."""
_CLOSED = "it was closed by the other side"
_SHORTEST_S = 0.000_001
"""A socket takes 0 as "never wait", which TLS cannot distinguish from a lost connection."""


class Transport(Protocol):
    """A stream of bytes in both directions."""

    @property
    def address(self) -> Address:
        """Address of the other side."""
        ...

    def send(self, data: bytes, timeout_ms: int) -> None:
        """Send all of the data.

        Raises:
            BrokerLost: It could not be sent, or not in this time.
        """
        ...

    def receive(self, timeout_ms: int) -> bytes:
        """Return received bytes; empty: none came in this time.

        Raises:
            BrokerLost: The connection was lost.
        """
        ...

    def close(self) -> None:
        """Close the stream at once."""
        ...


class SocketTransport:
    """A connection to an address.

    Args:
        address: Host and port.
        tls: TLS settings; None: no TLS. If the settings ask for it, the name is checked against the address's host.
        timeout_ms: Time-out for connecting, and again for TLS.

    Raises:
        BrokerLost: The connection failed.
    """

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None, timeout_ms: int) -> None:
        self.address = address
        timeout_s = timeout_ms / 1000
        try:
            plain = socket.create_connection(address, timeout=timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a name
            raise BrokerLost(self.address, _said(error), "is a broker there, and is this its own port?") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host)
        except (OSError, ValueError) as error:
            plain.close()
            raise BrokerLost(self.address, _said(error), _remedy(error)) from error

    def send(self, data: bytes, timeout_ms: int) -> None:
        try:
            self._socket.settimeout(max(timeout_ms / 1000, _SHORTEST_S))
            self._socket.sendall(data)
        except OSError as error:
            raise BrokerLost(self.address, _said(error)) from error

    def receive(self, timeout_ms: int) -> bytes:
        try:
            self._socket.settimeout(max(timeout_ms / 1000, _SHORTEST_S))
            data = self._socket.recv(RECEIVE_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return b""
        except OSError as error:
            raise BrokerLost(self.address, _said(error)) from error
        if not data:
            raise BrokerLost(self.address, _CLOSED)
        return data

    def close(self) -> None:
        self._socket.close()


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__


def _remedy(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "trust its authority (tls_trust_certs_file_path), and use a host that its certificate names"
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS at this port, and does it trust this client's certificate?"
    return "connect again"
