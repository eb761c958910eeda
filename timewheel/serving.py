"""HTTP server of a process: a few pages, each a function that is called for every request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = [
    "JSON",
    "LIVE_PATH",
    "LOOPBACK",
    "METRICS_PATH",
    "READY_PATH",
    "TEXT",
    "Answer",
    "CannotListen",
    "HttpServer",
    "Page",
    "parse_address",
]

LOOPBACK = "127.0.0.1"
LIVE_PATH = "/livez"
"""Liveness page: reports whether a restart would help, as it would not for a missing broker."""
READY_PATH = "/readyz"
"""Readiness page: reports whether everything is served at this moment."""
METRICS_PATH = "/metrics"
"""Page for Prometheus."""
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
SLOW_CLIENT_S = 10
"""A client that is silent for this long in the middle of a request is dropped, since it occupies a thread."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a page."""

    status: int
    body: bytes
    content_type: str = TEXT


Page = Callable[[], Answer]


def parse_address(text: str) -> tuple[str, int]:
    """Parse host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT`` (this machine only).

    Raises:
        ValueError: The text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is no HOST:PORT with a port of 0 to 65535; for all interfaces: 0.0.0.0:8080")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::]:8080")
    return host or LOOPBACK, int(port)


class CannotListen(OSError):
    """The port is taken, or the host is not an address of this machine."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {cause.strerror or cause}")


class HttpServer:
    """Answers GET and HEAD with the page of the path; all other paths are 404.

    If a page raises, the answer is 500 with the error's type only: its message may contain data that is not public.

    Args:
        host: Address to listen on; the server is reachable only there.
        port: Port to listen on; 0: any free port, see `port`.
        pages: Pages by path, such as ``/readyz``.
        name: Name of the thread that listens.

    Raises:
        CannotListen: The port is taken, or the host is not an address of this machine.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, name: str = "timewheel-http") -> None:
        try:
            self._server = _server_class(host)((host, port), _handler_of(dict(pages)))
        except OSError as error:
            raise CannotListen(host, port, error) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering, and close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    return Server


def _handler_of(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW_CLIENT_S
        server_version = "timewheel"
        sys_version = ""

        def do_GET(self) -> None:
            answer = self._answer()
            self._head(answer)
            self.wfile.write(answer.body)

        def do_HEAD(self) -> None:
            self._head(self._answer())

        def _answer(self) -> Answer:
            path = self.path.partition("?")[0]
            page = pages.get(path)
            if page is None:
                return Answer(404, f"no such page; there are {' '.join(sorted(pages))}\n".encode())
            try:
                return page()
            except Exception as error:  # noqa: BLE001 - the client needs an answer, and the server must go on
                return Answer(500, f"{type(error).__name__}\n".encode())

        def _head(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Log nothing: an answer each second is not news."""

    return Handler
