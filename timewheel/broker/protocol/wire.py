"""The encoding on the wire: Protocol Buffers as far as Pulsar uses them, and frames.

A field is identified by its *tag*, number and kind together: a field of another kind than expected is unknown, and
unknown fields are skipped. Reading never goes past the given end, and keeps no state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from timewheel.broker.protocol.errors import FrameTooLarge, ProtocolViolation

_NUMBER = 0
_FIXED_64 = 1
_DATA = 2
_FIXED_32 = 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_MAX_SHIFT = 63  # a number has 64 bits, so ten bytes of seven bits each
_MASK_64 = (1 << 64) - 1


def number_tag(number: int) -> int:
    """Return the tag of a field that holds a number, a flag or an enum."""
    return number << 3 | _NUMBER


def data_tag(number: int) -> int:
    """Return the tag of a field that holds bytes, a text or a message."""
    return number << 3 | _DATA


def fields_of(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the fields of a message between two indices: tag, number, data.

    A field has either a number or data, the other is 0 or empty.

    Raises:
        ProtocolViolation: The bytes are no message.
    """
    at = start
    while at < end:
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _long_number(data, at, end, tag)
        kind = tag & 7
        if tag < 8 or kind not in {_NUMBER, _DATA, _FIXED_32, _FIXED_64}:
            raise ProtocolViolation(f"a field with tag {tag}", "no field has that")
        if kind in _FIXED_BYTES:
            value = _FIXED_BYTES[kind]
        else:
            if at >= end:
                raise _cancellation()
            value = data[at]
            at += 1
            if value > 0x7F:
                value, at = _long_number(data, at, end, value)
            if kind == _NUMBER:
                yield tag, value, b""
                continue
        stop = at + value
        if stop > end:
            raise _cancellation()
        yield tag, 0, data[at:stop]
        at = stop


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the index of its end; ProtocolViolation: it is cut off, or longer than ten bytes."""
    if at >= len(data):
        raise _cancellation()
    first = data[at]
    return (first, at + 1) if first <= 0x7F else _long_number(data, at + 1, len(data), first)


def _long_number(data: bytes, at: int, end: int, first: int) -> tuple[int, int]:
    """Read the rest of a number whose first byte was read."""
    value = first & 0x7F
    for shift in range(7, _MAX_SHIFT + 1, 7):
        if at >= end:
            raise _cancellation()
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value & _MASK_64, at
    raise ProtocolViolation("a number of more than ten bytes", "numbers have 64 bits")


def _cancellation() -> ProtocolViolation:
    return ProtocolViolation("a message whose last field is cut off", "fields end within their message")


def as_signed(number: int) -> int:
    """Interpret a number as signed."""
    return number - (1 << 64) if number >> 63 else number


def text_of(data: bytes) -> str:
    """Decode a text. Bytes that are not UTF-8, which clients in C++ may write, survive by `data_field`'s handler."""
    return data.decode("utf-8", "surrogateescape")


def number_field(number: int, value: int) -> bytes:
    """Encode a field that holds a number; a negative number takes 64 bits."""
    return _number(number_tag(number)) + _number(value & _MASK_64)


def data_field(number: int, value: bytes | str) -> bytes:
    """Encode a field that holds bytes, a text or a message."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return _number(data_tag(number)) + _number(len(data)) + data


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


FRAME_PADDING_BYTES = 10 * 1024  # size of a frame beyond the broker's ``maxMessageSize``: room for the command
DEFAULT_FRAME_BYTES = 5 * 1024 * 1024 + FRAME_PADDING_BYTES
"""The limit until the broker has sent its ``maxMessageSize``, from that setting's default."""
MAX_FRAME_BYTES = 128 * 1024 * 1024
"""The limit for any broker: its setting rarely exceeds some ten megabytes, and the memory is the client's."""

_SIZES = struct.Struct(">II")
_SIZE_BYTES = 4
COMMAND_AT = 4  # index of the command in a frame without its size: behind the command's own size
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
_CONNECT_AGAIN = "connect again; if it stays, raise the broker's maxMessageSize or use its own port"


def frame_of(command: bytes) -> bytes:
    """Build a frame that holds only a command."""
    return _SIZES.pack(_SIZE_BYTES + len(command), len(command)) + command


class Frames:
    """Splits a stream of bytes into frames, however the bytes arrive; ``limit_bytes`` is for a frame without its size.

    A frame is its size, the size of its command, the command, and, if an entry is delivered, the rest: see `entries`.
    No memory is reserved for a frame before its bytes have arrived.
    """

    def __init__(self) -> None:
        self.limit_bytes = DEFAULT_FRAME_BYTES
        self._held = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        del self._held[: self._at]
        self._at = 0
        self._held += data

    def next(self) -> tuple[bytes, int] | None:
        """Return the next whole frame without its size, and the index of its command's end; the command begins at
        `COMMAND_AT`. None: the frame is not complete.

        Raises:
            ProtocolViolation: Its sizes are impossible. This is known before its bytes arrive and before memory is
                reserved.
        """
        held, at = self._held, self._at + _SIZE_BYTES
        if len(held) < at:
            return None
        size = int.from_bytes(held[self._at : at], "big")
        if size > self.limit_bytes:
            raise FrameTooLarge(size, self.limit_bytes, self._remedy())
        if size <= COMMAND_AT:
            raise ProtocolViolation(f"a frame of {size} bytes", "a frame holds a command")
        end = at + size
        if len(held) < end:
            return None
        with memoryview(held) as view:
            frame = bytes(view[at:end])
        self._at = end
        command_end = COMMAND_AT + int.from_bytes(frame[:COMMAND_AT], "big")
        if command_end > size:
            told = f"a command of {command_end - COMMAND_AT} bytes in a frame of {size}"
            raise ProtocolViolation(told, "a frame holds all of its command")
        return frame, command_end

    def _remedy(self) -> str:
        """Recognize other protocols at the same port, which look like large frames."""
        head = bytes(self._held[self._at : self._at + _SIZE_BYTES])
        if head.startswith(_TLS_RECORDS):
            return "this is TLS: use the scheme pulsar+ssl"
        if head == b"HTTP":
            return "this is a web service: use the service URL, not the admin URL"
        return _CONNECT_AGAIN
