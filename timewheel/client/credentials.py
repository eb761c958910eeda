"""Token and TLS settings of a client, read again when they are renewed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.connection import expires_ms_of
from timewheel.events import TokenExpired, TokenUnreadable
from timewheel.hooks import Hook


class TokenReader:
    """Returns the token to pulsar-client, and reports problems that client and broker do not report.

        token = TokenReader(Path("/run/secrets/pulsar-token"))
        client = pulsar.Client(url, authentication=pulsar.AuthenticationToken(token))

    The client calls it at every connect, and when the broker finds that a token has expired. It calls on a thread of
    its own, where an exception ends the process: so if a file cannot be read, or is empty because it is being written,
    the token stays as it was. The broker drops a client with an expired token without a reason, and the client tries
    for ever: the hooks get the reason, once per token (broker-facts: expired-tokens).

    Args:
        source: A file that is renewed in time, or a function that returns the current token.
        name: Name of the source in events; None: the file's path.
        clock: Clock for the expiry of tokens.
        hooks: Called on the client's own thread: they must not call the client. None: events are logged.

    Raises:
        OSError: The file cannot be read now.
        ValueError: The token is empty, or not text.
    """

    __slots__ = ("_clock", "_hooks", "_name", "_read", "_reported_of", "_token")

    def __init__(
        self,
        source: Path | Callable[[], str],
        *,
        name: str | None = None,
        clock: Clock | None = None,
        hooks: tuple[Hook, ...] | None = None,
    ) -> None:
        self._read = _file_reader(source) if isinstance(source, Path) else source
        self._name = name or (str(source) if isinstance(source, Path) else "a function")
        self._clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._reported_of: str | None = None
        self._token = self._current()

    def __call__(self) -> str:
        """Return the present token; the last readable token if it cannot be read."""
        try:
            self._token = self._current()
        except Exception as error:  # noqa: BLE001 - on the client's thread it would end the process
            self._hooks.emit(TokenUnreadable(source=self._name, reason=str(error) or repr(error)))
        self._report_if_expired(self._token)
        return self._token

    def _current(self) -> str:
        token = self._read().strip()
        if not token:
            raise ValueError("it is empty")
        return token

    def _report_if_expired(self, token: str) -> None:
        expires_ms = expires_ms_of(token)
        if expires_ms is not None and expires_ms <= self._clock.now_ms() and token != self._reported_of:
            self._reported_of = token
            self._hooks.emit(TokenExpired(source=self._name, expired_at_ms=expires_ms))


def _file_reader(path: Path) -> Callable[[], str]:
    return lambda: path.read_text(encoding="utf-8")


PAUSE_MS = 5_000
"""Pause before files that did not load, and have not changed since, are read again: reading authorities takes time."""

_Mark = tuple[int, ...] | None  # fingerprint of a file's content; None: the file does not exist now


class TlsReader:
    """Returns the present TLS settings for a new connection. Thread-safe.

    An `ssl.SSLContext` keeps its files' content, and would present a certificate that is renewed daily until it
    expires. So the files are checked before each use, which costs less than a packet of a handshake, and read again if
    a file has changed. If the files do not match (only the certificate or only the key is written yet), the present
    settings stay: they are still valid, and the next use finds the other file.
    """

    def __init__(
        self, read: Callable[[], ssl.SSLContext], paths: Sequence[Path], *, clock: Clock | None = None
    ) -> None:
        self._read = read
        self._paths = tuple(paths)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._refused: tuple[_Mark, ...] | None = None
        self._try_again_at_ms = 0
        # Fingerprints are taken before reading: a change in between causes a superfluous read, and is never missed.
        self._marks = self._marked()
        self._settings = self._read()

    def __call__(self) -> ssl.SSLContext:
        """Return the present settings; the same object until the files yield new settings."""
        with self._lock:
            marks = self._marked()
            if marks != self._marks and not self._is_too_early(marks):
                self._renew(marks)
            return self._settings

    def _renew(self, marks: tuple[_Mark, ...]) -> None:
        try:
            settings = self._read()
        except OSError:
            # Tried again even without a change: a file may have been marked and read while it was being written.
            self._refused, self._try_again_at_ms = marks, self._clock.monotonic_ms() + PAUSE_MS
            return
        self._settings, self._marks, self._refused = settings, marks, None

    def _is_too_early(self, marks: tuple[_Mark, ...]) -> bool:
        return marks == self._refused and self._clock.monotonic_ms() < self._try_again_at_ms

    def _marked(self) -> tuple[_Mark, ...]:
        return tuple(map(_mark_of, self._paths))


def _mark_of(path: Path) -> _Mark:
    try:
        found = path.stat()  # of a link's target: Kubernetes renews a secret by another link
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
