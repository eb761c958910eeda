"""The protocol that a port speaks: a URL with a wrong scheme or port fails in words of TLS, or by a time-out."""

from __future__ import annotations

import socket
import ssl
from typing import Literal

Scheme = Literal["http", "https", "pulsar", "pulsar+ssl"]

TIMEOUT_S = 1.0  # time-out of each step; only a call that has failed is probed
_WEB_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_CONNECT = b"\x08\x02\x12\x0d\x0a\x09timewheel\x20\x13"
"""Command of Pulsar's protocol without credentials; a broker answers with CONNECTED or with an error."""
_PULSAR_FRAME = b"".join(size.to_bytes(4, "big") for size in (len(_CONNECT) + 4, len(_CONNECT))) + _CONNECT
LONGEST_ANSWER_BYTES = 64
_ANSWER_AT = 8  # index of the command in a frame
_ANSWERS = (b"\x08\x03", b"\x08\x0e")
_USUAL_PORTS = {"http": 8080, "https": 8443, "pulsar": 6650, "pulsar+ssl": 6651}


def mistake_in(scheme: str, host: str, port: int) -> str:
    """Probe a port, and return the mistake in a URL with this scheme, and the right URL; empty: no mistake is seen."""
    try:
        spoken = _scheme_at(host, port)
    except (OSError, UnicodeError):  # nothing can be reached there; UnicodeError: the host cannot be a name
        return ""
    if spoken is None or spoken == scheme:
        return ""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if _is_web(spoken) != _is_web(scheme):
        serves, instead = ("web service", "brokers' own") if _is_web(spoken) else ("brokers' own protocol", "web")
        return (
            f"{at} is the port of the {serves}, {spoken}://{at}; the {instead} port is usually {_USUAL_PORTS[scheme]}"
        )
    has = "speaks TLS" if spoken in {"https", "pulsar+ssl"} else "speaks no TLS"
    return f"{at} {has}: write {spoken}://{at}"


def _is_web(scheme: str) -> bool:
    return scheme in {"http", "https"}


def _scheme_at(host: str, port: int) -> Scheme | None:
    secure = ssl.create_default_context()
    secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE  # nothing secret is sent
    ways: tuple[tuple[ssl.SSLContext | None, Scheme, Scheme], ...] = (
        (None, "http", "pulsar"),
        (secure, "https", "pulsar+ssl"),
    )
    for tls, web, brokers in ways:
        if _answer(host, port, tls, _WEB_REQUEST).startswith(b"HTTP/"):
            return web
        if _answer(host, port, tls, _PULSAR_FRAME)[_ANSWER_AT:].startswith(_ANSWERS):
            return brokers
    return None


def _answer(host: str, port: int, tls: ssl.SSLContext | None, request: bytes) -> bytes:
    """Return the first bytes that answer a request; empty: none came."""
    with socket.create_connection((host, port), TIMEOUT_S) as plain:
        try:
            asked = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
            with asked:
                asked.sendall(request)
                return asked.recv(LONGEST_ANSWER_BYTES)
        except (OSError, ValueError):
            return b""
