"""A real Redis (Debian: apt-get install redis-server), in its own folder, that can be killed and restarted."""

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

START_TIMEOUT_S = 60.0
SMALL_MS = 20_000  # timeout of an answer: long, since the machine may be busy


class RedisServer:
    """A Redis on a socket in a folder, so that it uses no port."""

    def __init__(self, folder: Path, process: OwnedProcess, options: tuple[str, ...]) -> None:
        self._folder = folder
        self._process = process
        self._options = options
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not here (Debian: apt-get install redis-server)")
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self._folder)]
        self._process.start([*command, *self._options], cwd=self._folder)
        eventually(self._answers, START_TIMEOUT_S, poll=0.01, message=self._process.log_tail())

    def kill(self) -> None:
        """Kill the server with -9, without a clean shutdown."""
        self._process.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        self._process.send_signal(number)

    def client(self) -> redis.Redis:
        """Open a new connection."""
        return redis.Redis.from_url(self.url, socket_timeout=SMALL_MS / 1000)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a server for this block, without persistence unless ``options`` enable it."""
    # Not pytest's folder: the path of a socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="tw-redis-"))
    with OwnedProcess(log=folder / "redis.log") as process:
        process.remove_at_end(folder)
        server = RedisServer(folder, process, options)
        server.start()
        yield server
