"""The most memory that a process and those that it starts have at once, by whose it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

__all__ = ["DRIVER", "JVM", "PYTHON", "WORKERS", "watched"]

DRIVER: str = "driver MB"
WORKERS: str = "workers MB"
PYTHON: str = "Python MB"
JVM: str = "JVM MB"
"""This process; Python processes below it; those two together at one moment; Java below it."""
POLL_S = 0.1


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Look at this process and all below it until the block ends; the figures grow meanwhile.

    In megabytes of the proportional set size: pages that processes share, as forks do, count once.
    """
    most = dict.fromkeys((DRIVER, WORKERS, PYTHON, JVM), 0.0)
    is_over = threading.Event()

    def watch() -> None:
        over = False
        while not over:
            over = is_over.is_set()  # then this is the last look: at what the block has left
            now = dict.fromkeys(most, 0.0)
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    own_mb = process.memory_full_info().pss / 1e6
                    kind = DRIVER if process == psutil.Process() else JVM if "java" in process.name() else WORKERS
                except psutil.Error:
                    continue  # it has just ended
                now[kind] += own_mb
            now[PYTHON] = now[DRIVER] + now[WORKERS]
            most.update({kind: max(before, now[kind]) for kind, before in most.items()})
            is_over.wait(POLL_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()
