"""Entries that our clients never write: valid, almost valid, and garbage."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from tests.support.raw_producer import RawEntry, batch_member, metadata_of
from timewheel.broker.protocol.fields import data_field, number_field

HOUR_MS = 3_600_000
NUMBERS = (0, 1, -1, 2, 127, 128, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 53, (1 << 63) - 1, -(1 << 63))
NAMES = ("", "a", "tw-timer", "tw-id", "tw-due", "tw-from", "tw-for", "tw-group", "tw-dead-reason", "tw-parked-from")
TEXTS = (
    "",
    "1",
    "1 2 3",
    "1 9999999999999 0 0 0 1",
    "3 anything",
    "9" * 5_000,
    "nobody",
    "\x1b]0;x\x07",
    "ü",
    "\udcff\udc80",
)


def odd_entry(rng: random.Random, now_ms: int) -> RawEntry:
    """Make a random odd entry.

    Args:
        now_ms: UTC milliseconds.
    """
    return rng.choice(_KINDS)(rng, now_ms)


def _fields(rng: random.Random, now_ms: int) -> dict[str, Any]:
    """Fields of metadata, with some absurd values."""
    some: dict[str, Callable[[], Any]] = {
        "sequence_id": lambda: rng.choice(NUMBERS),
        "publish_ms": lambda: rng.choice((now_ms, *NUMBERS)),
        "properties": lambda: {rng.choice(NAMES): rng.choice(TEXTS) for _ in range(rng.randint(1, 4))},
        "key": lambda: rng.choice((*TEXTS, b"\xff\xfe")),
        "ordering_key": lambda: rng.randbytes(rng.choice((0, 1, 16))),
        "schema_version": lambda: rng.randbytes(rng.choice((0, 1, 200))),
        "compression": lambda: rng.choice((0, 1, 2, 3, 4, 5, -1)),
        "uncompressed_bytes": lambda: rng.choice(NUMBERS),
        "batch_size": lambda: rng.choice(NUMBERS),
    }
    chosen = rng.sample(sorted(some), rng.randint(0, 4))
    found = {name: some[name]() for name in chosen}
    if rng.random() < 0.8:
        found["deliver_at_ms"] = rng.choice((now_ms + 3 * HOUR_MS, now_ms + 10**12, now_ms, *NUMBERS))
    return found


def _valid(rng: random.Random, now_ms: int) -> RawEntry:
    return RawEntry(metadata_of(**_fields(rng, now_ms)), rng.randbytes(rng.randint(0, 40)))


def _more_fields(rng: random.Random, now_ms: int) -> RawEntry:
    """Numbers and data under any field number, including those of encryption, chunks, markers and transactions."""
    more = b"".join(
        number_field(rng.randint(0, 31), rng.choice(NUMBERS))
        if rng.random() < 0.5
        else data_field(rng.randint(0, 31), rng.randbytes(rng.choice((0, 1, 2, 4, 7, 12))))
        for _ in range(rng.randint(1, 5))
    )
    return RawEntry(metadata_of(**_fields(rng, now_ms), more=more), b"x" * rng.randint(0, 40))


def _mutated(rng: random.Random, now_ms: int) -> RawEntry:
    data = bytearray(metadata_of(**_fields(rng, now_ms)))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            case 2:
                del data[at : at + rng.randint(1, 4)]
            case _:
                del data[at:]
    return RawEntry(bytes(data), rng.randbytes(rng.randint(0, 40)))


def _garbage(rng: random.Random, _now_ms: int) -> RawEntry:
    return RawEntry(rng.randbytes(rng.randint(0, 60)), rng.randbytes(rng.randint(0, 20)))


def _head(rng: random.Random, now_ms: int) -> RawEntry:
    """A wrong or missing checksum, a broker's own metadata, or wrong sizes."""
    heads = (
        b"",
        b"\x0e\x02" + struct.pack(">I", 3) + b"\x08\x01\x10",
        b"\x0e\x02" + struct.pack(">I", 3) + b"\x08\x01\x10\x0e\x01" + rng.randbytes(4),
        b"\x0e\x02" + rng.randbytes(4),
        struct.pack(">I", rng.choice((0, 5, 1 << 31, (1 << 32) - 1))),
    )
    return RawEntry(metadata_of(**_fields(rng, now_ms)), b"x" * 30, head=rng.choice(heads))


def _batch(rng: random.Random, now_ms: int) -> RawEntry:
    payload = b"".join(
        batch_member(b"x" * rng.randint(0, 5), {rng.choice(NAMES): rng.choice(TEXTS[:5])})
        for _ in range(rng.randint(1, 5))
    )
    if rng.random() < 0.5:
        at = rng.randrange(len(payload))
        payload = payload[:at] + rng.randbytes(2) + payload[at + rng.randint(0, 4) :]
    fields = {**_fields(rng, now_ms), "batch_size": rng.choice((1, 2, 5, 1_000, *NUMBERS))}
    if fields.get("compression") == 2:
        fields["uncompressed_bytes"], payload = len(payload), zlib.compress(payload)
    return RawEntry(metadata_of(**fields), payload)


_BOMB = b"0" * (1 << 20)
_BOMBS = (
    (1, bytes(cramjam.lz4.compress_block(_BOMB, store_size=False))),
    (2, zlib.compress(_BOMB)),
    (3, bytes(cramjam.zstd.compress(_BOMB))),
    (4, bytes(cramjam.snappy.compress_raw(_BOMB))),
)


def _bomb(rng: random.Random, now_ms: int) -> RawEntry:
    kind, payload = rng.choice(_BOMBS)
    fields = {**_fields(rng, now_ms), "compression": kind}
    fields["uncompressed_bytes"] = rng.choice((0, 1_000, 1 << 20, (1 << 20) + 1, (1 << 32) - 1))
    return RawEntry(metadata_of(**fields), payload)


_KINDS = (_valid, _more_fields, _mutated, _mutated, _garbage, _head, _batch, _bomb)
