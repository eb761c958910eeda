"""A user's type checker sees the types of the installed wheel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.checkout import package_folders
from tests.support.processes import ran


def test_every_installed_package_is_typed(clean_python: Path, tmp_path: Path) -> None:
    # With follow_imports left alone, an import of something untyped is an error of its own in strict mode.
    (tmp_path / "user.py").write_text("".join(f"import {package}\n" for package in sorted(package_folders())))
    done = ran(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean_python), "user.py"],
        cwd=tmp_path,
        timeout=120,
    )

    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")


def test_a_wrong_use_of_an_installed_type_is_found(clean_python: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("import timewheel\nnumber: int = timewheel.__version__\n")
    done = ran(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean_python), "user.py"],
        cwd=tmp_path,
        timeout=120,
    )

    assert done.returncode == 1
    assert 'expression has type "str", variable has type "int"' in done.stdout


# The first is right; each of the others has a fault that no test of its own would run into before an operator needs it.
EMITTED = """
from timewheel import events

events.RelaySessionFailed(topic="t", reason="r")
events.RelaySessionFailled(topic="t", reason="r")
events.RelaySessionFailed(topic="t", why="r")
events.RelaySessionFailed(topic=1, reason="r")
events.RelaySessionFailed("t", "r")
events.RelaySessionFailed(topic="t", reason="r").topic = "u"
events.TimerFarTooEarly(topic="t", early_ms=1, remedy="r", count=2)
"""


def test_a_misspelt_event_or_fact_is_found(clean_python: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(EMITTED)
    done = ran(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean_python), "user.py"],
        cwd=tmp_path,
        timeout=120,
    )

    assert {int(line.split(":")[1]) for line in done.stdout.splitlines()[:-1]} == {5, 6, 7, 8, 9}, done.stdout


# The first three are right, a wrapper of the user's own among them; each of the others must be found.
SENT = """
from datetime import timedelta
from typing import Unpack
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, SendOptions, Timer, TimerCallback

def remind(producer: DelayedProducer, **options: Unpack[SendOptions]) -> Timer:
    return producer.send(b"", **options)

def use(producer: DelayedProducer, twin: AsyncDelayedProducer, callback: TimerCallback) -> None:
    remind(producer, deliver_after=timedelta(days=1), timer_id=None)
    producer.send_async(b"", callback, deliver_at=1, properties={"a": "b"})
    producer.send(b"", deliver_afer=timedelta(days=1))
    producer.send(b"", deliver_after=60)
    producer.send_async(b"", callback, timer_id=7)
    twin.send(b"", properties={"a": 1})
    remind(producer, delay=1)
"""


def test_a_misspelt_or_mistyped_option_of_a_send_is_found(clean_python: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SENT)
    done = ran(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean_python), "user.py"],
        cwd=tmp_path,
        timeout=120,
    )

    assert {int(line.split(":")[1]) for line in done.stdout.splitlines()[:-1]} == {12, 13, 14, 15, 16}, done.stdout


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
    (tmp_path / "user.py").write_text(HANDED_IN)
    done = ran(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(clean_python), "user.py"],
        cwd=tmp_path,
        timeout=120,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    last_line = len(HANDED_IN.splitlines()) - 1

    assert [(error["rule"], error["range"]["start"]["line"]) for error in found] == [("reportArgumentType", last_line)]
