"""A child never outlives its owner, in whatever way the owner ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.signals import heeding
from timewheel.testing import BrokerFailed, eventually
from timewheel.testing.process import OwnedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLEEPER = ["sleep", "600"]

OWNER = """
import ctypes, json, os, pathlib, sys
from timewheel.testing.process import OwnedProcess

folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
owned = OwnedProcess(log=folder / "log")
owned.remove_at_end(folder)
pid = owned.start(["sleep", "600"], cwd=folder)
forked = 0
if how == "python fork":
    forked = os.fork()
elif how == "C fork":  # no hook of Python runs, so the copy of the socket stays open
    forked = ctypes.CDLL(None).fork()
if how.endswith("fork") and forked == 0:
    ctypes.CDLL(None).sleep(600)
    os._exit(0)
supervisor = owned._supervisor.pid
print(json.dumps({"child": pid, "supervisor": supervisor, "forked": forked}), flush=True)
if how == "return":
    sys.exit(0)
if how == "raise":
    raise RuntimeError("boom")
if how == "exec":
    os.execvp("sleep", ["sleep", "600"])
ctypes.CDLL(None).sleep(600)
"""


def is_gone(pid: int) -> bool:
    """No such process, or one that has ended and waits for its parent to notice."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Owner:
    """A Python process that owns a child and a folder."""

    def __init__(self, folder: Path, how: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        self.pids: dict[str, int] = json.loads(self.process.stdout.readline())

    def everything_of_it_is_gone(self) -> bool:
        assert is_gone(self.pids["child"]), "the child lives"
        assert is_gone(self.pids["supervisor"]), "the supervisor lives"
        assert not self.folder.exists(), "the folder is still there"
        return True

    def clean_up(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.pids["forked"]:
            os.kill(self.pids["forked"], signal.SIGKILL)


@pytest.fixture
def make_owner(tmp_path: Path) -> Iterator[Any]:
    owners: list[Owner] = []

    def make(how: str) -> Owner:
        owners.append(Owner(tmp_path / "owned", how))
        return owners[-1]

    yield make
    for owner in owners:
        owner.clean_up()


@pytest.mark.parametrize("how", ["return", "raise", "exec"])
def test_child_and_folder_go_when_the_owner_ends_by_itself(make_owner: Any, how: str) -> None:
    owner = make_owner(how)
    assert eventually(owner.everything_of_it_is_gone, 60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_child_and_folder_go_when_the_owner_is_killed(make_owner: Any, number: signal.Signals) -> None:
    with heeding(signal.SIGINT, signal.SIGHUP):
        owner = make_owner("sleep")
    assert not is_gone(owner.pids["child"])
    owner.process.send_signal(number)
    assert eventually(owner.everything_of_it_is_gone, 60)


@pytest.mark.parametrize("how", ["python fork", "C fork"])
def test_a_fork_of_the_owner_does_not_keep_the_child_alive(make_owner: Any, how: str) -> None:
    owner = make_owner(how)
    owner.process.kill()
    assert eventually(owner.everything_of_it_is_gone, 60)
    assert not is_gone(owner.pids["forked"]), "the fork has ended, so this run proved nothing"


def test_the_child_goes_when_the_supervisor_itself_is_killed(make_owner: Any) -> None:
    owner = make_owner("sleep")
    os.kill(owner.pids["supervisor"], signal.SIGKILL)
    assert eventually(lambda: is_gone(owner.pids["child"]), 60)


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[OwnedProcess]:
    with OwnedProcess(log=tmp_path / "log") as process:
        yield process


def test_the_end_of_a_thread_is_not_the_end_of_the_owner(tmp_path: Path) -> None:
    made: list[OwnedProcess] = []

    def make() -> None:
        made.append(OwnedProcess(log=tmp_path / "log"))
        made[0].start(SLEEPER, cwd=tmp_path)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with made[0] as process:
        with pytest.raises(TimeoutError):
            process.wait(2.5)  # the supervisor has looked at its parent twice by then
        assert process.pid is not None


def test_a_child_can_be_killed_and_started_again(owned: OwnedProcess, tmp_path: Path) -> None:
    first = owned.start(SLEEPER, cwd=tmp_path)
    with pytest.raises(RuntimeError, match="already running"):
        owned.start(SLEEPER, cwd=tmp_path)
    owned.kill()
    assert owned.pid is None
    assert owned.exit_code == -signal.SIGKILL
    assert is_gone(first)
    assert owned.start(SLEEPER, cwd=tmp_path) != first
    assert owned.exit_code is None


def test_exit_code_and_log_are_there_when_the_child_ends(owned: OwnedProcess, tmp_path: Path) -> None:
    owned.start(["sh", "-c", "echo one; echo two >&2; exit 7"], cwd=tmp_path)
    assert owned.wait(10) == 7
    assert owned.log_tail() == "one\ntwo"
    assert owned.log_tail(1) == "two"


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_frozen_child_can_be_ended(owned: OwnedProcess, tmp_path: Path, how: str) -> None:
    pid = owned.start(SLEEPER, cwd=tmp_path)
    owned.send_signal(signal.SIGSTOP)
    assert eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    if how == "terminate":
        owned.terminate(10)
    else:
        owned.kill()
    assert is_gone(pid)


def test_terminate_kills_what_does_not_listen(owned: OwnedProcess, tmp_path: Path) -> None:
    owned.start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], cwd=tmp_path)
    assert eventually(lambda: "ready" in owned.log_tail())
    owned.terminate(0.5)
    assert owned.exit_code == -signal.SIGKILL


def test_what_cannot_be_started_is_said(owned: OwnedProcess, tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="no-such-program"):
        owned.start(["no-such-program"], cwd=tmp_path)


def test_signals_are_sent_while_another_thread_waits(owned: OwnedProcess, tmp_path: Path) -> None:
    owned.start(SLEEPER, cwd=tmp_path)
    codes: list[int] = []
    waiter = threading.Thread(target=lambda: codes.append(owned.wait(30)))
    waiter.start()
    owned.send_signal(signal.SIGTERM)
    waiter.join(10)
    assert codes == [-signal.SIGTERM]


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    owned = OwnedProcess(log=tmp_path / "log")
    owned.remove_at_end(folder)
    pid = owned.start(SLEEPER, cwd=folder)
    owned.close()
    assert is_gone(pid)
    assert not folder.exists()
    owned.close()
