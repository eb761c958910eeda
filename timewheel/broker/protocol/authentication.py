"""Ways for a client to authenticate with a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Authentication(Protocol):
    """A way to authenticate."""

    @property
    def method(self) -> str:
        """Name of the method in the protocol."""
        ...

    def data(self) -> bytes:
        """Return the credentials; called at every connect, and when a broker asks for them again."""
        ...


class Anonymous:
    """No authentication: no credentials are sent."""

    method = "none"

    def data(self) -> bytes:
        return b""


class ByCertificate:
    """Authentication by the TLS certificate, which the broker has already seen."""

    method = "tls"

    def data(self) -> bytes:
        return b""


class ByToken:
    """Authentication by a token.

    Args:
        source: Returns the current token.
    """

    method = "token"

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source

    def data(self) -> bytes:
        return self._source().encode()

    def __repr__(self) -> str:
        return "ByToken(***)"
