"""What `make` says where something is missing, before it downloads anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran

TOOLS = ("bash", "grep", "head", "make", "sed")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH of its own with the shell's tools and nothing else."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def _fake(programs: Path, name: str, script: str) -> None:
    program = programs / name
    program.write_text(f"#!{programs}/bash\n{script}\n")
    program.chmod(0o755)


def _make(programs: Path, target: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(
        [programs / "make", "-C", ROOT, target, "PYTHON=python3", *options], env={"PATH": str(programs), **environment}
    )


def _java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


NO_POSTGRES = "POSTGRES_BINS=/nowhere"
CI = {"CI": "true"}
JAVA_17, JRE = _java("17.0.15"), "openjdk-17-jre-headless"
INSTALL_CHROMIUM, INSTALL_BOTH = "apt-get install chromium", "apt-get install redis-server postgresql"


@pytest.mark.parametrize(
    ("target", "fakes", "environment", "goes_on", "said"),
    [
        ("need-java", {"mvn": "true"}, {}, False, (JRE,)),
        ("need-java", {"mvn": "true", "java": _java("11.0.2")}, {}, False, ("found 11 ", JRE)),
        ("need-java", {"mvn": "true", "java": _java("1.8.0_392")}, {}, False, ("found 1 ", JRE)),
        ("need-java", {"java": JAVA_17}, {}, False, ("maven",)),
        *(("need-java", {"mvn": "true", "java": _java(good)}, {}, True, ()) for good in ("17.0.15", "21", "25-ea")),
        ("need-chromium", {}, {}, True, (INSTALL_CHROMIUM, "skipped")),
        ("need-chromium", {}, CI, False, (INSTALL_CHROMIUM,)),
        *(
            ("need-chromium", {name: "true"}, CI, True, ())
            for name in ("chromium", "chromium-browser", "google-chrome")
        ),
        ("need-stores", {}, {}, True, (INSTALL_BOTH, "skipped")),
        ("need-stores", {}, CI, False, (INSTALL_BOTH,)),
        ("need-stores", {"redis-server": "true"}, {}, True, ("apt-get install postgresql", "skipped")),
        ("need-stores", {"initdb": "true"}, {}, True, ("apt-get install redis-server)", "skipped")),
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
    for name, script in fakes.items():
        _fake(programs, name, script)
    done = _make(programs, target, NO_POSTGRES, **environment)

    assert (done.returncode == 0) is goes_on
    assert all(words in done.stderr for words in said), done.stderr
    assert said or not done.stderr


def test_with_the_stores_nothing_is_said_wherever_debian_put_them(programs: Path, tmp_path: Path) -> None:
    _fake(programs, "redis-server", "true")
    (tmp_path / "15" / "bin").mkdir(parents=True)
    _fake(tmp_path / "15" / "bin", "initdb", "true")
    done = _make(programs, "need-stores", f"POSTGRES_BINS={tmp_path}/*/bin", **CI)

    assert (done.returncode, done.stderr) == (0, "")


def _tests_end(programs: Path, codes: dict[str, int], target: str = "test") -> tuple[int, list[str]]:
    """The target with a pytest that ends so where its arguments begin so; what it was asked to run, in order."""
    _fake(programs, "java", _java("17.0.15"))
    for name in ("mvn", "chromium", "initdb", "python3", "redis-server"):
        _fake(programs, name, "true")
    venv = programs / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".demo-installed").touch()
    (venv / ".dev-installed").touch()
    ends = "".join(f'    "{words}"*) exit {code};;\n' for words, code in codes.items())
    (venv / "bin" / "bash").symlink_to(programs / "bash")
    _fake(venv / "bin", "python", f'echo "$*" >> {programs}/ran\ncase "$*" in\n{ends}esac')
    done = _make(programs, target, f"VENV={venv}")
    return done.returncode, (programs / "ran").read_text().splitlines()


CORE, PURE, REST = "-m pytest tests/core", "-m pytest tests/producers", "-m tests.support.run_tests tests "


@pytest.mark.parametrize(
    ("codes", "parts", "is_green"),
    [
        ({}, (CORE, PURE, REST), True),
        ({CORE: 1}, (CORE,), False),  # a slip in the core: nothing that takes longer is begun
        ({PURE: 1}, (CORE, PURE), False),
        ({REST: 1}, (CORE, PURE, REST), False),
        ({CORE: 5, PURE: 5}, (CORE, PURE, REST), True),  # the arguments chose tests of the last part only
        ({PURE: 5, REST: 5}, (CORE, PURE, REST), True),
        ({CORE: 5, PURE: 5, REST: 5}, (CORE, PURE, REST), False),  # they chose none at all
    ],
)
def test_the_tests_run_in_three_parts(
    programs: Path, codes: dict[str, int], parts: tuple[str, ...], is_green: bool
) -> None:
    code, ran = _tests_end(programs, codes)

    assert (code == 0) == is_green
    assert [line.startswith(part) for line, part in zip(ran, parts, strict=True)] == [True] * len(parts)


ALL, ON_BROKER = (f"-m tests.support.run_tests tests{folders} --proofs" for folders in ("", "/broker tests/chaos"))


@pytest.mark.parametrize(
    ("codes", "is_green"),
    [
        ({}, True),
        ({ALL: 1}, False),  # the second version is tried all the same
        ({ON_BROKER: 1}, False),
        ({ON_BROKER: 5}, True),  # what was chosen needs no broker
        ({ALL: 5, ON_BROKER: 5}, False),
    ],
)
def test_proofs_run_on_both_versions_and_what_needs_no_broker_once(
    programs: Path, codes: dict[str, int], is_green: bool
) -> None:
    code, ran = _tests_end(programs, codes, "proof")

    assert (code == 0) == is_green
    assert [line.startswith(part) for line, part in zip(ran, (ALL, ON_BROKER), strict=True)] == [True, True]


@pytest.mark.parametrize(("words", "chosen"), [([], "not short"), (["PROOFS=relay and killed"], "relay and killed")])
def test_proofs_are_written_down_whichever_are_chosen(words: list[str], chosen: str) -> None:
    command = ["make", "-C", str(ROOT), "--dry-run", "proof", *words]
    told = ran(command, check=True).stdout

    assert f'-k "{chosen}"' in told
    assert "--evidence docs/evidence.md" in told
