"""Ledgers of chaos tests: what a process did, written before it can be killed, one line at a time.

Every process incarnation appends to a file of its own with bare writes, so that a line is either there or not, whatever
kills its writer; at most the last one can be cut short, and is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from timewheel.wire.positions import Position

__all__ = [
    "Acknowledged",
    "Beat",
    "Dying",
    "Event",
    "Handled",
    "Hop",
    "Ledger",
    "Ready",
    "Tail",
    "now_ms",
    "ready_file",
]


class Handled(NamedTuple):
    """A handler was given a timer."""

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
    """The broker has answered this process, by the connection that its acknowledgements take."""

    pid: int
    at_ms: int


class Hop(NamedTuple):
    """A relay is about to send a timer onwards.

    Attributes:
        number: Which hop of the timer, from 1.
        producer: The producer's name; empty for an unnamed one: the late lane, or a slot's tail
            (broker-facts: late-lane, slot-sweep).
        sequence_id: 0 by an unnamed one.
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
    """UTC milliseconds; the same clock for all processes of a test, since they share a machine."""
    return time.time_ns() // 1_000_000


def ready_file(ledger: Path) -> Path:
    """Where a service says that it is ready, beside its ledger."""
    return ledger.with_suffix(".ready")


class Ledger:
    """One process's ledger, to append to; safe to use from several threads.

    Args:
        path: Made if it is not there.
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
        path: The ledger; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[Event]:
        """The events since the last call; a line without its end waits for the next."""
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
