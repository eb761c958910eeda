"""Fixtures for pytest, there as soon as timewheel is installed (entry point `pytest11`).

- `pulsar_broker`: one broker for the whole run; `$TIMEWHEEL_TEST_BROKER` chooses it (`container`, `local`, or a service
  URL), see `timewheel.testing.pulsar_service`.
- `pulsar_client`: a `pulsar.Client` connected to it.
- `make_local_pulsar`: a factory of brokers of one test's own, to configure, kill, freeze and restart; always local.

`--pulsar-version` chooses the version of them all, but of a given broker. Where no broker can be had, tests are skipped
with the reason. They fail if the environment says `CI=true`, because a run in CI that tested nothing must not be green,
and those of `pulsar_broker` also where `$TIMEWHEEL_TEST_BROKER` asks for a broker.
"""

# ruff: noqa: PLC0415 - pytest loads this module in every run where timewheel is installed: what costs comes inside
from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from timewheel.testing.choice import BROKER_VARIABLE
from timewheel.testing.settings import VERSION_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timewheel.testing.local_pulsar import LocalPulsar
    from timewheel.testing.service import Broker

_version_before = pytest.StashKey[str | None]()


class MakeLocalPulsar(Protocol):
    """What the fixture `make_local_pulsar` gives."""

    def __call__(self, *, config: dict[str, str] | None = None) -> LocalPulsar:
        """Start one more broker; it is stopped at the end of the test."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--pulsar-version`."""
    parser.getgroup("timewheel").addoption(
        "--pulsar-version",
        metavar="VERSION",
        help=f"the Pulsar to test on (default: ${VERSION_VARIABLE}, else the LTS line)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hand the version on by the environment, so that subprocesses of a test use it too."""
    version = config.getoption("--pulsar-version")
    if version:
        config.stash[_version_before] = os.environ.get(VERSION_VARIABLE)
        os.environ[VERSION_VARIABLE] = version


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the environment back as it was."""
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
            broker = stack.enter_context(pulsar_service(progress=_teller(request.config)))
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
    """A factory of brokers that belong to one test alone."""
    from timewheel.testing.local_pulsar import LocalPulsar

    with ExitStack() as stack:

        def make(*, config: dict[str, str] | None = None) -> LocalPulsar:
            with skipped_or_failed():
                return stack.enter_context(LocalPulsar(config=config, progress=_teller(request.config)))

        yield make


@contextmanager
def skipped_or_failed(*, asked_for: bool = False) -> Iterator[None]:
    """Skip the test if no broker can be had; fail it in CI, and where the broker was asked for by name."""
    from timewheel.testing.errors import BrokerUnavailable

    try:
        yield
    except BrokerUnavailable as error:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"no Pulsar, and this is CI: {error}", pytrace=False)
        if asked_for:
            pytest.fail(f"no Pulsar, and {BROKER_VARIABLE} asks for one: {error}", pytrace=False)
        pytest.skip(f"no Pulsar: {error}")


def _teller(config: pytest.Config) -> Callable[[str], None]:
    """Print at once, past pytest's capturing: a first download takes a minute, and silence looks like a hang."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            sys.stderr.write(f"\n{line}\n")
            sys.stderr.flush()

    return tell
