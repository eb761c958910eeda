"""Order of tests, markers, proofs and the rule about skips, for all folders."""

from __future__ import annotations

import asyncio
import inspect
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
    "protocol",
    "producers",
    "consumers",
    "relay",
    "inspect",
    "shadow",
    "testing_tools",
    "virtual",
    "behaviour",
    "simulation",
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
"""Every folder of tests, the cheapest first, so that a run fails early."""

CORE = "core"  # the folder whose tables run before its properties
PLANNER = "planner"  # the folder, and the lane of all tests that need Spark
CHAOS = "chaos"  # the folder, and the lane of all tests that share its broker
WHEEL = "wheel"  # the lane of all tests that share the built wheel, or the broker at the addresses that the pages name
CLUSTER = "cluster"  # the lane of all tests on a cluster: a machine has the memory of one at a time
INBOX = "inbox"  # the folder, and the lane of all tests that share its Redis and its PostgreSQL
LANES = {
    "tests/docs/test_handle_once.py": INBOX,
    **dict.fromkeys(
        (
            "tests/broker/test_cluster_commands.py",
            "tests/broker/test_local_cluster.py",
            "tests/broker/test_moved_topics.py",
            "tests/broker/test_proxy.py",
            "tests/broker/test_relay_outage.py",
            "tests/broker/test_shadow_on_cluster.py",
            "tests/chaos/test_cluster.py",
            "tests/docs/test_on_a_cluster.py",
        ),
        CLUSTER,
    ),
    "tests/broker/test_plan_check.py": PLANNER,
    "tests/broker/test_planner_gaps.py": PLANNER,
    "tests/broker/test_plan_of_planner.py": PLANNER,
    **dict.fromkeys(
        (
            "tests/docs/test_how_to.py",
            "tests/docs/test_readme.py",
            "tests/docs/test_tutorial.py",
            "tests/packaging/test_distribution.py",
            "tests/packaging/test_installed.py",
            "tests/typing/test_users_see_types.py",
        ),
        WHEEL,
    ),
    **dict.fromkeys(
        (
            "tests/behaviour/test_consumer_reloads.py",
            "tests/behaviour/test_producer_aio.py",
            "tests/behaviour/test_producer_failures.py",
            "tests/behaviour/test_relay_pauses.py",
            "tests/broker/test_named_sends.py",
            "tests/broker/test_provision_settings.py",
        ),
        "mortal",
    ),
    **dict.fromkeys(
        (
            "tests/broker/test_connection.py",
            "tests/broker/test_least_rights.py",
            "tests/broker/test_roles.py",
        ),
        "secured",
    ),
    **dict.fromkeys(("tests/broker/test_local_pulsar.py", "tests/broker/test_profile.py"), "tuned"),
}
"""Files that share expensive resources: Spark, the built wheel, brokers of a kind. Each other file is its own lane."""
LONG = (PLANNER, WHEEL, "tests/broker/test_relay_service.py")
"""Lanes of several minutes."""
EVIDENCE = "evidence"  # the property of a test's report that contains a row
SEED_VARIABLE = "TIMEWHEEL_SEED"  # a seed in place of the test's own; or "random"

_skips = pytest.StashKey[list[str]]()
_kept = pytest.StashKey[Kept]()


def _folder(item: pytest.Item) -> str:
    """Return the test's folder; code blocks outside of tests/ belong to the docs."""
    path = item.path
    if not path.is_relative_to(ROOT / "tests"):
        return "docs"
    return path.relative_to(ROOT / "tests").parts[0]


def _lane(nodeid: str) -> str:
    """Return the lane of a test: tests of a lane run in the same process, and share its expensive resources."""
    path = nodeid.partition("::")[0]
    if path in LANES:
        return LANES[path]
    for folder in (PLANNER, CHAOS, INBOX):
        if path.startswith(f"tests/{folder}/"):
            return folder
    return path


class _Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns lanes to free processes; each lane runs in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _lane(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Lanes:
    return _Lanes(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("timewheel")
    group.addoption("--real", action="store_true", help="on a real broker also what else runs on a virtual one")
    group.addoption("--proofs", action="store_true", help="run the proofs, which are long, and nothing else")
    group.addoption(
        "--seeds", type=int, default=1, metavar="COUNT", help="how many seeds each seeded proof is played by"
    )
    group.addoption(
        "--share",
        metavar="NUMBER/SHARES",
        help="run the proofs of one share of the files, as CI does: 1/8 to 8/8",
    )
    group.addoption(
        "--evidence",
        type=Path,
        metavar="FILE",
        help="write the results of the proofs into this page, their rows beside it",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_kept].close()  # a run that is interrupted in a test does not reach the end of its lane


def _is_proof(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("proof", "short"))


def _is_in_share(item: pytest.Item, share: str | None) -> bool:
    """Return whether a test belongs to a share: whole files do, since their tests share expensive resources."""
    if share is None:
        return True
    number, shares = map(int, share.split("/"))
    return zlib.crc32(item.path.name.encode()) % shares == number % shares


def _is_property(item: pytest.Item) -> bool:
    """Return whether a test belongs to the core and draws many examples: the tables run first, so that a slip shows
    within seconds.
    """
    return _folder(item) == CORE and hasattr(getattr(item, "obj", None), "hypothesis")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is an ``async def`` on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in asked}))
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("proofs") and "seed_number" in metafunc.fixturenames:
        numbers = range(1, int(metafunc.config.getoption("seeds") or 1) + 1)
        metafunc.parametrize("seed_number", numbers, ids=[f"seed{number}" for number in numbers])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Either the proofs or all other tests, even if a proof is named by its node id: no long test runs by accident.
    wanted = bool(config.getoption("proofs"))
    by_kind: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        by_kind[_is_proof(item)].append(item)
    chosen = [item for item in by_kind[wanted] if _is_in_share(item, config.getoption("share"))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen
    for item in items:
        folder = _folder(item)
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: put tests/{folder} in FOLDERS of tests/conftest.py, by its cost")
        item.add_marker(folder)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # In parallel: the longest lanes start first, so that they do not prolong the end of the run.
        items.sort(key=lambda item: (_lane(item.nodeid) not in LONG, -FOLDERS.index(_folder(item))))
    else:
        items.sort(key=lambda item: (FOLDERS.index(_folder(item)), _is_property(item)))


# No deadline: a shared machine stalls for longer than any pure function takes. A failure prints how to replay it.
settings.register_profile(
    "timewheel", parent=settings.get_profile(settings.get_current_profile_name()), deadline=None, print_blob=True
)
settings.load_profile("timewheel")


# In CI a skipped test is a test that did not run: its result is unknown, so the run must not be green.


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skips] = []
    config.stash[_kept] = Kept()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers report to the process that started them
        config.pluginmanager.register(_EvidenceWatch(Ledger(config.getoption("evidence"))), "timewheel-evidence-watch")
    config.pluginmanager.register(_SkipWatch(config.stash[_skips]), "timewheel-skip-watch")


class _SkipWatch:
    """Collects the skips; a plugin object, because report hooks do not receive the configuration."""

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
    """Stores the results of proofs that passed; from the reports, since these may come from other processes."""

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
    """Start resources that the tests of a lane share, and end them with the lane."""
    return request.config.stash[_kept]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> distribution.Distribution:
    """Build the sdist and the wheels of this checkout, once per run."""
    return distribution.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def clean_python(built: distribution.Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with only the built wheel and what its command needs."""
    return distribution.install(built.wheel, tmp_path_factory.mktemp("clean") / "venv", extras="[cli]")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Share a Spark session in the whole run: starting Java takes longer than any test of the planner."""
    # Imported here: a run without these tests needs no PySpark. If it is missing, they fail like the planner itself.
    from tests.support.spark import shared_session

    with shared_session() as session:
        yield session


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[object], None]:
    """Print past pytest's capturing: measurements are also of interest when a test passes."""

    worker = os.environ.get("PYTEST_XDIST_WORKER")

    def on_progress(line: object) -> None:
        with capsys.disabled():
            # A worker's standard output is discarded, and lines of the workers are interleaved.
            out = sys.stderr if worker else sys.stdout
            print(f"[{worker}] {line}" if worker else f"  {line}", file=out, flush=True)

    return on_progress


@pytest.fixture
def seed_number() -> int:
    """Number of the test's seed; proofs can have several."""
    return 1


@pytest.fixture
def seed(request: pytest.FixtureRequest, seed_number: int, say: Callable[[object], None]) -> int:
    """Return the test's seed, and print it with the command that replays it."""
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
    """Type of the fixture `evidence`."""

    def __call__(
        self, proof: str, figures: Mapping[str, object], *, seed: int | None = None, on_broker: bool = True
    ) -> None:
        """Report the results; if the test passes, they are added to the page, if a page is given.

        Args:
            proof: The row's name.
            figures: By name.
            seed: Seed of the random choices; None: there are none.
            on_broker: False: the result does not depend on the broker's version.
        """


def _is_short(item: pytest.Item) -> bool:
    """Return whether CI also plays the test: marked so, or by an id, such as ``seed1-short``, as the short play of a
    long proof.
    """
    if item.get_closest_marker("short") is not None:
        return True
    return isinstance(item, pytest.Function) and hasattr(item, "callspec") and "short" in item.callspec.id.split("-")


@pytest.fixture
def evidence(request: pytest.FixtureRequest, say: Callable[[object], None]) -> Evidence:
    """Report the results of a proof for docs/evidence.md; results of short plays are printed but not stored."""

    def on_progress(
        proof: str, figures: Mapping[str, object], *, seed: int | None = None, on_broker: bool = True
    ) -> None:
        pulsar = version_asked_for() if on_broker else None
        on = f"{processor()}, load {load()}"
        row = Row.of(proof, seed=seed, pulsar=pulsar, figures=figures, machine=on)
        say(f"{row.proof}: {row.text}")
        if request.node.get_closest_marker("proof") is not None and not _is_short(request.node):
            request.node.user_properties.append((EVIDENCE, asdict(row)))

    return on_progress
