"""Runs of the tests: skips fail in CI, folders run by cost, proofs wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.evidence import rows, rows_file
from tests.support.processes import ran
from tests.support.run_tests import ALONE, FEW, MANY, run

# ------------------------------------------------------------------------------------------------- tests/conftest.py

SKIPS = {
    "inbox": "import pytest\ndef test_it():\n    pytest.skip('no broker')\n",
    "contract": "import pytest\n@pytest.mark.skip(reason='no broker')\ndef test_it():\n    pass\n",
    "broker": (
        "import pytest\n@pytest.fixture\ndef broker():\n    pytest.skip('no broker')\ndef test_it(broker):\n    pass\n"
    ),
    "chaos": "import pytest\npytest.skip('no broker', allow_module_level=True)\n",
}
"""By the folders: in the test, by a mark, in a fixture, of a module."""
RUNS = "def test_it():\n    pass\n"
PROOF = """
import pytest

@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.proof)])
def test_killed(kills, seed, evidence):
    evidence("relay killed", {"kills": kills}, seed=seed)

def test_quick():
    pass
"""
LENGTHS = """
import pytest

@pytest.mark.proof
@pytest.mark.parametrize("kills", [pytest.param(2, id="short"), pytest.param(20, id="two rings-long")])
def test_killed(kills, evidence):
    evidence("relay killed", {"kills": kills})

@pytest.mark.proof
def test_broken(evidence):
    evidence("broken", {})
    assert False
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's pytest configuration with tests of our own."""
    for folder in ("tests/support", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy2(ROOT / file, tmp_path / file)
    return tmp_path


def _add(project: Path, folder: str, text: str) -> None:
    (project / "tests" / folder).mkdir()
    (project / "tests" / folder / f"test_{folder}.py").write_text(text)


def _pytest(project: Path, *arguments: str, ci: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return ran(command, cwd=project, env={"PATH": "/usr/bin:/bin", **({"CI": "true"} if ci else {})}, timeout=120)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "side by side"])
def test_a_skip_is_green_by_hand_and_red_in_ci_and_an_expected_failure_is_none(
    project: Path, workers: tuple[str, ...]
) -> None:
    _add(project, "core", f"import pytest\n{RUNS}@pytest.mark.xfail(reason='known')\ndef test_x():\n    assert False\n")
    for folder, text in SKIPS.items():
        _add(project, folder, text)
    by_hand, in_ci = _pytest(project, *workers), _pytest(project, *workers, ci=True)

    assert by_hand.returncode == 0, by_hand.stdout
    assert in_ci.returncode == 1
    skipped = in_ci.stdout.split("skipped in CI")[1].splitlines()[1:]
    named = {line.split("/")[1] for line in skipped if ": Skipped: no broker" in line or line.endswith(": no broker")}
    assert named == SKIPS.keys()
    assert _pytest(project, "tests/core", *workers, ci=True).returncode == 0


def test_cheap_folders_run_first_each_with_its_marker_and_one_of_unknown_cost_is_refused(project: Path) -> None:
    for folder in ("broker", "chaos", "core", "typing"):
        _add(project, folder, RUNS)
    done = _pytest(project, "-v", "-m", "not chaos")
    order = [line.split("/")[1] for line in done.stdout.splitlines() if "::test_it PASSED" in line]
    assert order == ["core", "typing", "broker"]

    _add(project, "misc", RUNS)
    refused = _pytest(project)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "put tests/misc in FOLDERS" in refused.stderr


def test_proofs_run_when_asked_for_and_alone_and_write_their_rows_beside_the_page(project: Path) -> None:
    _add(project, "core", PROOF)
    page = project / "evidence.md"
    with_page = ("--evidence", str(page))
    as_always, proofs = _pytest(project, *with_page), _pytest(project, "--proofs", "--seeds", "2")
    named = _pytest(project, "tests/core/test_core.py::test_killed[20]")

    assert "2 passed, 1 deselected" in as_always.stdout
    assert "relay killed: kills 2\n" in as_always.stdout
    assert "2 passed, 3 deselected" in proofs.stdout
    assert "relay killed: kills 20\n" in proofs.stdout
    assert named.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert [file.exists() for file in (page, rows_file(page))] == [False, False], "a short play is no proof"

    assert _pytest(project, *with_page, "--proofs", "--seeds", "3", "-n", "2", "tests").returncode == 0
    found = rows(rows_file(page).read_text(encoding="utf-8"))
    assert {(row.proof, row.figures["kills"]) for row in found} == {("relay killed", 20)}
    assert len({row.seed for row in found}) == 3


def test_neither_a_short_play_of_a_proof_nor_one_that_fails_writes_a_row(project: Path) -> None:
    _add(project, "core", LENGTHS)
    page = project / "evidence.md"

    done = _pytest(project, "--evidence", str(page), "--proofs")
    assert done.returncode == 1
    assert "relay killed: kills 2\n" in done.stdout
    assert [row.figures for row in rows(rows_file(page).read_text(encoding="utf-8"))] == [{"kills": 20}]


def test_what_is_dear_to_start_is_started_in_one_process_only(project: Path) -> None:
    test = "import os\ndef test_it(say):\n    say('ran in ' + os.environ['PYTEST_XDIST_WORKER'])\n"
    (project / "tests/behaviour").mkdir()
    for name in ("test_consumer_reloads.py", "test_producer_aio.py", "test_producer_failures.py"):
        (project / "tests/behaviour" / name).write_text(test)
    done = _pytest(project, "-n", "2")

    assert done.returncode == 0, done.stdout
    places = [line for line in done.stderr.splitlines() if "ran in" in line]
    assert (len(places), len(set(places))) == (3, 1)


# ------------------------------------------------------------------------------------------- tests/support/run_tests.py

FEW_NAMES = [f"test_{number}.py::test" for number in range(FEW)]
MANY_NAMES = [f"test_play.py::test_{number}" for number in range(MANY)]


@pytest.mark.parametrize(
    ("workers", "failed", "statuses", "status"),
    [
        ("4", [], [0], 0),
        ("4", ["test_a"], [1, 0], 0),
        ("4", ["test_a"], [1, 1], 1),
        ("4", FEW_NAMES, [1, 0], 0),
        ("4", [*FEW_NAMES, "test_more.py::test"], [1], 1),
        ("4", MANY_NAMES, [1, 0], 0),
        ("4", [*MANY_NAMES, "test_play.py::test_more"], [1], 1),
        ("4", [], [1], 1),  # a failure that no test has
        ("4", ["test_a"], [2], 2),  # interrupted
        ("4", ["test_a"], [5], 5),  # none was chosen
        ("4", ["test_a"], [1, 5], 5),  # it cannot be found alone
        ("1", ["test_a"], [1], 1),  # it ran alone
        ("0", ["test_a"], [1], 1),
        (None, ["test_a"], [1], 1),
    ],
)
def test_a_few_failures_beside_others_are_run_again_alone(
    workers: str | None, failed: list[str], statuses: list[int], status: int
) -> None:
    left, runs = list(statuses), []
    words = ("tests", "-n", workers) if workers else ("tests",)

    def play(arguments: Sequence[str]) -> int:
        runs.append(tuple(arguments))
        return left.pop(0)

    assert run(words, play, lambda: failed) == status
    assert not left
    assert runs[1:] in ([], [(*words, *ALONE)])


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
    words = ["-m", "tests.support.run_tests", str(test), "--rootdir", str(tmp_path), "-n", "2"]
    done = ran([sys.executable, *words], cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr
    assert sorted((tmp_path / "runs").read_text()) == ["b", "b", "g"]
    assert "once more, alone: " in done.stdout
    assert ("failed beside others, passed alone: " in done.stdout) == heals


@pytest.mark.parametrize(("words", "chosen"), [([], "not short"), (["PROOFS=relay and killed"], "relay and killed")])
def test_proofs_are_written_down_whichever_are_chosen(words: list[str], chosen: str) -> None:
    told = ran(["make", "-C", str(ROOT), "--dry-run", "proof", *words], check=True).stdout

    assert f'-k "{chosen}"' in told
    assert "--evidence docs/evidence.md" in told
