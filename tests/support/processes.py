"""Commands of any program, each in a process of its own; signals in these; threads that a test starts."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def ran(
    command: Sequence[Any],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; with ``check``, a status other than 0 raises."""
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=check)


class StartedThreads:
    """The living threads that were started since this was made."""

    def __init__(self, prefix: str = "timewheel") -> None:
        self._prefix = prefix
        self._before = frozenset(threading.enumerate())

    def names(self) -> list[str]:
        """Return the sorted names of those that live."""
        alive = frozenset(threading.enumerate()) - self._before
        return sorted(one.name for one in alive if one.name.startswith(self._prefix))


def _pass(number: int, frame: object) -> None:
    """Do nothing. Children reset a handled signal to its default, but inherit an ignored signal."""
    del number, frame


@contextmanager
def heeding(*numbers: signal.Signals) -> Iterator[None]:
    """Enable these signals in this process and in its new child processes; SIGINT acts like Ctrl-C.

    A shell without job control starts background processes with SIGINT ignored, `nohup` with SIGHUP ignored, and a
    child inherits this from its parent.
    """
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _pass)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
