"""Several relay processes of one host as one service: started, restarted, ready and ended together.

One process uses one core, however many threads it has. The broker assigns partitions to the processes by their names,
as among relays of several hosts.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timewheel.core.clock import Clock
from timewheel.core.rng import Random
from timewheel.events import RelayProcessEnded
from timewheel.hooks import log_event
from timewheel.relay.machine.backoff import Backoff
from timewheel.relay.service import ReadyFile, Reported, health_pages
from timewheel.serving import HttpServer

SOCKET = "NOTIFY_SOCKET"
VARIABLES = (SOCKET, "WATCHDOG_PID", "WATCHDOG_USEC")
"""Meant only for the process that systemd started, not for its children."""
WELL = b"READY=1\nWATCHDOG=1"  # READY is sent every time: systemd uses only the first


def reporter(environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Return a function that notifies systemd; without a socket it does nothing."""
    address = environment.get(SOCKET, "")
    if not address:
        return lambda: None
    name = f"\0{address[1:]}" if address.startswith("@") else address

    def on_progress() -> None:
        # The receiver has gone, or its queue is full: the next datagram counts as well.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(WELL, name)

    return on_progress


LOOK_MS = 500  # interval of looks at the children, and the longest time until a request to end is noticed
AGAIN_FIRST_MS, AGAIN_LONGEST_MS = 500, 30_000  # backoff before a child that ended is started again
SILENT_MS = 30_000
"""Without a look at the children for this long this process is stuck; the same time as a relay's watchdog."""
GRACE_MS = 70_000  # time beyond its drain that a child may take to end: the longest of the client's calls


class Child:
    """One relay process, through all its starts; it ends when its standard input closes, as this process' end does."""

    def __init__(self, relay_id: str, command: Sequence[str], ready_file: Path, rng: Random) -> None:
        self.relay_id = relay_id
        self._command = list(command)
        self._ready_file = ready_file
        self._backoff = Backoff(AGAIN_FIRST_MS, AGAIN_LONGEST_MS, rng)
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at_ms: int | None = None
        self._was_ready = self._listens = False
        self.restarts = 0

    @property
    def ready(self) -> bool:
        """True if the process runs and reports that it is ready."""
        return self._process is not None and self._process.poll() is None and self._ready_file.exists()

    def start(self) -> None:
        """Start the process, and forget the readiness of an earlier process."""
        self._ready_file.unlink(missing_ok=True)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        own = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self._listens = False
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=own)

    def inspect(self, now_ms: int) -> int | None:
        """Start the process again if it has ended and its pause is over.

        Returns the exit status of a process that failed before it was ever ready: a restart would fail in the same way.
        """
        assert self._process is not None, "not started"
        if self.ready:
            self._was_ready = self._listens = True
            self._backoff.reset()
        code = self._process.poll()
        if code is None:
            return None
        if code > 0 and not self._was_ready:
            return code
        if self._again_at_ms is None:
            pause_ms = self._backoff.next_ms()
            self._again_at_ms = now_ms + pause_ms
            log_event(RelayProcessEnded(relay_id=self.relay_id, exit_code=code, again_in_ms=pause_ms))
        elif now_ms >= self._again_at_ms:
            self._start_again(now_ms)
        return None

    def _start_again(self, now_ms: int) -> None:
        try:
            self.start()
        except OSError:  # the machine has no room for a process: the others go on
            self._again_at_ms = now_ms + self._backoff.next_ms()
        else:
            self._again_at_ms = None
            self.restarts += 1

    def hang_up(self) -> None:
        """Ask the process to read its plan files again; one that starts reads them anyway, and SIGHUP could end it."""
        if self._listens and self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)

    def end(self) -> None:
        """Ask the process to drain and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def join(self, timeout_s: float) -> None:
        """Wait until the process ends, and kill it after the timeout."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def as_json(self) -> dict[str, Any]:
        """Return the child's status for readiness requests."""
        pid = None if self._process is None else self._process.pid
        return {"relay_id": self.relay_id, "pid": pid, "ready": self.ready, "restarts": self.restarts}


@dataclass(slots=True, kw_only=True)
class Processes:
    """Runs children until a request to end."""

    children: Sequence[Child]
    drain_ms: int
    address: tuple[str, int] | None
    ready_file: Path | None
    clock: Clock
    report_well: Callable[[], None]
    _ending: bool = False
    _hung_up: bool = False
    _looked_ms: int | None = None

    def end_from_signal(self) -> None:
        """Ask `run` to end, within `LOOK_MS`."""
        self._ending = True

    def hang_up_from_signal(self) -> None:
        """Pass SIGHUP on to all children, within `LOOK_MS`."""
        self._hung_up = True

    def run(self) -> int:
        """Start all children, watch and end them; return 0, or the exit code of a child that could not start."""
        file = None if self.ready_file is None else ReadyFile(self.ready_file)
        pages = health_pages(self._reported_of_life, self._reported_of_readiness)
        server = None if self.address is None else HttpServer(*self.address, pages)
        nothing = threading.Condition()
        try:
            for child in self.children:
                child.start()
            while not self._ending:
                now_ms = self.clock.monotonic_ms()
                for child in self.children:
                    if (code := child.inspect(now_ms)) is not None:
                        return code
                if file is not None:
                    file.show(ready=all(child.ready for child in self.children))
                self._hand_on()
                self._looked_ms = now_ms
                self.report_well()
                with nothing:
                    self.clock.wait(nothing, LOOK_MS)
            return 0
        finally:
            self._looked_ms = None
            if file is not None:
                file.show(ready=False)
            for child in self.children:
                child.end()
            until_ms = self.clock.monotonic_ms() + self.drain_ms + GRACE_MS
            for child in self.children:
                child.join(max(until_ms - self.clock.monotonic_ms(), 0) / 1000)
            if server is not None:
                server.close()

    def _hand_on(self) -> None:
        if self._hung_up:
            self._hung_up = False
            for child in self.children:
                child.hang_up()

    def _reported_of_readiness(self) -> Reported:
        told = [child.as_json() for child in self.children]
        ready = all(one["ready"] for one in told)
        return ready, {"ready": ready, "processes": told}

    def _reported_of_life(self) -> Reported:
        """Report the liveness of this process, which restarts the children: a child that is stuck ends itself."""
        looked_ms = self._looked_ms
        silent_ms = 0 if looked_ms is None else self.clock.monotonic_ms() - looked_ms
        live = silent_ms < SILENT_MS
        return live, {"live": live, "silent_ms": silent_ms, "processes": [child.as_json() for child in self.children]}
