"""Connections over HTTP, whose TLS settings may be renewed while they are used."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["AnswerTooLarge", "Connections", "Tls"]

MAX_ANSWER_BYTES = 256 << 20
"""Of one answer, opened if it is compressed: above the largest entry and the longest list of topics that brokers are
run with, below what ends a process."""
_OF_THE_WAY = frozenset({b"content-encoding", b"transfer-encoding"})
"""Headers that no longer hold once a body is read."""

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""TLS settings; or what returns the current ones, asked before every request; None: the system's authorities."""


class AnswerTooLarge(httpx.HTTPError):
    """The answer is larger than `MAX_ANSWER_BYTES`; it is not read on."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is larger than {limit:,} bytes, the most that is read")


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
            AnswerTooLarge: Its body has no end, or a far one.
            httpx.HTTPError: There is no answer.
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
