"""How a client shows a broker who it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Anonymous", "Authentication", "ByCertificate", "ByToken"]


class Authentication(Protocol):
    """A way to authenticate."""

    @property
    def method(self) -> str:
        """Its name in the protocol."""
        ...

    def data(self) -> bytes:
        """What it shows; asked for at every connect, and when a broker asks again."""
        ...


class Anonymous:
    """Nothing is shown."""

    method = "none"

    def data(self) -> bytes:
        return b""


class ByCertificate:
    """The certificate that TLS has shown already says who the client is."""

    method = "tls"

    def data(self) -> bytes:
        return b""


class ByToken:
    """A token.

    Args:
        source: Gives the current one.
    """

    method = "token"

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source

    def data(self) -> bytes:
        return self._source().encode()

    def __repr__(self) -> str:
        return "ByToken(***)"
