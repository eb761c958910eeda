"""Token of a client, read again at every connect."""

from __future__ import annotations

from collections.abc import Callable
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
