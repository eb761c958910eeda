"""Ledgers of chaos tests: each operation of a process, recorded in a line before the process can be killed.

Every process incarnation appends to its own file with unbuffered writes, so that a line is either stored or not,
however its writer is killed; at most the last line can be truncated, and is ignored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from timewheel.client.positions import Position


class Handled(NamedTuple):
    """A handler received a timer."""

    timer_id: str
    generation: int
    position: Position
    hops: int
    due_ms: int
    pid: int
    at_ms: int


class Acknowledged(NamedTuple):
    """The acknowledgement of a position has returned."""

    position: Position
    pid: int
    at_ms: int


class Beat(NamedTuple):
    """The broker has answered this process, on the connection of its acknowledgements."""

    pid: int
    at_ms: int


class Hop(NamedTuple):
    """A relay is about to send a timer on.

    Attributes:
        number: Number of the hop of this timer, from 1.
        producer: The producer's name; empty for an unnamed producer: the late lane, or a slot's tail (broker-facts:
            late-lane, slot-sweep).
        sequence_id: 0 for an unnamed producer.
    """

    timer_id: str
    number: int
    producer: str
    sequence_id: int
    pid: int
    at_ms: int


class Ready(NamedTuple):
    """The process is subscribed."""

    pid: int
    at_ms: int


class Dying(NamedTuple):
    """The process is about to kill itself, at this pass of this point."""

    point: str
    passes: int
    pid: int
    at_ms: int


Event = Handled | Acknowledged | Beat | Hop | Ready | Dying


def now_ms() -> int:
    """Return UTC milliseconds; all processes of a test share this clock, since they share a machine."""
    return time.time_ns() // 1_000_000


def ready_file(ledger: Path) -> Path:
    """Return the path of a service's ready file, beside its ledger."""
    return ledger.with_suffix(".ready")


class Ledger:
    """Appends to the ledger of a process; safe to use from several threads.

    Args:
        path: The file; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def ready(self) -> None:
        self._write("ready", os.getpid(), now_ms())

    def handled(self, timer_id: str, generation: int, position: Position, hops: int, due_ms: int) -> None:
        self._write("handled", timer_id, generation, _text(position), hops, due_ms, os.getpid(), now_ms())

    def acknowledged(self, position: Position) -> None:
        self._write("acknowledged", _text(position), os.getpid(), now_ms())

    def beat(self) -> None:
        self._write("beat", os.getpid(), now_ms())

    def hop(self, timer_id: str, number: int, producer: str, sequence_id: int) -> None:
        self._write("hop", timer_id, number, producer or "-", sequence_id, os.getpid(), now_ms())

    def dying(self, point: str, passes: int) -> None:
        self._write("dying", point, passes, os.getpid(), now_ms())

    def _write(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


class Tail:
    """Reads a ledger as it grows.

    Args:
        path: The ledger; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[Event]:
        """Yield the events since the last call; an incomplete line waits for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            yield _event(line)


def _text(position: Position) -> str:
    return ":".join(map(str, position))


def _position(text: str) -> Position:
    ledger, entry, index = text.split(":")
    return Position(int(ledger), int(entry), int(index))


def _event(line: str) -> Event:
    match line.split(" "):
        case ["handled", timer_id, generation, position, hops, due_ms, pid, at_ms]:
            return Handled(timer_id, int(generation), _position(position), int(hops), int(due_ms), int(pid), int(at_ms))
        case ["acknowledged", position, pid, at_ms]:
            return Acknowledged(_position(position), int(pid), int(at_ms))
        case ["beat", pid, at_ms]:
            return Beat(int(pid), int(at_ms))
        case ["hop", timer_id, number, producer, sequence_id, pid, at_ms]:
            name = "" if producer == "-" else producer
            return Hop(timer_id, int(number), name, int(sequence_id), int(pid), int(at_ms))
        case ["ready", pid, at_ms]:
            return Ready(int(pid), int(at_ms))
        case ["dying", point, passes, pid, at_ms]:
            return Dying(point, int(passes), int(pid), int(at_ms))
    raise ValueError(f"not a line of a ledger: {line!r}")
