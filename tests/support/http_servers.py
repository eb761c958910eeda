"""HTTP servers of tests: they log nothing, and end with a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from threading import Thread
from typing import Any

POLL_S = 0.01
END_TIMEOUT_S = 120.0  # enough for a program that has to start before it can end


class QuietHandler(BaseHTTPRequestHandler):
    """Gives requests of all kinds to `respond`, which looks at ``command`` and ``path``."""

    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def do_PUT(self) -> None:
        self.respond()

    def do_DELETE(self) -> None:
        self.respond()

    def answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        del format, args


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Answer requests until the block ends."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_TIMEOUT_S)
