"""Splits a stream of bytes into frames, however the bytes arrive.

A frame is its size, the size of its command, the command, and, if an entry is delivered, the rest: see `entries`. No
memory is reserved for a frame before its bytes have arrived.
"""

from __future__ import annotations

import struct

from timewheel.broker.protocol.errors import FrameTooLarge, ProtocolViolation

FRAME_PADDING_BYTES = 10 * 1024
"""Size of a frame beyond the broker's ``maxMessageSize``: room for the command."""
DEFAULT_FRAME_BYTES = 5 * 1024 * 1024 + FRAME_PADDING_BYTES
"""The limit until the broker has sent its ``maxMessageSize``, from that setting's default."""
MAX_FRAME_BYTES = 128 * 1024 * 1024
"""The limit for any broker: its setting rarely exceeds some ten megabytes, and the memory is the client's."""

_SIZES = struct.Struct(">II")
_SIZE_BYTES = 4
COMMAND_AT = 4
"""Index of the command in a frame without its size: behind the command's own size."""
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
_CONNECT_AGAIN = "connect again; if it stays, raise the broker's maxMessageSize or use its own port"


def frame_of(command: bytes) -> bytes:
    """Build a frame that holds only a command."""
    return _SIZES.pack(_SIZE_BYTES + len(command), len(command)) + command


class Frames:
    """A buffer of received bytes, from which whole frames are taken.

    Attributes:
        limit_bytes: Limit of a frame, without its size.
    """

    __slots__ = ("_at", "_held", "limit_bytes")

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
