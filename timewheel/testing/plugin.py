"""Fixtures for pytest, available as soon as timewheel is installed (entry point `pytest11`).

- `pulsar_broker`: a broker for the whole run; `$TIMEWHEEL_TEST_BROKER` chooses it (`container`, `local`, or a service
  URL), see `timewheel.testing.pulsar_service`.
- `pulsar_client`: a `pulsar.Client` connected to it.
- `make_local_pulsar`: a factory of brokers for a single test, to configure, kill, freeze and restart; always local.
- `make_local_cluster`: a factory of clusters for a single test, to kill, freeze and restart nodes by name.
- `virtual_pulsar`: a Pulsar inside the test, on a clock that jumps (`timewheel.testing.virtual`).

`--pulsar-version` chooses the version of all brokers except a given broker. If no broker can be had, tests are skipped
with the reason. They fail instead if the environment has `CI=true`, because a CI run without tests must not be green.
Tests with `pulsar_broker` also fail if `$TIMEWHEEL_TEST_BROKER` asks for a broker.
"""

# ruff: noqa: PLC0415 - pytest loads this module in every run with timewheel installed: slow imports are inside
# functions
from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from timewheel.testing.settings import BROKER_VARIABLE, VERSION_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timewheel.testing.local_cluster import LocalCluster
    from timewheel.testing.local_pulsar import LocalPulsar
    from timewheel.testing.service import Broker
    from timewheel.testing.virtual import VirtualPulsar

_version_before = pytest.StashKey[str | None]()


class MakeLocalPulsar(Protocol):
    """Type of the fixture `make_local_pulsar`."""

    def __call__(self, *, config: dict[str, str] | None = None) -> LocalPulsar:
        """Start another broker; it is stopped at the end of the test."""
        ...


class MakeLocalCluster(Protocol):
    """Type of the fixture `make_local_cluster`."""

    def __call__(self, **options: Any) -> LocalCluster:
        """Start a cluster with these arguments of `LocalCluster`; it is closed at the end of the test."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--pulsar-version`."""
    parser.getgroup("timewheel").addoption(
        "--pulsar-version",
        metavar="VERSION",
        help=f"the Pulsar to test on (default: ${VERSION_VARIABLE}, else the LTS line)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Pass the version on through the environment, so that subprocesses of a test use it too."""
    version = config.getoption("--pulsar-version")
    if version:
        config.stash[_version_before] = os.environ.get(VERSION_VARIABLE)
        os.environ[VERSION_VARIABLE] = version


def pytest_unconfigure(config: pytest.Config) -> None:
    if _version_before in config.stash:
        before = config.stash[_version_before]
        if before is None:
            os.environ.pop(VERSION_VARIABLE, None)
        else:
            os.environ[VERSION_VARIABLE] = before


@pytest.fixture(scope="session")
def pulsar_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A running broker, shared by the whole run: do not kill or reconfigure it."""
    from timewheel.testing.service import pulsar_service

    with ExitStack() as stack:
        with skipped_or_failed(asked_for=bool(os.environ.get(BROKER_VARIABLE))):
            broker = stack.enter_context(pulsar_service(progress=_reporter(request.config)))
        yield broker


@pytest.fixture(scope="session")
def pulsar_client(pulsar_broker: Broker) -> Iterator[Any]:
    """A `pulsar.Client` connected to `pulsar_broker`."""
    import pulsar

    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def make_local_pulsar(request: pytest.FixtureRequest) -> Iterator[MakeLocalPulsar]:
    """A factory of brokers that belong to a single test."""
    from timewheel.testing.local_pulsar import LocalPulsar

    with ExitStack() as stack:

        def make(*, config: dict[str, str] | None = None) -> LocalPulsar:
            with skipped_or_failed():
                return stack.enter_context(LocalPulsar(config=config, progress=_reporter(request.config)))

        yield make


@pytest.fixture
def make_local_cluster(request: pytest.FixtureRequest) -> Iterator[MakeLocalCluster]:
    """A factory of clusters that belong to a single test."""
    from timewheel.testing.local_cluster import LocalCluster

    with ExitStack() as stack:

        def make(**options: Any) -> LocalCluster:
            with skipped_or_failed():
                return stack.enter_context(LocalCluster(progress=_reporter(request.config), **options))

        yield make


@pytest.fixture
def virtual_pulsar() -> Iterator[VirtualPulsar]:
    """A Pulsar inside the test, on a clock that jumps. The test's threads live in its time."""
    from timewheel.testing.virtual import VirtualPulsar

    with VirtualPulsar() as virtual:
        yield virtual


@contextmanager
def skipped_or_failed(*, asked_for: bool = False) -> Iterator[None]:
    """Skip the test if no broker can be had; fail it in CI, and if the environment asks for a broker."""
    from timewheel.testing.errors import BrokerUnavailable

    try:
        yield
    except BrokerUnavailable as error:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"no Pulsar, and this is CI: {error}", pytrace=False)
        if asked_for:
            pytest.fail(f"no Pulsar, and {BROKER_VARIABLE} asks for one: {error}", pytrace=False)
        pytest.skip(f"no Pulsar: {error}")


def _reporter(config: pytest.Config) -> Callable[[str], None]:
    """Print at once, past pytest's capturing: a first download takes a minute, and silence looks like a hang."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")

    def on_progress(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            sys.stderr.write(f"\n{line}\n")
            sys.stderr.flush()

    return on_progress
