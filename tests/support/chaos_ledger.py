"""Ledgers of chaos tests: each operation of a process, recorded in a line before the process can be killed.

Every process incarnation appends to its own file with unbuffered writes, so that a line is either stored or not,
however its writer is killed; at most the last line can be truncated, and is ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
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
    topic: str
    pid: int
    at_ms: int


class Failed(NamedTuple):
    """A handler received a timer and failed, so that it is tried again."""

    timer_id: str
    due_ms: int
    topic: str
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
    """A relay is about to send a timer on."""

    timer_id: str
    number: int  # number of the hop of this timer, from 1
    # the producer's name; empty for an unnamed producer: the late lane, or a slot's tail (broker-facts: late-lane,
    # slot-sweep)
    producer: str
    sequence_id: int  # 0 for an unnamed producer
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


Event = Handled | Failed | Acknowledged | Beat | Hop | Ready | Dying
KINDS: dict[str, Callable[..., Event]] = {
    kind.__name__: kind for kind in (Handled, Failed, Acknowledged, Beat, Hop, Ready, Dying)
}


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

    def record(self, kind: type[Event], *facts: object) -> None:
        """Record an event of this process, which happens now: all its facts but process and time."""
        line = json.dumps([kind.__name__, *facts, os.getpid(), now_ms()])
        os.write(self._fd, f"{line}\n".encode())


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
        for line in whole.splitlines():
            kind, *facts = json.loads(line)
            yield KINDS[kind](*(Position(*fact) if isinstance(fact, list) else fact for fact in facts))
