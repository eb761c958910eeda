"""A child process that never outlives its owner, even if the owner is killed with -9.

This is the owner's side; `timewheel.testing.supervisor` describes the mechanism.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from timewheel.testing import supervisor
from timewheel.testing.errors import BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

WAIT_SLICE_S = 0.1
"""Two threads may wait for the same message, and only one of them reads it; the other checks again after this long."""
SPAWN_TIMEOUT_S = 30.0  # Time-out of a fork and an exec, on a busy machine
PAUSE_TIMEOUT_S = 30.0
PAUSE_POLL_S = 0.001
GOODBYE_TIMEOUT_S = 30.0  # Time-out until the supervisor has killed the child and removed the folders


def exit_words(code: int | None) -> str:
    """Describe an exit code: a negative code is the signal that killed the process."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    names = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"was killed by signal {-code}{names.get(-code, '')}"


class OwnedProcess:
    """A slot for one child process, with the folders that must be removed with it.

    The child may be started, killed and started again; the folders stay until `close`, or until this process ends in
    any way. Safe to use from several threads; refused in a fork of the owner.
    """

    def __init__(self, *, log: Path) -> None:
        """Start the supervisor. The child's output is appended to `log`."""
        self.log = log
        self._lock = threading.RLock()
        self._owner_pid = os.getpid()
        self._child_pid: int | None = None
        self._spawned_pid: int | None = None
        self._exit_code: int | None = None
        self._received = b""
        _guard_forks()
        ours, theirs = socket.socketpair()
        with theirs:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno()), str(self._owner_pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,
            )
        self._channel = ours
        _open_channels.add(ours)

    @property
    def pid(self) -> int | None:
        """The child's process id; None while no child runs."""
        with self._lock:
            if self._child_pid is not None:
                self._listen(0.0)
            return self._child_pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last child (negative: by that signal); None while a child runs or before the first start."""
        with self._lock:
            return self._exit_code if self.pid is None else None

    def remove_at_end(self, folder: Path) -> None:
        """Remove `folder` when this object is closed or its owner is gone."""
        self._ask({"do": "remove", "path": str(folder.resolve())})

    def start(self, argv: Sequence[str], *, cwd: Path) -> int:
        """Start the child in a session of its own and return its process id."""
        with self._lock:
            if self.pid is not None:
                raise RuntimeError(f"already running as {self._child_pid}")
            self._forget_last_child()
            self._ask({"do": "spawn", "argv": list(argv), "log": str(self.log), "cwd": str(cwd)})
            deadline = time.monotonic() + SPAWN_TIMEOUT_S
            while self._spawned_pid is None:  # not the current pid: the child may have ended already
                self._listen(deadline - time.monotonic())
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"the supervisor did not start {argv[0]} in {SPAWN_TIMEOUT_S} s")
            return self._spawned_pid

    def send_signal(self, number: int) -> None:
        """Send a signal to the child's process group; no effect if no child runs."""
        with self._lock:
            if self.pid is not None:
                self._ask({"do": "signal", "number": int(number)})

    def pause(self, timeout_s: float = PAUSE_TIMEOUT_S) -> None:
        """Stop the child (SIGSTOP) and wait until its last thread has stopped: on a busy machine that takes a while.

        Raises TimeoutError if a thread still runs after `timeout_s` seconds.
        """
        self.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + timeout_s
        while (pid := self.pid) is not None and not _is_stopped(pid):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"process {pid} did not stop within {timeout_s} s")
            time.sleep(PAUSE_POLL_S)  # only the parent gets an event for it, and that is the supervisor

    def wait(self, timeout_s: float) -> int:
        """Wait for the child's end and return its exit code (negative: by that signal); TimeoutError if it lives on."""
        deadline = time.monotonic() + timeout_s
        while self.pid is not None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"process {self._child_pid} did not end within {timeout_s} s")
            # Not under the lock: other threads must be able to send signals during the wait.
            self._await_news(min(WAIT_SLICE_S, max(0.0, deadline - time.monotonic())))
        with self._lock:
            if self._exit_code is None:
                raise RuntimeError("no child was started")
            return self._exit_code

    def kill(self, timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Kill the child with -9 and wait until it is gone; works on a stopped child too."""
        if self.pid is not None:
            self.send_signal(signal.SIGKILL)
            self.wait(timeout_s)

    def terminate(self, timeout_s: float) -> None:
        """Ask the child to end; kill it if it still runs after `timeout_s` seconds."""
        if self.pid is None:
            return
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a stopped process acts on SIGTERM only once it is continued
        try:
            self.wait(timeout_s)
        except TimeoutError:
            self.kill()

    def close(self) -> None:
        """Kill the child, remove the folders, end the supervisor; returns when all is done. May be called twice."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the owner: its copy of the socket was closed at the fork
        with self._lock:
            self._channel.close()
            if self._child_pid is not None:
                self._child_pid, self._exit_code = None, -signal.SIGKILL
            try:
                self._supervisor.wait(GOODBYE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()  # its child goes with it (PR_SET_PDEATHSIG)
                self._supervisor.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the child's output."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _forget_last_child(self) -> None:
        self._exit_code = self._spawned_pid = None

    def _ask(self, request: dict[str, Any]) -> None:
        if os.getpid() != self._owner_pid:
            raise RuntimeError("this process is a fork of the owner; only the owner may drive the child")
        with self._lock:
            self._channel.sendall(json.dumps(request).encode() + b"\n")

    def _await_news(self, timeout_s: float) -> bool:
        """Wait for a message from the supervisor, or for its end; False if neither came within `timeout_s`."""
        try:
            return bool(select.select([self._channel], [], [], max(0.0, timeout_s))[0])
        except (OSError, ValueError):  # closed by another thread
            return True

    def _listen(self, timeout_s: float) -> None:
        """Read the supervisor's messages, waiting at most `timeout_s` for them."""
        if not self._await_news(timeout_s):
            return
        try:
            chunk = self._channel.recv(65_536)
        except OSError:
            chunk = b""
        if not chunk:  # closed, or the supervisor was killed: the child is gone in either case
            if self._child_pid is not None:
                self._child_pid, self._exit_code = None, -signal.SIGKILL
            return
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "spawned" in answer:
                self._child_pid = self._spawned_pid = answer["spawned"]
            elif "exited" in answer:
                self._child_pid, self._exit_code = None, answer["exited"]
            elif "failed" in answer:
                raise BrokerFailed(answer["failed"])


_open_channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _is_stopped(pid: int) -> bool:
    try:
        return all(_is_thread_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return True  # the process has ended, or this system has no /proc to ask


def _is_thread_stopped(task: Path) -> bool:
    try:
        # "pid (name) state ...", and a name may hold spaces and brackets.
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except (FileNotFoundError, ProcessLookupError):
        return True  # that thread has ended


@cache
def _guard_forks() -> None:
    """Make forks drop their copies of the sockets: a copy would hide the owner's end for up to a second."""
    os.register_at_fork(after_in_child=_close_copies)


def _close_copies() -> None:
    for channel in list(_open_channels):
        channel.close()
