from __future__ import annotations

from pathlib import Path

import pytest

from timewheel.testing.process import OwnedProcess, exit_words


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
