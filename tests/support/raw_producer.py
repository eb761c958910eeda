"""A producer by the brokers' binary protocol: sends any metadata and any bytes, even invalid ones."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import google_crc32c

from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.wire import data_field, data_tag, fields_of, number_field, number_tag
from timewheel.client.positions import EntryPosition

_CONNECT, _PRODUCER, _SEND, _RECEIPT, _SEND_ERROR, _ERROR, _PING, _PONG = 2, 5, 6, 7, 8, 14, 18, 19
"""Types of commands; the field that holds a command's body has the number of its type."""
_PROTOCOL_VERSION = 19
_TIMEOUT_S = 10
_WINDOW = 200  # entries in flight; by default a broker stops reading from a connection at 1,000


class RawEntry(NamedTuple):
    """An entry to store."""

    metadata: bytes  # made by `metadata_of`, or any bytes
    payload: bytes = b""
    messages: int = 1
    head: bytes | None = None  # bytes before the size of the metadata; None: the right checksum


def metadata_of(
    *,
    sequence_id: int = 0,
    publish_ms: int | None = None,
    deliver_at_ms: int | None = None,
    properties: dict[str, str] | None = None,
    key: str | bytes | None = None,
    ordering_key: bytes | None = None,
    schema_version: bytes | None = None,
    compression: int | None = None,
    uncompressed_bytes: int | None = None,
    batch_size: int | None = None,
    more: bytes = b"",
) -> bytes:
    """Encode the metadata of an entry; texts and numbers are not checked, so that they can be wrong.

    Args:
        publish_ms: UTC milliseconds; None: now.
        deliver_at_ms: UTC milliseconds.
        properties: With surrogates (`surrogateescape`) for bytes that are no UTF-8.
    """
    numbers = {8: compression, 9: uncompressed_bytes, 11: batch_size, 19: deliver_at_ms}
    datas = {6: key, 16: schema_version, 18: ordering_key}
    now_ms = int(time.time() * 1_000) if publish_ms is None else publish_ms
    return b"".join(
        (
            data_field(1, "raw"),
            number_field(2, sequence_id),
            number_field(3, now_ms),
            *(
                data_field(4, data_field(1, name) + data_field(2, value))
                for name, value in (properties or {}).items()
            ),
            *(number_field(number, value) for number, value in numbers.items() if value is not None),
            *(data_field(number, value) for number, value in datas.items() if value is not None),
            more,
        )
    )  # fmt: skip


def batch_member(payload: bytes = b"", properties: dict[str, str] | None = None) -> bytes:
    """Encode a message of a batch, with its own metadata before it."""
    pairs = (data_field(1, data_field(1, name) + data_field(2, value)) for name, value in (properties or {}).items())
    metadata = b"".join(pairs) + number_field(3, len(payload))
    return struct.pack(">I", len(metadata)) + metadata + payload


class RawProducer:
    """A producer of a partition, or of a topic without partitions.

    Args:
        service_url: ``pulsar://host:port`` of a broker without authentication.
        name: Name of the producer; empty: the broker assigns a name.
    """

    def __init__(
        self, service_url: str, topic: str, *, name: str = "", client: str = "raw", numbered_from: int = 0
    ) -> None:
        self._service_url = service_url
        self._topic = topic
        self._named = data_field(4, name) + number_field(9, 1) if name else b""
        self._client = client
        self._numbered_from = numbered_from
        self._held = b""
        self._open()

    def _open(self) -> None:
        Dialer(self._service_url).reach(self._topic).close()  # so that the broker loads the topic
        where = urlsplit(self._service_url)
        self._held, self._sent = b"", self._numbered_from
        self._socket = socket.create_connection((where.hostname, where.port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._command(_CONNECT, data_field(1, self._client) + number_field(4, _PROTOCOL_VERSION))
        self._answer()
        self._command(_PRODUCER, data_field(1, self._topic) + number_field(2, 1) + number_field(3, 1) + self._named)
        kind, body = self._answer()
        if kind == _ERROR:
            raise ConnectionRefusedError(_text_in(body, 3))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, metadata: bytes, payload: bytes = b"", *, messages: int = 1) -> EntryPosition:
        """Store an entry, and wait until it is stored.

        Raises:
            ConnectionError: The broker rejects the entry.
        """
        (position,) = self.send_all([RawEntry(metadata, payload, messages)])
        if position is None:
            raise ConnectionAbortedError(f"{self._topic}: the broker does not take this entry")
        return position

    def send_all(self, entries: Iterable[RawEntry]) -> list[EntryPosition | None]:
        """Store entries, many at a time.

        Entries that are in flight when a broker closes the connection are sent again, so they may be stored twice.

        Returns:
            Position of each entry; None: the broker refused it or closed the connection.
        """
        found: list[EntryPosition | None] = []
        waiting: deque[RawEntry] = deque()
        for entry in entries:
            waiting.append(entry)
            self._send(entry, found, waiting)
            while len(waiting) >= _WINDOW:
                self._receipt(found, waiting)
        while waiting:
            self._receipt(found, waiting)
        return found

    def _send(self, entry: RawEntry, found: list[EntryPosition | None], waiting: deque[RawEntry]) -> None:
        body = struct.pack(">I", len(entry.metadata)) + entry.metadata + entry.payload
        head = b"\x0e\x01" + struct.pack(">I", google_crc32c.value(body)) if entry.head is None else entry.head
        send = number_field(1, 1) + number_field(2, self._sent) + number_field(3, entry.messages)
        self._sent += 1
        try:
            self._command(_SEND, send, head + body)
        except OSError:
            self._again(found, waiting)

    def _receipt(self, found: list[EntryPosition | None], waiting: deque[RawEntry]) -> None:
        try:
            kind, body = self._answer()
        except OSError:
            self._again(found, waiting)
            return
        waiting.popleft()
        found.append(_position_in(body) if kind == _RECEIPT else None)

    def _again(self, found: list[EntryPosition | None], waiting: deque[RawEntry]) -> None:
        """Omit the first unconfirmed entry, which closed the connection, and send the others again."""
        self._socket.close()
        self._open()
        waiting.popleft()
        found.append(None)
        others = list(waiting)
        waiting.clear()
        for entry in others:  # one by one: another entry may close the connection, too
            waiting.append(entry)
            self._send(entry, found, waiting)
            while waiting:
                self._receipt(found, waiting)

    def _command(self, kind: int, body: bytes, rest: bytes = b"") -> None:
        command = number_field(1, kind) + data_field(kind, body)
        self._socket.sendall(struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest)

    def _answer(self) -> tuple[int, bytes]:
        """Return the next command except PING, and its body."""
        while True:
            size = int.from_bytes(self._take(4), "big")
            frame = self._take(size)
            fields = {tag: (number, data) for tag, number, data in fields_of(frame, 4, len(frame))}
            kind = fields[number_tag(1)][0]
            if kind == _PING:
                self._command(_PONG, b"")
                continue
            return kind, fields[data_tag(kind)][1]

    def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"{self._topic}: the broker closed the connection")
            self._held += data
        taken, self._held = self._held[:size], self._held[size:]
        return taken


def _position_in(receipt: bytes) -> EntryPosition:
    place = _data_in(receipt, 3)
    numbers = {tag: number for tag, number, _ in fields_of(place, 0, len(place))}
    return EntryPosition(numbers[number_tag(1)], numbers[number_tag(2)])


def _data_in(message: bytes, number: int) -> bytes:
    return next(data for tag, _, data in fields_of(message, 0, len(message)) if tag == data_tag(number))


def _text_in(message: bytes, number: int) -> str:
    return _data_in(message, number).decode("utf-8", "replace")
