"""Plays handlers in processes that are killed at named points, and counts their effects.

All waits have a deadline.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.checkout import ROOT
from tests.support.inbox_worker import GO

DEADLINE_S = 120.0  # deadline of a line: long enough for a busy machine
WORKER = ROOT / "tests" / "support" / "inbox_worker.py"


class Play(NamedTuple):
    """The instructions for a child; see `tests.support.inbox_worker.Player`."""

    kind: str
    address: str
    keys: Sequence[str]
    effects: Path
    owner: str
    now_ms: int = 1_000_000

    def told(self) -> str:
        return json.dumps({**self._asdict(), "effects": str(self.effects), "keys": list(self.keys)})


class Crew:
    """A process that forks a child for each play, one play at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._read = b""
        self._child: int | None = None
        assert "ready" in self._line()

    def begin(self, play: Play) -> None:
        """Start a child."""
        self._report(play.told().encode() + b"\n")
        self._child = self._line()["child"]

    def next(self) -> tuple[str, str]:
        """Return the next point that the child reports, and the key; ``ended`` and the exit code after its end."""
        line = self._line()
        if "ended" in line:
            self._child = None
            return "ended", str(line["ended"])
        return line["at"], line["key"]

    def go(self, points: int = 1) -> None:
        """Let a waiting child continue, past this number of points."""
        self._report(GO * points)

    def kill(self) -> list[tuple[str, str]]:
        """Kill the child with -9 before its end; return its reports that were not read yet."""
        assert self._child is not None
        os.kill(self._child, signal.SIGKILL)
        said = []
        while (found := self.next())[0] != "ended":
            said.append(found)
        assert found[1] == str(-signal.SIGKILL)
        return said

    def read(self, points: int) -> list[tuple[str, str]]:
        """Return the child's reports, until it has passed this number of points."""
        said = []
        while points:
            said.append(self.next())
            assert said[-1][0] != "ended", "the child ended too early"
            points -= said[-1][0] != "acknowledged"
        return said

    def until(self, point: str) -> None:
        """Let the child continue until it waits at this point."""
        while (at := self.next()[0]) != point:
            assert at != "ended", f"the child never came to {point}"
            if at != "acknowledged":
                self.go()

    def finish(self) -> list[tuple[str, str]]:
        """Let a child that waits, or has just started, continue to its end; return its reports."""
        said = []
        while (found := self.next())[0] != "ended":
            said.append(found)
            if found[0] != "acknowledged":
                self.go()
        assert found[1] == "0", "the child failed: its error is on the standard error of this run"
        return said

    def _report(self, lines: bytes) -> None:
        self._in.write(lines)
        self._in.flush()

    def _line(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self._read:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._out], [], [], left_s)[0]:
                raise TimeoutError(f"the worker said nothing within {DEADLINE_S} s")
            chunk = os.read(self._out.fileno(), 65_536)
            if not chunk:
                raise EOFError("the worker has ended")
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def crew() -> Iterator[Crew]:
    """Run a crew for this block."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield Crew(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class Verdict(NamedTuple):
    """The count of effects.

    Attributes:
        lost: Keys whose effect never happened.
    """

    lost: frozenset[str]
    extra: int


def verdict(effects: Sequence[str], keys: Sequence[str]) -> Verdict:
    """Judge the effects of messages that were all acknowledged."""
    counted = Counter(effects)
    assert set(counted) <= set(keys), "an effect of no message"
    return Verdict(frozenset(keys) - frozenset(counted), sum(number - 1 for number in counted.values()))
