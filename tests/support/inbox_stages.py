"""Stores of claims for tests, with controlled time; a store can be reopened."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Protocol

from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer
from timewheel.consumers.inbox import Inbox, MemoryInbox, RedisInbox, SqliteInbox

_numbers = count()


class Stage(Protocol):
    """A store of claims."""

    inbox: Inbox
    keeps: bool

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass."""

    def restart(self) -> None:
        """Reopen the store, as a new process would."""

    def close(self) -> None: ...


class MemoryStage:
    keeps = False

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.inbox: Inbox = MemoryInbox(clock=self._clock)

    def pass_ms(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)

    def restart(self) -> None:
        self.inbox.close()
        self.inbox = MemoryInbox(clock=self._clock)

    def close(self) -> None:
        self.inbox.close()


class SqliteStage:
    keeps = True

    def __init__(self, folder: Path) -> None:
        self._clock = ManualClock()
        self.path = folder / f"{next(_numbers)}.sqlite3"
        self.inbox: Inbox = self.opened()

    def opened(self) -> SqliteInbox:
        """Open the store, as another process would."""
        return SqliteInbox(self.path, synchronous="normal", clock=self._clock)

    def pass_ms(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)

    def restart(self) -> None:
        self.inbox.close()
        self.inbox = self.opened()

    def close(self) -> None:
        self.inbox.close()


class RedisStage:
    """Redis's own clock cannot be moved, so the remaining time of each key is shortened instead."""

    keeps = True

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.prefix = f"stage-{next(_numbers)}:"
        self.inbox: Inbox = self.opened()

    def opened(self) -> RedisInbox:
        """Open the store, as another process would."""
        return RedisInbox.from_url(self._server.url, prefix=self.prefix, timeout_ms=20_000)

    def pass_ms(self, duration_ms: int) -> None:
        shift_time(self._server, self.prefix, duration_ms)

    def restart(self) -> None:
        self.inbox.close()
        self.inbox = self.opened()

    def close(self) -> None:
        self.inbox.close()


def shift_time(server: RedisServer, prefix: str, duration_ms: int) -> None:
    """Let time pass for the keys of a Redis."""
    with server.client() as client:
        for name in client.scan_iter(f"{prefix}*", count=1_000):
            left_ms = client.pttl(name)
            assert isinstance(left_ms, int)
            assert left_ms > 0, f"{name!r} would never end"
            if left_ms <= duration_ms:
                client.delete(name)
            else:
                client.pexpire(name, left_ms - duration_ms)
