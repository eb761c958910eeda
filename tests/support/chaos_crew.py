"""Posts that workers fill one after another: a worker is killed, the post stays."""

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
        job: What its processes do; ledger and fuse are filled in for each life.
        folder: Where ledgers and logs go.
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
        """How the last life ended; None while one lasts."""
        return self._process.exit_code

    @property
    def is_ready(self) -> bool:
        """Whether the living process, a service, says so by its ready file."""
        return self.pid is not None and self._ready is not None and self._ready.exists()

    def start(self, fuse: Fuse | None = None, **changes: object) -> None:
        """Begin a life.

        Args:
            fuse: When it kills itself.
            changes: To the job, for this life.
        """
        ledger = self._folder / f"{self.name}.{self.lives:03d}.ledger"
        job = replace(self._job, ledger=str(ledger), fuse=fuse, **changes)  # type: ignore[arg-type]
        self._tails = [*self._tails[-1:], Tail(ledger)]
        self._ready = ready_file(ledger)
        self.lives += 1
        self.stopped = False
        self._process.start(job.arguments(), cwd=ROOT)

    def kill(self) -> None:
        """Kill -9 from outside, and wait for the end."""
        self._process.kill()

    def stop(self) -> None:
        """Freeze it (SIGSTOP): its connections stay open and nothing answers."""
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on (SIGCONT)."""
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Ask it to end in order (SIGTERM) and return its exit code."""
        self._process.terminate(STOP_TIMEOUT_S)
        return self._process.wait(STOP_TIMEOUT_S)

    def events(self) -> Iterator[Event]:
        """What its processes wrote since the last call, oldest first."""
        for tail in self._tails:
            yield from tail.read()

    def log_tail(self) -> str:
        """The end of what its processes printed."""
        return self._process.log_tail()

    def close(self) -> None:
        """Kill whoever is there; for good."""
        self._process.close()
