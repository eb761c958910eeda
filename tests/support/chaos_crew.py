"""Posts for worker processes: when a worker is killed, its post remains, and the next worker fills it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.chaos_ledger import Event, Tail, ready_file
from tests.support.chaos_worker import Fuse, Job
from tests.support.checkout import ROOT
from timewheel.testing.process import OwnedProcess

__all__ = ["Post"]

STOP_TIMEOUT_S = 30.0


class Post:
    """A place for one process at a time, which never outlives the test.

    Args:
        job: The job of its processes; ledger and fuse are set for each life.
        folder: Folder of ledgers and logs.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.name = job.name
        self.lives = 0
        self.stopped = False
        self._job = job
        self._folder = folder
        self._process = OwnedProcess(log=folder / f"{job.name}.log")
        self._tails: list[Tail] = []
        self._ready: Path | None = None

    @property
    def pid(self) -> int | None:
        """The living process; None: dead."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last life; None while a process lives."""
        return self._process.exit_code

    @property
    def is_ready(self) -> bool:
        """True if the living process, a service, has its ready file."""
        return self.pid is not None and self._ready is not None and self._ready.exists()

    def start(self, fuse: Fuse | None = None, **changes: object) -> None:
        """Start a process.

        Args:
            fuse: When the process kills itself.
            changes: Changes of the job, for this life.
        """
        ledger = self._folder / f"{self.name}.{self.lives:03d}.ledger"
        job = replace(self._job, ledger=str(ledger), fuse=fuse, **changes)  # type: ignore[arg-type]
        self._tails = [*self._tails[-1:], Tail(ledger)]
        self._ready = ready_file(ledger)
        self.lives += 1
        self.stopped = False
        self._process.start(job.arguments(), cwd=ROOT)

    def kill(self) -> None:
        """Kill the process with -9 from outside, and wait for its end."""
        self._process.kill()

    def stop(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open but do not respond."""
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process (SIGCONT)."""
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Ask the process to end in order (SIGTERM), and return its exit code."""
        self._process.terminate(STOP_TIMEOUT_S)
        return self._process.wait(STOP_TIMEOUT_S)

    def events(self) -> Iterator[Event]:
        """Yield the events that its processes recorded since the last call, oldest first."""
        for tail in self._tails:
            yield from tail.read()

    def log_tail(self) -> str:
        """Return the end of its processes' output."""
        return self._process.log_tail()

    def close(self) -> None:
        """Kill the process, if any, and start no more."""
        self._process.close()
