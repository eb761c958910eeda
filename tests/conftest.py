"""Order, markers, proofs and the rule about skips, for all folders."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from benchmarks.machine import load, processor
from tests.support import distribution
from tests.support.checkout import ROOT
from tests.support.evidence import Ledger, Row
from tests.support.kept import Kept
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDERS = (
    "core",
    "binary_protocol",
    "producers",
    "consumers",
    "ops",
    "shadow",
    "testing_tools",
    "demo",
    "watch",
    "packaging",
    "typing",
    "docs",
    "inbox",
    "planner",
    "contract",
    "broker",
    "chaos",
)
"""Every folder of tests, cheap ones first: a run fails early where failing costs least."""

CORE = "core"
"""The folder whose tables run before its properties."""
PLANNER = "planner"
"""The folder, and the lane of all that needs Spark."""
CHAOS = "chaos"
"""The folder, and the lane of all that shares its broker."""
INBOX = "inbox"
"""The folder, and the lane of all that shares its Redis and its PostgreSQL."""
LANES = {
    "tests/docs/test_handle_once.py": INBOX,
    "tests/broker/test_plan_check.py": PLANNER,
    "tests/broker/test_planner_gaps.py": PLANNER,
    "tests/broker/test_plan_of_planner.py": PLANNER,
    **dict.fromkeys(
        (
            # These three share a broker besides, at the addresses that the pages name.
            "tests/docs/test_how_to.py",
            "tests/docs/test_readme.py",
            "tests/docs/test_tutorial.py",
            "tests/packaging/test_distribution.py",
            "tests/packaging/test_installed.py",
            "tests/typing/test_users_see_types.py",
        ),
        "wheel",
    ),
    **dict.fromkeys(
        (
            "tests/broker/test_consumer_reloads.py",
            "tests/broker/test_producer_aio.py",
            "tests/broker/test_producer_failures.py",
            "tests/broker/test_provision_settings.py",
        ),
        "mortal",
    ),
    **dict.fromkeys(
        (
            "tests/broker/test_admin_security.py",
            "tests/broker/test_binary_protocol_secured.py",
            "tests/broker/test_cancel_refused.py",
            "tests/broker/test_connection.py",
            "tests/broker/test_doctor.py",
            "tests/broker/test_gaps_denied.py",
            "tests/broker/test_shadow_denied.py",
            "tests/broker/test_status.py",
            "tests/broker/test_whereis.py",
            "tests/broker/test_plan_check_denied.py",
            "tests/broker/test_provision_denied.py",
            "tests/broker/test_token_expires.py",
        ),
        "secured",
    ),
    **dict.fromkeys(("tests/broker/test_local_pulsar.py", "tests/broker/test_profile.py"), "tuned"),
}
"""Files that share what is dear to start: Spark, the built wheel, brokers of one kind. Each other file is a lane."""
EVIDENCE = "evidence"
"""The property of a test's report that holds a row."""
SEED_VARIABLE = "TIMEWHEEL_SEED"
"""Another seed than the test's own; or "random"."""

_skips = pytest.StashKey[list[str]]()
_kept = pytest.StashKey[Kept]()


def _folder(item: pytest.Item) -> str:
    """The test's folder; code blocks outside of tests/ belong to the docs."""
    path = item.path
    if not path.is_relative_to(ROOT / "tests"):
        return "docs"
    return path.relative_to(ROOT / "tests").parts[0]


def _lane(nodeid: str) -> str:
    """Tests of one lane run in one process, where several run side by side: they share what is dear to start."""
    path = nodeid.partition("::")[0]
    for folder in (PLANNER, CHAOS, INBOX):
        if path.startswith(f"tests/{folder}/"):
            return folder
    return LANES.get(path, path)


class _Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands lanes to whichever process is free; each runs in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _lane(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Lanes:
    return _Lanes(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("timewheel")
    group.addoption("--proofs", action="store_true", help="run the proofs, which are long, and nothing else")
    group.addoption(
        "--seeds", type=int, default=1, metavar="COUNT", help="how many seeds each seeded proof is played by"
    )
    group.addoption("--evidence", type=Path, metavar="FILE", help="write what the proofs find into this page")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_kept].close()  # a run that was interrupted in a test has not come to the end of its lane


def _is_proof(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("proof", "short"))


def _is_property(item: pytest.Item) -> bool:
    """Whether it is of the core and draws many examples: the tables go first, so that a slip is seen within seconds."""
    return _folder(item) == CORE and hasattr(getattr(item, "obj", None), "hypothesis")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("proofs") and "seed_number" in metafunc.fixturenames:
        numbers = range(1, int(metafunc.config.getoption("seeds") or 1) + 1)
        metafunc.parametrize("seed_number", numbers, ids=[f"seed{number}" for number in numbers])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Either the proofs or all others: what is named by its node id is no exception, so that nothing long runs unasked.
    wanted = bool(config.getoption("proofs"))
    by_kind: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        by_kind[_is_proof(item)].append(item)
    config.hook.pytest_deselected(items=by_kind[not wanted])
    items[:] = by_kind[wanted]
    for item in items:
        folder = _folder(item)
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: put tests/{folder} in FOLDERS of tests/conftest.py, by its cost")
        item.add_marker(folder)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Side by side: what takes longest begins first, so that nobody waits for it at the end.
        items.sort(key=lambda item: (_lane(item.nodeid) != PLANNER, -FOLDERS.index(_folder(item))))
    else:
        items.sort(key=lambda item: (FOLDERS.index(_folder(item)), _is_property(item)))


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
    config.stash[_kept] = Kept()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers report to the process that started them
        config.pluginmanager.register(_EvidenceWatch(Ledger(config.getoption("evidence"))), "timewheel-evidence-watch")
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


class _EvidenceWatch:
    """Writes down what the proofs that held have found; from the reports, since they may come from other processes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == EVIDENCE and isinstance(value, dict):
                    self._ledger.add(Row(**value))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _in_ci() and session.config.stash[_skips] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _in_ci() and config.stash[_skips]:
        terminalreporter.section("skipped in CI, which is a failure", red=True)
        for skip in config.stash[_skips]:
            terminalreporter.line(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if nextitem is None or _lane(nextitem.nodeid) != _lane(item.nodeid):
            item.config.stash[_kept].close()


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Kept:
    """Starts what the tests of a lane share, and ends it with the lane."""
    return request.config.stash[_kept]


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

    worker = os.environ.get("PYTEST_XDIST_WORKER")

    def tell(line: object) -> None:
        with capsys.disabled():
            # A worker's standard output goes nowhere, and lines of others stand between its own.
            out = sys.stderr if worker else sys.stdout
            print(f"[{worker}] {line}" if worker else f"  {line}", file=out, flush=True)

    return tell


@pytest.fixture
def seed_number() -> int:
    """Which of its seeds a test is played by; proofs can have more than one."""
    return 1


@pytest.fixture
def seed(request: pytest.FixtureRequest, seed_number: int, say: Callable[[object], None]) -> int:
    """The test's seed, said together with the command that replays it."""
    given = os.environ.get(SEED_VARIABLE)
    name = request.node.nodeid
    if given == "random":
        chosen = int.from_bytes(os.urandom(4), "big")
    else:
        chosen = int(given) if given else zlib.crc32(f"{seed_number} {name}".encode())
    option = " --proofs" if request.config.getoption("proofs") else ""
    say("")
    say(
        f"seed {chosen}; replay: {SEED_VARIABLE}={chosen} TIMEWHEEL_PULSAR_VERSION={version_asked_for()} "
        f".venv/bin/python -m pytest{option} '{name}'"
    )
    return chosen


class Evidence(Protocol):
    """What the fixture `evidence` gives."""

    def __call__(
        self, proof: str, figures: Mapping[str, object], *, seed: int | None = None, on_broker: bool = True
    ) -> None:
        """Say what was found; if the test holds, it stands in the page, if one was named.

        Args:
            proof: The row's name.
            figures: By name.
            seed: What chose by chance; None: nothing did.
            on_broker: False: the broker's version says nothing about it.
        """
        ...


def _is_short(item: pytest.Item) -> bool:
    """Whether CI plays it too: marked so, or by an id, such as ``seed1-short``, as the short play of a longer one."""
    if item.get_closest_marker("short") is not None:
        return True
    return isinstance(item, pytest.Function) and hasattr(item, "callspec") and "short" in item.callspec.id.split("-")


@pytest.fixture
def evidence(request: pytest.FixtureRequest, say: Callable[[object], None]) -> Evidence:
    """What a proof found, for docs/evidence.md; short plays say theirs too, and nobody writes it down."""

    def tell(proof: str, figures: Mapping[str, object], *, seed: int | None = None, on_broker: bool = True) -> None:
        pulsar = version_asked_for() if on_broker else ""
        on = f"{processor()}, load {load()}"
        row = Row.of(proof, seed=seed, pulsar=pulsar, figures=figures, machine=on)
        say(f"{row.proof}: {row.figures}")
        if request.node.get_closest_marker("proof") is not None and not _is_short(request.node):
            request.node.user_properties.append((EVIDENCE, asdict(row)))

    return tell
