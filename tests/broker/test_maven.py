"""The broker's jars are fetched once, whole or not at all, and what is missing is named.

A script stands in for `mvn` here: the real one would download 243 MB for each claim.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from timewheel.testing import BrokerUnavailable
from timewheel.testing.maven import broker_jars, find_java

if TYPE_CHECKING:
    from pathlib import Path

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


def only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing on the path but `folder`."""
    monkeypatch.setenv("PATH", str(folder))


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


def test_a_missing_mvn_is_named_with_its_package(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(programs, monkeypatch)
    with pytest.raises(BrokerUnavailable, match="apt install maven"):
        broker_jars(VERSION)


def test_a_missing_java_is_named_with_its_package(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(programs, monkeypatch)
    with pytest.raises(BrokerUnavailable, match="apt install openjdk-17-jre-headless"):
        find_java()


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
