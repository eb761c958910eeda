"""Follows a page: types its commands in a folder, writes its files there, and checks the output."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.pages import Block, Command, pattern
from tests.support.processes import heeding
from timewheel.testing import eventually

TIMEOUT_S = 90


class Reader:
    """A reader at a terminal."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder = folder
        # Besides these only the system's binaries, not those of the environment that runs the tests.
        path = f"{binaries}{os.pathsep}{os.defpath}"
        self._environment = {**os.environ, "PATH": path, "COLUMNS": "100"}
        self._environment.pop("PYTHONPATH", None)
        self._terminals = 0

    def write(self, block: Block) -> None:
        """Write a file, under the name in the text before it."""
        (self._folder / block.named).write_text(block.content)

    def type(self, command: Command) -> str:
        """Run a line in the first terminal, and check its exit status and its output against the page.

        Returns:
            Its output.
        """
        if command.line.startswith("export "):
            name, _, value = command.line.removeprefix("export ").partition("=")
            self._environment[name] = value
            return ""
        expected = pattern(command.shown)
        with self.started(command.line) as (process, output):
            if command.until_reported:
                eventually(lambda: expected.search(output.read_text()), TIMEOUT_S, message=command.line)
                process.send_signal(signal.SIGINT)
            code = process.wait(TIMEOUT_S)
            text = output.read_text()
        assert code == command.status, f"$ {command.line}\n{text}"
        shown = "\n".join(command.shown)
        assert expected.fullmatch(text.rstrip("\n")), f"$ {command.line}\n{text}\ninstead of\n{shown}"
        return text

    @contextmanager
    def started(self, line: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Start a command as a shell does; yield the process and its output file, and kill the process if it still
        runs.
        """
        self._terminals += 1
        output = self._folder / f"output-{self._terminals}.txt"
        with output.open("wb") as file:
            # exec: a signal reaches the program itself; a terminal would send it to the whole process group.
            words = line if "|" in line else f"exec {line}"
            with heeding(signal.SIGINT):  # as in the reader's terminal
                process = subprocess.Popen(
                    ["bash", "-c", words],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            try:
                yield process, output
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait(TIMEOUT_S)
