"""HTTP connections whose TLS settings may be renewed while they are used."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

MAX_ANSWER_BYTES = 256 << 20
"""Limit of an answer after decompression: larger than the largest entry and the longest list of topics in use, small
enough not to exhaust a process's memory."""
_OF_THE_WAY = frozenset({b"content-encoding", b"transfer-encoding"})
"""Headers that no longer apply once a body is read."""

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""TLS settings; or a function that returns the current settings, called before every request; None: the system's
authorities."""


class AnswerTooLarge(httpx.HTTPError):
    """The answer is larger than `MAX_ANSWER_BYTES`; the rest of it is not read."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is larger than {limit:,} bytes, the most that is read")


@dataclass(slots=True)
class _Shared:
    """A client, the settings that it was made with, and the number of requests under way with it."""

    client: httpx.Client
    settings: ssl.SSLContext | None
    users: int = 0


class Connections:
    """Sends requests, and keeps connections open between them; safe to share between threads.

    An httpx client keeps the TLS settings that it was made with. After a renewal a new client replaces it, and the old
    client is closed when its last request has ended: a renewal loses no answer.

    Args:
        tls: See `Tls`.
        timeout_s: Seconds for each step of a request.
        transport: An httpx transport, for tests; it then handles TLS itself.
    """

    def __init__(self, tls: Tls, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self._settings_of_now = tls if callable(tls) and transport is None else None
        self._timeout_s = timeout_s
        self._transport = transport
        self._lock = threading.Lock()
        self._is_closed = False
        self._current = self._made(tls() if callable(tls) else tls)

    def request(self, method: str, url: str | httpx.URL, **arguments: Any) -> httpx.Response:
        """Send a request, and read its whole answer.

        Args:
            method: HTTP method.
            url: Target of the request.
            arguments: Further arguments of `httpx.Client.request`.

        Raises:
            AnswerTooLarge: The body is longer than the limit, or endless.
            httpx.HTTPError: No answer came.
        """
        with self._borrowed() as client, client.stream(method, url, **arguments) as response:
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise AnswerTooLarge(MAX_ANSWER_BYTES)
            return httpx.Response(
                response.status_code,
                headers=[(name, value) for name, value in response.headers.raw if name.lower() not in _OF_THE_WAY],
                content=bytes(body),
                request=response.request,
                extensions=response.extensions,
            )

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
        # Read under the lock: otherwise a thread that is late with its result would restore outdated settings.
        settings = self._settings_of_now()
        if settings is not self._current.settings:
            before, self._current = self._current, self._made(settings)
            self._close_if_left(before)

    def _close_if_left(self, shared: _Shared) -> None:
        if shared is not self._current and shared.users == 0:
            shared.client.close()

    def _made(self, settings: ssl.SSLContext | None) -> _Shared:
        # Not trust_env: the token goes only to the brokers, whatever HTTP_PROXY or .netrc contain.
        client = httpx.Client(
            verify=True if settings is None else settings,
            timeout=self._timeout_s,
            transport=self._transport,
            trust_env=False,
            follow_redirects=False,
        )
        return _Shared(client, settings)
