"""A child never outlives its owner, however that ends; the broker's jars are fetched once, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import heeding
from timewheel.testing import BrokerFailed, BrokerUnavailable, eventually
from timewheel.testing.maven import broker_jars, find_java
from timewheel.testing.process import OwnedProcess

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


# A script stands in for `mvn`: the real one would download 243 MB for each claim.
VERSION = "1.2.3"

GOOD_MVN = """#!/bin/sh
case " $* " in *" --strict-checksums "*) ;; *) echo "[ERROR] a wrong checksum is only warned of"; exit 1;; esac
echo run >> "$COUNT_FILE"
for word in "$@"; do case "$word" in -DoutputDirectory=*) lib="${word#*=}";; esac; done
echo "[INFO] Downloaded from central: https://repo/x/pulsar-broker-1.2.3.jar (1.5 MB at 3 MB/s)"
sleep 1
mkdir -p "$lib" && touch "$lib/pulsar-broker-1.2.3.jar"
"""

BAD_MVN = """#!/bin/sh
echo "[INFO] Scanning for projects..."
echo "[ERROR] Could not find artifact org.apache.pulsar:pulsar:pom:1.2.3"
exit 1
"""

FAKE_JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that comes first on the path, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "count"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_processes_that_come_together_fetch_once(programs: Path, tmp_path: Path) -> None:
    put(programs, "mvn", GOOD_MVN)
    program = f"from timewheel.testing.maven import broker_jars; print(broker_jars({VERSION!r}))"
    together = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=60)[0].strip() for process in together}
    lib = tmp_path / "cache" / "timewheel" / f"pulsar-{VERSION}" / "lib"
    assert answers == {str(lib)}
    assert (tmp_path / "count").read_text() == "run\n"


def test_progress_is_told_while_fetching_and_not_when_all_is_there(programs: Path) -> None:
    put(programs, "mvn", GOOD_MVN)
    first: list[str] = []
    second: list[str] = []
    broker_jars(VERSION, progress=first.append)
    broker_jars(VERSION, progress=second.append)
    assert "243 MB" in first[0]
    assert VERSION in first[-1]
    assert second == []


def test_what_a_killed_fetch_left_is_cleared(programs: Path, tmp_path: Path) -> None:
    put(programs, "mvn", GOOD_MVN)
    stale = tmp_path / "cache" / "timewheel" / f"pulsar-{VERSION}.partial-dead"
    stale.mkdir(parents=True)
    broker_jars(VERSION)
    assert not stale.exists()


@pytest.mark.parametrize("part", ["timewheel", f"timewheel/pulsar-{VERSION}", f"timewheel/pulsar-{VERSION}/lib"])
def test_jars_that_anybody_may_exchange_are_refused(programs: Path, tmp_path: Path, part: str) -> None:
    put(programs, "mvn", GOOD_MVN)
    broker_jars(VERSION)
    (tmp_path / "cache" / part).chmod(0o777)
    with pytest.raises(BrokerUnavailable, match="chmod o-w"):
        broker_jars(VERSION)


def test_a_failed_download_says_why_and_leaves_nothing(programs: Path, tmp_path: Path) -> None:
    put(programs, "mvn", BAD_MVN)
    with pytest.raises(BrokerUnavailable, match=r"Could not find artifact org.apache.pulsar:pulsar:pom:1.2.3"):
        broker_jars(VERSION)
    assert [path.name for path in (tmp_path / "cache" / "timewheel").iterdir()] == [f"pulsar-{VERSION}.lock"]


@pytest.mark.parametrize(
    ("fetch", "package"), [(partial(broker_jars, VERSION), "maven"), (find_java, "openjdk-17-jre-headless")]
)
def test_a_missing_program_is_named_with_its_package(
    programs: Path, monkeypatch: pytest.MonkeyPatch, fetch: Callable[[], object], package: str
) -> None:
    monkeypatch.setenv("PATH", str(programs))  # and nothing else
    with pytest.raises(BrokerUnavailable, match=f"apt install {package}"):
        fetch()


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_a_java_that_is_new_enough_is_found(programs: Path, version: str, major: int) -> None:
    put(programs, "java", FAKE_JAVA.format(version=version))
    assert find_java().major == major


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_an_old_java_is_refused_with_what_it_says_of_itself(programs: Path, version: str) -> None:
    put(programs, "java", FAKE_JAVA.format(version=version))
    with pytest.raises(BrokerUnavailable, match=version):
        find_java()


@pytest.mark.parametrize("version", ["", "latest", "../4.0.7", "4.0.7</version>"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="not a Pulsar version"):
        broker_jars(version)
