"""Telling an orchestrator whether a relay service does its work: a small HTTP answer, a file, or both."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from timewheel.consumers.relay.status import RelayStatus

__all__ = ["ReadyFile", "ReadyServer", "answer_of"]

LOOPBACK = "127.0.0.1"

Answer = Callable[[], tuple[bool, str]]
"""Whether all is well, and the whole story as JSON."""


def answer_of(statuses: Sequence[RelayStatus]) -> tuple[bool, str]:
    """Whether all are ready, and one JSON object: ``{"ready": ..., "relays": [...]}``."""
    relays: list[dict[str, Any]] = [
        {
            "relay_id": status.relay_id,
            "ready": status.ready,
            "unreadable": list(status.unreadable),
            "partitions": [{**asdict(partition), "state": partition.state.value} for partition in status.partitions],
        }
        for status in statuses
    ]
    ready = all(status.ready for status in statuses)
    return ready, json.dumps({"ready": ready, "relays": relays})


class ReadyServer:
    """Answers every GET on 127.0.0.1: 200 while all relays are ready, else 503; the body says why.

    Args:
        port: 0: any free one, see `port`.
        answer: Asked at every call.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, port: int, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ready, told = answer()
                body = told.encode()
                self.send_response(200 if ready else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """An answer a second is no news."""

        self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="timewheel-ready", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ReadyFile:
    """A file that exists exactly while all relays are ready.

    Args:
        path: In a folder that exists; a file left by an earlier process is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.show(ready=False)

    def show(self, *, ready: bool) -> None:
        """Make it or remove it."""
        if ready:
            self._path.touch()
        else:
            self._path.unlink(missing_ok=True)
