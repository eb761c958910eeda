"""The rules of tests/conftest.py: skips fail in CI, folders run by their cost and give their marker, proofs wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.evidence import Row, rows, rows_file
from tests.support.processes import ran

SKIPS = {
    "in_the_test": "import pytest\ndef test_it():\n    pytest.skip('no broker')\n",
    "by_mark": "import pytest\n@pytest.mark.skip(reason='no broker')\ndef test_it():\n    pass\n",
    "in_a_fixture": (
        "import pytest\n@pytest.fixture\ndef broker():\n    pytest.skip('no broker')\ndef test_it(broker):\n    pass\n"
    ),
    "of_a_module": "import pytest\npytest.skip('no broker', allow_module_level=True)\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's pytest configuration with tests of our own."""
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tests/support", tmp_path / "tests/support")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    shutil.copy2(ROOT / "tests/conftest.py", tmp_path / "tests")
    return tmp_path


def _rows(page: Path) -> list[Row]:
    return rows(rows_file(page).read_text(encoding="utf-8"))


def _add(project: Path, folder: str, text: str) -> None:
    (project / "tests" / folder).mkdir()
    (project / "tests" / folder / f"test_{folder}.py").write_text(text)


def _pytest(project: Path, *arguments: str, ci: bool = False) -> subprocess.CompletedProcess[str]:
    return ran(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", **({"CI": "true"} if ci else {})},
    )


@pytest.mark.parametrize("skip", SKIPS)
def test_a_skip_is_green_by_hand_and_red_in_ci(project: Path, skip: str) -> None:
    _add(project, "core", "def test_runs():\n    pass\n")
    _add(project, "broker", SKIPS[skip])
    by_hand, in_ci = _pytest(project), _pytest(project, ci=True)

    assert by_hand.returncode == 0, by_hand.stdout
    assert in_ci.returncode == 1
    assert "skipped in CI" in in_ci.stdout
    assert "Skipped: no broker" in in_ci.stdout.split("skipped in CI")[1]


def test_skips_of_processes_side_by_side_are_red_in_ci_too(project: Path) -> None:
    _add(project, "core", "def test_runs():\n    pass\n")
    _add(project, "broker", SKIPS["in_a_fixture"])
    _add(project, "chaos", SKIPS["of_a_module"])
    done = _pytest(project, "-n", "2", ci=True)

    assert done.returncode == 1
    told = done.stdout.split("skipped in CI")[1]
    assert "tests/broker/test_broker.py::test_it: Skipped: no broker" in told
    assert "tests/chaos/test_chaos.py: Skipped: no broker" in told


def test_an_expected_failure_is_no_skip(project: Path) -> None:
    _add(project, "core", "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_it():\n    assert False\n")

    assert _pytest(project, ci=True).returncode == 0


def test_cheap_folders_run_first(project: Path) -> None:
    for folder in ("broker", "chaos", "core", "typing"):
        _add(project, folder, "def test_it():\n    pass\n")
    done = _pytest(project, "-v")
    order = [line.split("/")[1] for line in done.stdout.splitlines() if "::test_it PASSED" in line]

    assert order == ["core", "typing", "broker", "chaos"]


def test_each_test_carries_its_folder_as_a_marker(project: Path) -> None:
    _add(project, "core", "def test_it():\n    pass\n")
    _add(project, "broker", "def test_it():\n    assert False\n")

    assert _pytest(project, "-m", "not broker").returncode == 0


def test_a_folder_of_unknown_cost_is_refused(project: Path) -> None:
    _add(project, "misc", "def test_it():\n    pass\n")
    done = _pytest(project)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "put tests/misc in FOLDERS" in done.stderr


PROOF = """
import pytest

@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.proof)])
def test_killed(kills, seed, evidence):
    evidence("relay killed", {"kills": kills}, seed=seed)

def test_short():
    pass
"""


def test_proofs_run_when_asked_for_and_alone(project: Path) -> None:
    _add(project, "core", PROOF)
    as_always, proofs = _pytest(project), _pytest(project, "--proofs", "--seeds", "2")
    named = _pytest(project, "tests/core/test_core.py::test_killed[20]")

    assert "2 passed, 1 deselected" in as_always.stdout
    assert "relay killed: kills 2\n" in as_always.stdout
    assert "2 passed, 3 deselected" in proofs.stdout
    assert "relay killed: kills 20\n" in proofs.stdout
    assert named.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_proof_writes_its_rows_beside_the_page_that_is_named(project: Path) -> None:
    _add(project, "core", PROOF)
    page = project / "evidence.md"

    assert _pytest(project, "--evidence", str(page)).returncode == 0
    assert [file.exists() for file in (page, rows_file(page))] == [False, False], "a short play is no proof"

    assert _pytest(project, "--evidence", str(page), "--proofs", "--seeds", "2").returncode == 0
    first, second = _rows(page)
    assert (first.proof, first.figures) == (second.proof, second.figures) == ("relay killed", {"kills": 20})
    assert first.seed != second.seed

    assert _pytest(project, "--evidence", str(page), "--proofs", "--seeds", "3", "-n", "2", "tests").returncode == 0
    assert len({row.seed for row in _rows(page)}) == 3


def test_a_short_play_writes_no_row_though_it_is_a_proof(project: Path) -> None:
    lengths = "[pytest.param(2, id='short'), pytest.param(20, id='two rings-long')]"
    test = f"@pytest.mark.proof\n@pytest.mark.parametrize('kills', {lengths})\ndef test_killed(kills, evidence):\n"
    _add(project, "core", f"import pytest\n{test}    evidence('relay killed', {{'kills': kills}})\n")
    page = project / "evidence.md"

    short = _pytest(project, "--evidence", str(page), "--proofs", "-k", "short")
    assert "relay killed: kills 2\n" in short.stdout
    assert not page.exists()

    assert _pytest(project, "--evidence", str(page), "--proofs").returncode == 0
    assert [row.figures for row in _rows(page)] == [{"kills": 20}]


def test_a_proof_that_fails_writes_no_row(project: Path) -> None:
    fails = "import pytest\n@pytest.mark.proof\ndef test_it(evidence):\n    evidence('x', {})\n    assert False\n"
    _add(project, "core", fails)
    page = project / "evidence.md"

    assert _pytest(project, "--evidence", str(page), "--proofs").returncode == 1
    assert not page.exists()


def test_what_is_dear_to_start_is_started_in_one_process_only(project: Path) -> None:
    test = "import os\ndef test_it(say):\n    say('ran in ' + os.environ['PYTEST_XDIST_WORKER'])\n"
    for name in ("test_consumer_reloads.py", "test_producer_aio.py", "test_producer_failures.py"):
        (project / "tests/broker").mkdir(exist_ok=True)
        (project / "tests/broker" / name).write_text(test)
    done = _pytest(project, "-n", "2")

    assert done.returncode == 0, done.stdout
    ran = [line for line in done.stderr.splitlines() if "ran in" in line]
    assert len(ran) == 3
    assert len(set(ran)) == 1
