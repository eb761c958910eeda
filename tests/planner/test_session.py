"""A local session's Java reads an archive of its classes, and no state of the archive makes a session fail or talk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from timewheel.spark_planner.session import ClassArchive
from timewheel.testing import eventually

NAME = "spark-1"
HEADER = b"\xba\xa8"


@pytest.fixture
def archive() -> Iterator[ClassArchive]:
    found = ClassArchive()
    yield found
    found.release()


def of_a_later_run(folder: Path) -> str:
    later = ClassArchive()
    try:
        return later.options(folder, NAME)
    finally:
        later.release()


def written(folder: Path, content: bytes = HEADER) -> Path:
    """Write what Java would at its end."""
    path = folder / f"{NAME}.new"
    path.write_bytes(content)
    return path


def test_the_first_session_writes_the_archive_and_later_ones_read_it(archive: ClassArchive, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert archive.options(folder, NAME) == f'"-XX:ArchiveClassesAtExit={folder / NAME}.new"'
    assert len(archive.inherited) == 1

    archive.release(has_run=True)
    written(folder)

    reads = f'"-XX:SharedArchiveFile={folder / NAME}.{len(HEADER)}.jsa" -XX:+VerifySharedSpaces'
    assert [of_a_later_run(folder) for _ in range(2)] == [reads, reads]


def test_while_java_still_writes_other_sessions_do_without(archive: ClassArchive, tmp_path: Path) -> None:
    archive.options(tmp_path, NAME)
    (inherited,) = archive.inherited
    of_java = os.dup(inherited)
    archive.release(has_run=True)
    written(tmp_path)

    assert of_a_later_run(tmp_path) == ""
    os.close(of_java)
    assert "SharedArchiveFile" in of_a_later_run(tmp_path)


def test_what_an_early_end_left_is_written_again(archive: ClassArchive, tmp_path: Path) -> None:
    """Before a job has run few classes are loaded; and Java may be killed while it writes."""
    archive.options(tmp_path, NAME)
    archive.release()
    written(tmp_path)
    assert "ArchiveClassesAtExit" in of_a_later_run(tmp_path)

    archive.options(tmp_path, NAME)
    archive.release(has_run=True)
    written(tmp_path, bytes(4_096))
    assert "ArchiveClassesAtExit" in of_a_later_run(tmp_path)


def test_a_lost_archive_is_written_again_and_one_that_java_cannot_write_is_not(
    archive: ClassArchive, tmp_path: Path
) -> None:
    archive.options(tmp_path, NAME)
    archive.release(has_run=True)
    assert of_a_later_run(tmp_path) == ""  # a Java that wrote nothing will not the next time

    written(tmp_path)
    of_a_later_run(tmp_path)
    (ready,) = tmp_path.glob("*.jsa")
    ready.write_bytes(HEADER[:1])
    assert "ArchiveClassesAtExit" in of_a_later_run(tmp_path)


def test_a_folder_that_cannot_be_used_is_not(archive: ClassArchive, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert archive.options(tmp_path / "file", NAME) == ""
    assert archive.options(tmp_path / "a:b", NAME) == ""  # Java would take it for two archives


def test_an_archive_on_a_read_only_disk_is_read(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.options(tmp_path, NAME)
    archive.release(has_run=True)
    written(tmp_path)
    of_a_later_run(tmp_path)

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)  # as root may write wherever the disk lets it
    assert "SharedArchiveFile" in of_a_later_run(tmp_path)


def test_archives_of_former_versions_are_removed(archive: ClassArchive, tmp_path: Path) -> None:
    former, other = tmp_path / "spark-0.7.jsa", tmp_path / "pulsar-4.0.7.lock"
    for path in (former, other):
        path.touch()
        os.utime(path, (0, 0))
    archive.options(tmp_path, NAME)
    archive.release(has_run=True)
    written(tmp_path)
    of_a_later_run(tmp_path)
    assert (former.exists(), other.exists()) == (False, True)


SESSION = """
from pathlib import Path
from pyspark import SparkContext
from timewheel.spark_planner.session import local_session, no_report, told
spark = local_session(cores=1)
with told(spark, "counting", no_report, one_job=True):
    assert spark.range(10).count() == 10
print("/timewheel/spark-" in Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
spark.stop()
"""


@pytest.mark.proof
def test_java_takes_the_archive_and_a_damaged_one_is_passed_over_in_silence(tmp_path: Path) -> None:
    def run() -> str:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SESSION], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    assert run() == "False\n"
    eventually(lambda: "SharedArchiveFile" in of_a_later_run_of(tmp_path / "timewheel"), timeout=120)
    assert run() == "True\n"
    (ready,) = (tmp_path / "timewheel").glob("*.jsa")
    content = bytearray(ready.read_bytes())
    for at in range(0, len(content), 1_000_003):
        content[at] ^= 0xFF
    ready.chmod(0o600)
    ready.write_bytes(content)
    assert run() == "False\n"


def of_a_later_run_of(folder: Path) -> str:
    (lock,) = folder.glob("*.lock")
    later = ClassArchive()
    try:
        return later.options(folder, lock.stem)
    finally:
        later.release()
