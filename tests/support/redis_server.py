"""A real Redis (Debian: apt-get install redis-server), in a folder of its own, that can be killed and started again."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from timewheel.testing import eventually
from timewheel.testing.process import OwnedProcess

__all__ = ["RedisServer", "redis_server"]

START_TIMEOUT_S = 60.0
SMALL_MS = 20_000
"""Of an answer: generous, since the machine may be busy with other things."""


class RedisServer:
    """One that runs; on a socket in a folder, so that no port is taken.

    Args:
        folder: Its own.
        process: The place for it.
        options: Of its command line.
    """

    def __init__(self, folder: Path, process: OwnedProcess, options: tuple[str, ...]) -> None:
        self._folder = folder
        self._process = process
        self._options = options
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not here (Debian: apt-get install redis-server)")
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self._folder)]
        self._process.start([*command, *self._options], cwd=self._folder)
        eventually(self._answers, START_TIMEOUT_S, poll=0.01, message=self._process.log_tail())

    def kill(self) -> None:
        """With -9: it says goodbye to nobody."""
        self._process.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def client(self) -> redis.Redis:
        """A new connection."""
        return redis.Redis.from_url(self.url, socket_timeout=SMALL_MS / 1000)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """One that lives for this block, without a file unless ``options`` say so."""
    # Not pytest's folder: the path of a socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="tw-redis-"))
    with OwnedProcess(log=folder / "redis.log") as process:
        process.remove_at_end(folder)
        server = RedisServer(folder, process, options)
        server.start()
        yield server
