"""Connections over HTTP, whose TLS settings may be renewed while they are used."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["Connections", "Tls"]

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""TLS settings; or what returns the current ones, asked before every request; None: the system's authorities."""


@dataclass(slots=True)
class _Shared:
    """A client, the settings that it was made with, and how many requests are under way with it."""

    client: httpx.Client
    settings: ssl.SSLContext | None
    users: int = 0


class Connections:
    """Sends requests, and keeps connections between them; safe to share between threads.

    An httpx client keeps the TLS settings that it began with. Where they are renewed another client takes its place,
    and the one before is closed when the last of its requests has ended: nobody loses an answer by a renewal.

    Args:
        tls: See `Tls`.
        timeout_s: Seconds for each step of one request.
        transport: Of httpx, for tests; TLS is its own matter then.
    """

    def __init__(self, tls: Tls, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self._settings_of_now = tls if callable(tls) and transport is None else None
        self._timeout_s = timeout_s
        self._transport = transport
        self._lock = threading.Lock()
        self._is_closed = False
        self._current = self._made(tls() if callable(tls) else tls)

    def request(self, method: str, url: str | httpx.URL, **arguments: Any) -> httpx.Response:
        """Send one request, and read its answer whole.

        Args:
            method: HTTP method.
            url: Where to.
            arguments: Further ones of `httpx.Client.request`.

        Raises:
            httpx.HTTPError: There is no answer.
        """
        with self._borrowed() as client:
            return client.request(method, url, **arguments)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            self._current.client.close()

    @contextmanager
    def _borrowed(self) -> Iterator[httpx.Client]:
        with self._lock:
            self._renew()
            shared = self._current
            shared.users += 1
        try:
            yield shared.client
        finally:
            with self._lock:
                shared.users -= 1
                self._close_if_left(shared)

    def _renew(self) -> None:
        if self._settings_of_now is None or self._is_closed:
            return
        # Asked for under the lock: a thread that came late with its answer would turn back to what is past.
        settings = self._settings_of_now()
        if settings is not self._current.settings:
            before, self._current = self._current, self._made(settings)
            self._close_if_left(before)

    def _close_if_left(self, shared: _Shared) -> None:
        if shared is not self._current and shared.users == 0:
            shared.client.close()

    def _made(self, settings: ssl.SSLContext | None) -> _Shared:
        # Not trust_env: the token goes to the brokers and nowhere else, whatever HTTP_PROXY or .netrc say.
        client = httpx.Client(
            verify=True if settings is None else settings,
            timeout=self._timeout_s,
            transport=self._transport,
            trust_env=False,
            follow_redirects=False,
        )
        return _Shared(client, settings)
