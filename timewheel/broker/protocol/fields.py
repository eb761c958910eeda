"""The encoding of Protocol Buffers, as far as Pulsar's commands use it.

A field is identified by its *tag*, number and kind together: a field of another kind than expected is unknown, and
unknown fields are skipped. Reading never goes past the given end, and keeps no state.
"""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.protocol.errors import ProtocolViolation

_NUMBER = 0
_FIXED_64 = 1
_DATA = 2
_FIXED_32 = 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_MAX_SHIFT = 63
"""A number has 64 bits, so ten bytes of seven bits each."""
_MASK_64 = (1 << 64) - 1


def number_tag(number: int) -> int:
    """Return the tag of a field that holds a number, a flag or an enum."""
    return number << 3 | _NUMBER


def data_tag(number: int) -> int:
    """Return the tag of a field that holds bytes, a text or a message."""
    return number << 3 | _DATA


def fields_of(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the fields of a message: tag, number, data; a field has either a number or data, the other is 0 or
    empty.

    Args:
        data: Bytes that contain the message.
        start: Index of the message's begin.
        end: Index of its end; within `data`.

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
    """Return a number and the index of its end.

    Raises:
        ProtocolViolation: The number is cut off, or longer than ten bytes.
    """
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
    """Decode a text. Bytes that are not UTF-8, which clients in C++ may write, survive by the handler of
    `data_field`.
    """
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
