"""Programs in Java and Go that send every odd message that their client can make, each between two good messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.other_languages import Line, java_command, lines_of
from tests.support.processes import ran
from timewheel.testing import Broker

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 1_200
"""The client has many dependencies, which are compiled once on each machine."""


class Target(NamedTuple):
    """A topic that a program sends to.

    Args:
        deliver_at_ms: The time for delivery by the broker; 0: not delayed.
    """

    topic: str
    deliver_at_ms: int
    is_timer: bool
    without: str


class OddSender(NamedTuple):
    """The program of a language.

    Args:
        built: Builds the program in a folder and returns its command, so that the command only has to send.
    """

    language: str
    built: Callable[[Path], Sequence[str]]

    def send(self, command: Sequence[str], broker: Broker, due_ms: int, targets: Iterable[Target]) -> list[Line]:
        """Return its report on each message: topic, name, and the error, if its client or the broker refused the
        message.
        """
        asked = (
            str(one)
            for to in targets
            for one in (to.topic, to.deliver_at_ms, "timer" if to.is_timer else "plain", to.without)
        )
        return lines_of([*command, broker.service_url, str(due_ms), *asked])


def find_go() -> str | None:
    """Find Go's tool, on the path or in the folder of its own installer."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def _java(_: Path) -> Sequence[str]:
    return [*java_command(), str(HERE / "OddMessages.java")]


def _go(folder: Path) -> Sequence[str]:
    go = find_go()
    assert go is not None
    program = folder / "odd-messages"
    built = ran([go, "build", "-o", str(program), "."], cwd=HERE / "odd_messages_go", timeout=BUILD_TIMEOUT_S)
    assert built.returncode == 0, built.stderr
    return [str(program)]


SENDERS = {"java": OddSender("Java", _java), "go": OddSender("Go", _go)}
