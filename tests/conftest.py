"""Order, markers and the rule about skips, for all folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import distribution
from tests.support.checkout import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDERS = (
    "typing",
    "packaging",
    "core",
    "producers",
    "consumers",
    "ops",
    "testing_tools",
    "demo",
    "docs",
    "planner",
    "contract",
    "broker",
    "chaos",
)
"""Every folder of tests, cheap ones first: a run fails early where failing costs least."""

_skips = pytest.StashKey[list[str]]()


def _folder(item: pytest.Item) -> str:
    """The test's folder; code blocks outside of tests/ belong to the docs."""
    path = item.path
    if not path.is_relative_to(ROOT / "tests"):
        return "docs"
    return path.relative_to(ROOT / "tests").parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = _folder(item)
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: put tests/{folder} in FOLDERS of tests/conftest.py, by its cost")
        item.add_marker(folder)
    items.sort(key=lambda item: FOLDERS.index(_folder(item)))


# No deadline: a shared machine stalls for longer than any pure function takes. A failure prints how to replay it.
settings.register_profile(
    "timewheel", parent=settings.get_profile(settings.get_current_profile_name()), deadline=None, print_blob=True
)
settings.load_profile("timewheel")


# In CI a skipped test is a test that did not run: what it would have found is unknown, and green would be a claim.


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skips] = []
    config.pluginmanager.register(_SkipWatch(config.stash[_skips]), "timewheel-skip-watch")


class _SkipWatch:
    """Collects the skips; a plugin object, because the report hooks are not handed the configuration."""

    def __init__(self, skips: list[str]) -> None:
        self._skips = skips

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):  # an expected failure did run
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, nodeid: str, why: object) -> None:
        reason = why[2] if isinstance(why, tuple) else why  # (file, line, reason)
        self._skips.append(f"{nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _in_ci() and session.config.stash[_skips] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _in_ci() and config.stash[_skips]:
        terminalreporter.section("skipped in CI, which is a failure", red=True)
        for skip in config.stash[_skips]:
            terminalreporter.line(skip)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> distribution.Distribution:
    """The sdist and the wheels of this checkout, built once per run."""
    return distribution.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def clean_python(built: distribution.Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the built wheel and its base dependencies, and nothing else."""
    return distribution.install(built.wheel, tmp_path_factory.mktemp("clean") / "venv")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for the whole run: starting Java takes longer than any test of the planner."""
    # Here: a run without those tests needs no PySpark. Where it is missing they fail, as the planner itself would.
    from tests.support.spark import shared_session

    with shared_session() as session:
        yield session


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[object], None]:
    """Print past pytest's capturing: what was measured is worth reading when it is green, too."""

    def tell(line: object) -> None:
        with capsys.disabled():
            print(f"  {line}", flush=True)  # noqa: T201

    return tell
