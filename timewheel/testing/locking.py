"""A lock between processes, for files that are made once in the user's cache folder."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timewheel.testing.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.2
TIMEOUT_S = 1_800
"""The work under the lock has this limit itself; a longer wait means that a process hangs."""


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel drops when this process ends, however it ends.

    Args:
        path: The lock file; it is created, and never removed, because removing it would open a race.
        on_wait: Called once if another process holds the lock.

    Raises:
        BrokerUnavailable: Another process held it for half an hour.
    """
    with path.open("a") as handle:
        deadline = time.monotonic() + TIMEOUT_S
        told = False
        while not _taken(handle.fileno()):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"another process has held {path} for {TIMEOUT_S} s")
            if not told:
                on_wait()
                told = True
            time.sleep(POLL_S)
        yield


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
