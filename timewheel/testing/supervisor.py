"""The program between an owner and its child, which ensures that the child never outlives the owner.

It is run as a script (`python -I -S supervisor.py FD OWNER_PID`), imports the standard library only, and is driven over
a socket whose other end only the owner has. Lines of JSON go both ways:

    owner: {"do": "spawn", "argv": [...], "log": PATH, "cwd": PATH}     supervisor: {"spawned": PID} or {"failed": WHY}
    owner: {"do": "signal", "number": 15}                               supervisor: {"exited": CODE}, whenever it ends
    owner: {"do": "remove", "path": PATH}                               a folder to remove when the owner is gone

When the owner ends, by return, exception or `kill -9`, the kernel closes its end of the socket: the supervisor reads
the end of file, kills the child's process group, removes the folders and ends. Three further cases are handled:

- a fork of the owner holds a copy of the socket: the supervisor is the owner's own child, so it also checks its
  parent once a second, and the parent changes when the owner is gone;
- the supervisor itself is killed: on Linux the child has asked the kernel to be killed with it (`PR_SET_PDEATHSIG`;
  bound to the thread that forks, so the owner cannot use it and this single-threaded program can);
- a Ctrl-C or hang-up in the terminal: supervisor and child each have a session of their own.

The supervisor is the child's parent and signals it only before it is reaped: a reused process id is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER_CHECK_S = 1.0
REMOVE_TRIES = 20  # a killed child can hold its files for a moment; 20 tries, 0.1 s apart

_PR_SET_PDEATHSIG = 1


class Supervisor:
    """A loop that runs one child at a time, and removes folders at the end."""

    def __init__(self, channel: socket.socket, owner_pid: int) -> None:
        self._channel = channel
        self._owner_pid = owner_pid
        self._child: subprocess.Popen[bytes] | None = None
        self._folders: list[str] = []
        self._received = b""
        self._die_with_me = _parent_death_signal()

    def run(self, wake_fd: int) -> None:
        """Serve until the owner is gone, then clean up."""
        try:
            talk_fd = self._channel.fileno()
            while os.getppid() == self._owner_pid:
                ready, _, _ = select.select([talk_fd, wake_fd], [], [], OWNER_CHECK_S)
                if wake_fd in ready:
                    os.read(wake_fd, 4096)
                self._reap()
                if talk_fd in ready and not self._serve():
                    break
        finally:
            self._clean_up()

    def _serve(self) -> bool:
        """Carry out the owner's requests; False when the owner has closed the socket."""
        chunk = self._channel.recv(65_536)
        if not chunk:
            return False
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "spawn":
                self._spawn(request)
            elif request["do"] == "signal":
                if self._child is not None and self._child.poll() is None:
                    os.killpg(self._child.pid, request["number"])
            elif request["do"] == "remove":
                self._folders.append(request["path"])
        return True

    def _spawn(self, request: dict[str, Any]) -> None:
        if self._child is not None:
            self._say({"failed": "a child is running already"})
            return
        try:
            with Path(request["log"]).open("ab") as log:
                self._child = subprocess.Popen(
                    request["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=request["cwd"],
                    start_new_session=True,
                    preexec_fn=self._die_with_me,  # noqa: PLW1509 - this program has one thread
                )
        except OSError as error:
            self._say({"failed": str(error)})
        else:
            self._say({"spawned": self._child.pid})

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            code = self._child.returncode
            self._child = None
            self._say({"exited": code})

    def _say(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the owner is gone; the next read returns the end of file
            self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def _clean_up(self) -> None:
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        for folder in self._folders:
            for _ in range(REMOVE_TRIES):
                shutil.rmtree(folder, ignore_errors=True)
                if not Path(folder).exists():
                    break
                time.sleep(0.1)


def _parent_death_signal() -> Callable[[], None] | None:
    """Return the function that the child runs between fork and exec, resolved beforehand; None: the kernel has none."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return die_with_parent


def _wake(number: int, frame: object) -> None:
    """Do nothing: the purpose is the byte that the interpreter writes to the wake-up pipe."""
    del number, frame


def _leave(number: int, frame: object) -> None:
    del number, frame
    sys.exit(0)


def main(fd: int, owner_pid: int) -> None:
    """Serve the owner that holds the other end of socket `fd`."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    for asked_to_end in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(asked_to_end, _leave)
    with socket.socket(fileno=fd) as channel:
        Supervisor(channel, owner_pid).run(wake_read)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
