"""Runs of the tests: skips fail in CI, folders run by cost, proofs wait; `make` names programs that are missing."""

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
    (project / "tests/broker").mkdir()
    for name in ("test_consumer_reloads.py", "test_producer_aio.py", "test_producer_failures.py"):
        (project / "tests/broker" / name).write_text(test)
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


# ----------------------------------------------------------------------------------------------------------- Makefile


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH of its own with the shell's tools and nothing else."""
    for tool in ("bash", "grep", "head", "make", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def _fake(programs: Path, name: str, script: str) -> None:
    program = programs / name
    program.write_text(f"#!{programs}/bash\n{script}\n")
    program.chmod(0o755)


def _make(programs: Path, target: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [programs / "make", "-C", ROOT, target, "PYTHON=python3", *options]
    return ran(command, env={"PATH": str(programs), **environment})


def _java(version: str) -> dict[str, str]:
    return {"mvn": "true", "java": f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"}


CI = {"CI": "true"}
JRE, CHROMIUM, STORES = "openjdk-17-jre-headless", "apt-get install chromium", "apt-get install redis-server postgresql"


@pytest.mark.parametrize(
    ("target", "fakes", "environment", "goes_on", "said"),
    [
        ("need-java", {"mvn": "true"}, {}, False, (JRE,)),
        ("need-java", _java("11.0.2"), {}, False, ("found 11 ", JRE)),
        ("need-java", _java("1.8.0_392"), {}, False, ("found 1 ", JRE)),
        ("need-java", {"java": _java("17.0.15")["java"]}, {}, False, ("maven",)),
        *(("need-java", _java(good), {}, True, ()) for good in ("17.0.15", "21", "25-ea")),
        ("need-chromium", {}, {}, True, (CHROMIUM, "skipped")),
        ("need-chromium", {}, CI, False, (CHROMIUM,)),
        *(
            ("need-chromium", {name: "true"}, CI, True, ())
            for name in ("chromium", "chromium-browser", "google-chrome")
        ),
        ("need-stores", {}, {}, True, (STORES, "skipped")),
        ("need-stores", {}, CI, False, (STORES,)),
        ("need-stores", {"redis-server": "true"}, {}, True, ("apt-get install postgresql", "skipped")),
        ("need-stores", {"initdb": "true"}, {}, True, ("apt-get install redis-server)", "skipped")),
        ("need-stores", {"redis-server": "true", "15/bin/initdb": "true"}, CI, True, ()),
        ("need-python", {"python3": "exit 1"}, {}, False, ("Python 3.11",)),
        ("need-python", {"python3": '[[ "$2" != *ensurepip* ]]'}, {}, False, ("python3-venv",)),
    ],
)
def test_what_is_missing_or_too_old_is_named_and_what_is_there_is_not(
    programs: Path,
    target: str,
    fakes: dict[str, str],
    environment: dict[str, str],
    goes_on: bool,
    said: tuple[str, ...],
) -> None:
    (programs / "15" / "bin").mkdir(parents=True)  # where Debian has the programs of PostgreSQL
    for name, script in fakes.items():
        _fake(programs, name, script)
    done = _make(programs, target, f"POSTGRES_BINS={programs}/*/bin", **environment)

    assert (done.returncode == 0) is goes_on
    assert all(words in done.stderr for words in said), done.stderr
    assert said or not done.stderr


CORE, PURE, REST = "-m pytest tests/core", "-m pytest tests/producers", "-m tests.support.run_tests tests "
ALL, ON_BROKER = (f"-m tests.support.run_tests tests{folders} --proofs" for folders in ("", "/broker tests/chaos"))


@pytest.mark.parametrize(
    ("target", "codes", "parts", "is_green"),
    [
        ("test", {}, (CORE, PURE, REST), True),
        ("test", {CORE: 1}, (CORE,), False),  # a slip in the core: nothing that takes longer is begun
        ("test", {PURE: 1}, (CORE, PURE), False),
        ("test", {REST: 1}, (CORE, PURE, REST), False),
        ("test", {CORE: 5, PURE: 5}, (CORE, PURE, REST), True),  # the arguments chose tests of the last part only
        ("test", {PURE: 5, REST: 5}, (CORE, PURE, REST), True),
        ("test", {CORE: 5, PURE: 5, REST: 5}, (CORE, PURE, REST), False),  # they chose none at all
        ("proof", {}, (ALL, ON_BROKER), True),
        ("proof", {ALL: 1}, (ALL, ON_BROKER), False),  # the second version is tried all the same
        ("proof", {ON_BROKER: 1}, (ALL, ON_BROKER), False),
        ("proof", {ON_BROKER: 5}, (ALL, ON_BROKER), True),  # what was chosen needs no broker
        ("proof", {ALL: 5, ON_BROKER: 5}, (ALL, ON_BROKER), False),
    ],
)
def test_the_tests_run_in_three_parts_and_proofs_on_both_versions(
    programs: Path, target: str, codes: dict[str, int], parts: tuple[str, ...], is_green: bool
) -> None:
    """With a pytest that ends so where its arguments begin so; what needs no broker is proved once."""
    fakes = _java("17.0.15") | dict.fromkeys(("chromium", "initdb", "python3", "redis-server"), "true")
    for name, script in fakes.items():
        _fake(programs, name, script)
    venv = programs / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".demo-installed").touch()
    (venv / ".dev-installed").touch()
    ends = "".join(f'    "{words}"*) exit {code};;\n' for words, code in codes.items())
    (venv / "bin" / "bash").symlink_to(programs / "bash")
    _fake(venv / "bin", "python", f'echo "$*" >> {programs}/ran\ncase "$*" in\n{ends}esac')
    code = _make(programs, target, f"VENV={venv}").returncode

    assert (code == 0) == is_green
    lines = (programs / "ran").read_text().splitlines()
    assert [line.startswith(part) for line, part in zip(lines, parts, strict=True)] == [True] * len(parts)


@pytest.mark.parametrize(("words", "chosen"), [([], "not short"), (["PROOFS=relay and killed"], "relay and killed")])
def test_proofs_are_written_down_whichever_are_chosen(words: list[str], chosen: str) -> None:
    told = ran(["make", "-C", str(ROOT), "--dry-run", "proof", *words], check=True).stdout

    assert f'-k "{chosen}"' in told
    assert "--evidence docs/evidence.md" in told
