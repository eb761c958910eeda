"""A user's type checker sees the types of the installed wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import package_folders
from tests.support.processes import ran


def checked(folder: Path, program: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "user.py").write_text(program)
    return ran([sys.executable, "-m", *command, "user.py"], cwd=folder, timeout=120)


def mypy(folder: Path, python: Path, program: str) -> subprocess.CompletedProcess[str]:
    return checked(folder, program, "mypy", "--strict", "--python-executable", str(python))


def test_every_installed_package_is_typed(clean_python: Path, tmp_path: Path) -> None:
    # With follow_imports left alone, an import of something untyped is an error of its own in strict mode.
    done = mypy(tmp_path, clean_python, "".join(f"import {package}\n" for package in sorted(package_folders())))

    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")


WRONG_USE = """
import timewheel
number: int = timewheel.__version__  # wrong
"""
# Faults that no test of its own would run into before an operator needs the event.
EMITTED = """
from timewheel import events

events.RelaySessionFailed(topic="t", reason="r")
events.RelaySessionFailled(topic="t", reason="r")  # wrong
events.RelaySessionFailed(topic="t", why="r")  # wrong
events.RelaySessionFailed(topic=1, reason="r")  # wrong
events.RelaySessionFailed("t", "r")  # wrong
events.RelaySessionFailed(topic="t", reason="r").topic = "u"  # wrong
events.TimerFarTooEarly(topic="t", early_ms=1, remedy="r", count=2)
"""
# A wrapper of the user's own is among the right ones.
SENT = """
from datetime import timedelta
from typing import Unpack
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, SendOptions, Timer, TimerCallback

def remind(producer: DelayedProducer, **options: Unpack[SendOptions]) -> Timer:
    return producer.send(b"", **options)

def use(producer: DelayedProducer, twin: AsyncDelayedProducer, callback: TimerCallback) -> None:
    remind(producer, deliver_after=timedelta(days=1), timer_id=None)
    producer.send_async(b"", callback, deliver_at=1, properties={"a": "b"})
    producer.send(b"", deliver_afer=timedelta(days=1))  # wrong
    producer.send(b"", deliver_after=60)  # wrong
    producer.send_async(b"", callback, timer_id=7)  # wrong
    twin.send(b"", properties={"a": 1})  # wrong
    remind(producer, delay=1)  # wrong
"""


@pytest.mark.parametrize("program", [WRONG_USE, EMITTED, SENT], ids=["a type", "an event", "an option of a send"])
def test_a_wrong_use_of_an_installed_type_is_found(clean_python: Path, tmp_path: Path, program: str) -> None:
    done = mypy(tmp_path, clean_python, program)
    wrong = {number for number, line in enumerate(program.splitlines(), 1) if line.endswith("  # wrong")}

    assert {int(line) for line in re.findall(r"^user\.py:(\d+): error:", done.stdout, re.MULTILINE)} == wrong, (
        done.stdout
    )


# What a user writes first: their own pulsar.Client handed to something of ours. The second client must be refused, or
# the check would pass on a Protocol that takes anything.
HANDED_IN = """
import pulsar
from timewheel.client.surface import ClientLike

def use(client: ClientLike) -> None: ...

class NoClient: ...

use(pulsar.Client("pulsar://localhost:6650"))
use(NoClient())
"""


def test_pyright_takes_the_users_own_client_and_refuses_another(clean_python: Path, tmp_path: Path) -> None:
    done = checked(tmp_path, HANDED_IN, "pyright", "--outputjson", "--pythonpath", str(clean_python))
    found = json.loads(done.stdout)["generalDiagnostics"]
    last_line = len(HANDED_IN.splitlines()) - 1

    assert [(error["rule"], error["range"]["start"]["line"]) for error in found] == [("reportArgumentType", last_line)]
