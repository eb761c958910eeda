"""A local broker: waiting with a bound, a child's end, and the count of lost registrations in its log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from timewheel.testing import eventually
from timewheel.testing.local_pulsar import _rounds
from timewheel.testing.process import OwnedProcess, exit_words


@pytest.mark.parametrize("timeout", [timedelta(milliseconds=20), 0.02])
def test_the_time_is_a_timedelta_or_seconds(timeout: timedelta | float) -> None:
    assert eventually(lambda: "yes", timeout) == "yes"
    with pytest.raises(AssertionError, match=r"still 0 after 0\.02 s: a dead letter"):
        eventually(lambda: 0, timeout, poll=0.001, message="a dead letter")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "ended with exit code 0"),
        ("exit 3", "ended with exit code 3"),
        ("kill -9 $$", "was killed by signal 9 (SIGKILL)"),
        ("kill -40 $$", "was killed by signal 40"),  # a real-time signal has no name of its own
    ],
)
def test_the_end_of_a_child_is_its_exit_code_or_its_signal(tmp_path: Path, script: str, words: str) -> None:
    process = OwnedProcess(log=tmp_path / "log")
    try:
        process.start(["sh", "-c", script], cwd=tmp_path)
        assert exit_words(process.wait(10)) == words
    finally:
        process.close()


LOST = "2026-11-22T05:37:26,341 INFO [metadata] ResourceLockImpl - Lock on resource {} was invalidated. state {}\n"


def test_rounds_are_counted_from_where_the_last_start_began(tmp_path: Path) -> None:
    log = tmp_path / "pulsar.log"
    lost = LOST.format("/ledgers/available/127.0.0.1:29667", "Valid")
    log.write_text(lost * 7)
    begins = log.stat().st_size
    with log.open("a") as file:
        file.write(lost * 3)
        file.write(LOST.format("/namespace/public/default/0x40000000_0x80000000", "Released"))
        file.write(LOST.format("/ledgers/available/127.0.0.1:29667", "Released"))  # as it ends

    assert _rounds(log, begins) == 3
    assert _rounds(log, 0) == 10
