"""A producer with a wrong clock: it implements the broker's protocol itself, since clients use their machine's time.

It implements only the part of ``PulsarApi.proto`` for an unbatched send. A frame is its size, the size of its command,
the command, and for a send the size of the metadata, the metadata, and the payload; the checksum is optional.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["WrongClock"]

CONNECT, CONNECTED, PRODUCER, SEND, SEND_RECEIPT, PRODUCER_SUCCESS, PING = 2, 3, 5, 6, 7, 17, 18
"""Types of commands; `FIELDS` has the field of each command that is sent."""
FIELDS = {CONNECT: 2, PRODUCER: 5, SEND: 6}
PONG = b"\x08\x13\x9a\x01\x00"
PROTOCOL_VERSION = 15
TIMEOUT_S = 20.0


class WrongClock:
    """Use it as a context manager.

    Args:
        service_url: URL of the broker that has the topic; the topic must be loaded.
        topic: Full name of a partition.
        name: Name of the producer.
        off_ms: How far its clock is ahead; below 0: behind.
        client: Its client version.
    """

    def __init__(self, service_url: str, topic: str, name: str, *, off_ms: int = 0, client: str = "test") -> None:
        parts = urlsplit(service_url)
        self._to = parts.hostname or "", parts.port or 6650
        self._socket: socket.socket
        self._topic, self._name, self._off_ms, self._client = topic, name, off_ms, client
        self._sent = 0

    @property
    def address(self) -> str:
        """The client's address, as the broker reports it."""
        host, port = self._socket.getsockname()
        return f"/{host}:{port}"

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self._to, timeout=TIMEOUT_S)
        self._ask(CONNECT, _text(1, self._client) + _number(4, PROTOCOL_VERSION), CONNECTED)
        self._ask(
            PRODUCER,
            _text(1, self._topic) + _number(2, 1) + _number(3, 1) + _text(4, self._name),
            PRODUCER_SUCCESS,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, payload: bytes = b"x", *, replicated_from: str | None = None) -> None:
        """Send a message with this clock's time, and wait until it is stored; optionally as if replicated from another
        cluster.
        """
        published_ms = time.time_ns() // 1_000_000 + self._off_ms
        metadata = _text(1, self._name) + _number(2, self._sent) + _number(3, published_ms)
        if replicated_from is not None:
            metadata += _text(5, replicated_from)
        self._ask(SEND, _number(1, 1) + _number(2, self._sent), SEND_RECEIPT, _sized(metadata) + payload)
        self._sent += 1

    def _ask(self, kind: int, body: bytes, answer: int, rest: bytes = b"") -> None:
        command = _number(1, kind) + _bytes(FIELDS[kind], body)
        self._socket.sendall(_sized(_sized(command) + rest))
        while (said := self._command()) != answer:
            assert said == PING, f"the broker answers with a command of type {said}"
            self._socket.sendall(_sized(_sized(PONG)))

    def _command(self) -> int:
        """Read the next command, and return its type, which is its first field."""
        frame = self._read(struct.unpack(">I", self._read(4))[0])
        assert frame[4] == 0x08, "a command begins with its type"
        return frame[5]

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            chunk = self._socket.recv(count - len(found))
            assert chunk, "the broker has closed the connection"
            found += chunk
        return found


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
