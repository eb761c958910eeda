"""`make test` runs a few tests that failed beside others once more, alone; the second run decides."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran
from tests.support.run_tests import ALONE, FEW, MANY, run

FEW_NAMES = [f"test_{number}.py::test" for number in range(FEW)]
MANY_NAMES = [f"test_play.py::test_{number}" for number in range(MANY)]


@pytest.mark.parametrize(
    ("failed", "statuses", "status"),
    [
        ([], [0], 0),
        (["test_a"], [1, 0], 0),
        (["test_a"], [1, 1], 1),
        (FEW_NAMES, [1, 0], 0),
        ([*FEW_NAMES, "test_more.py::test"], [1], 1),
        (MANY_NAMES, [1, 0], 0),
        ([*MANY_NAMES, "test_play.py::test_more"], [1], 1),
        ([], [1], 1),  # a failure that no test has
        (["test_a"], [2], 2),  # interrupted
        (["test_a"], [5], 5),  # none was chosen
        (["test_a"], [1, 5], 5),  # it cannot be found alone
    ],
)
def test_a_few_failures_are_run_again_alone(failed: list[str], statuses: list[int], status: int) -> None:
    left, runs = list(statuses), []

    def play(arguments: Sequence[str]) -> int:
        runs.append(tuple(arguments))
        return left.pop(0)

    assert run(("tests", "-n", "4"), play, lambda: failed) == status
    assert not left
    assert runs[1:] in ([], [("tests", "-n", "4", *ALONE)])


@pytest.mark.parametrize("workers", [(), ("-n", "1"), ("-n", "0")])
def test_what_ran_alone_is_not_run_again(workers: tuple[str, ...]) -> None:
    statuses = [1]
    assert run(("tests", *workers), lambda _: statuses.pop(), lambda: ["test_a"]) == 1


@pytest.mark.parametrize(("heals", "status"), [(True, 0), (False, 1)])
def test_only_what_failed_is_run_again(tmp_path: Path, heals: bool, status: int) -> None:
    test = tmp_path / "test_two.py"
    test.write_text(
        f"""
from pathlib import Path
RUNS = Path({str(tmp_path / "runs")!r})
def note(name):
    with RUNS.open("a") as runs:
        runs.write(name)
    return RUNS.read_text()
def test_good(): note("g")
def test_bad(): assert note("b").count("b") == 2 and {heals}
"""
    )
    done = ran(
        [sys.executable, "-m", "tests.support.run_tests", str(test), "--rootdir", str(tmp_path), "-n", "2"], cwd=ROOT
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert sorted((tmp_path / "runs").read_text()) == ["b", "b", "g"]
    assert "once more, alone: " in done.stdout
    assert ("failed beside others, passed alone: " in done.stdout) == heals
