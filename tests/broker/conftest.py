"""What all tests on a real broker share, on top of the fixtures of `timewheel.testing.plugin`."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pulsar
import pytest

from tests.broker.due_topic import MAX_UNACKED
from tests.broker.relay_stage import Stage, plan_of
from tests.broker.shadow_stage import ShadowStage, shadow_plan, staged
from tests.support.kept import Kept
from tests.support.own_broker import own_broker
from tests.support.secured import Secured, secured_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.testing import LocalCluster
from timewheel.testing.plugin import skipped_or_failed
from timewheel.testing.settings import BROKER_VARIABLE, BrokerKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.testing import Broker, LocalPulsar


NEEDS_DOCKER = "test_docker.py"  # the module of tests that need a Docker engine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that need Docker out of a CI that has none.

    By hand they are skipped with the reason where no engine answers. In CI a skip is a failure, and CI's machines have
    no engine: there, they belong to the run that asks for containers, and in that run a missing engine is a failure.
    They count as deselected, so that the summary shows that something was left out.
    """
    in_ci = os.environ.get("CI", "").lower() in {"1", "true"}
    if not in_ci or os.environ.get(BROKER_VARIABLE) == BrokerKind.CONTAINER.value:
        return
    left_out = [item for item in items if item.path.name == NEEDS_DOCKER]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


class Connect(Protocol):
    """What the fixture `connect` gives."""

    def __call__(self, broker: Broker, **options: Any) -> Any: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open raw clients, quiet ones, that are closed when the test ends."""
    with ExitStack() as stack:

        def open_client(broker: Broker, **options: Any) -> Any:
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pulsar.Client(broker.service_url, **{"logger": quiet, "operation_timeout_seconds": 20, **options})
            stack.callback(client.close)
            return client

        yield open_client


@pytest.fixture
def client(pulsar_broker: Broker, connect: Connect) -> Any:
    """A raw client of the test's own."""
    return connect(pulsar_broker)


@pytest.fixture(scope="module")
def admin(pulsar_broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(pulsar_broker.admin_url) as opened:
        yield opened


def new_tenant(admin: AdminClient) -> str:
    """Make a tenant, and return its name."""
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    assert admin.tenants.create(name)
    return name


@pytest.fixture(scope="module")
def tenant(admin: AdminClient) -> str:
    """A tenant of the module's own."""
    return new_tenant(admin)


@pytest.fixture
def namespace(admin: AdminClient, tenant: str) -> str:
    """A namespace of the test's own, so that what it lists is its own too."""
    name = f"{tenant}/n-{uuid.uuid4().hex[:8]}"
    assert admin.namespaces.create(name)
    return name


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[Stage]:
    """A plan of short tiers, provisioned."""
    with Stage(pulsar_broker, plan_of()) as made:
        yield made


@pytest.fixture
def on(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    """The topic of plain clients, on which a shadow is wanted."""
    with staged(pulsar_broker, shadow_plan()) as stage:
        yield stage


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own, so that one broker can serve all."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def mortal(kept: Kept) -> Iterator[LocalPulsar]:
    """A broker to be killed and frozen, which lives again when the test ends: with topics of each test's own."""
    broker = kept.get("mortal", lambda: own_broker({}))
    yield broker
    if broker.pid is None:
        broker.start()
    else:
        broker.resume()


@pytest.fixture
def undelaying(kept: Kept) -> LocalPulsar:
    """A broker that delays nothing, and hands out few messages at a time."""
    config = {"delayedDeliveryEnabled": "false", "maxUnackedMessagesPerConsumer": str(MAX_UNACKED)}
    return kept.get("undelaying", lambda: own_broker(config))


@pytest.fixture
def forgetful(kept: Kept) -> LocalPulsar:
    """A broker that keeps ten ranges of acknowledgements, and takes them for messages within a batch.

    It has no policies of topics either, which nobody misses but who asks for them.
    """
    config = {
        "topicLevelPoliciesEnabled": "false",
        "managedLedgerMaxUnackedRangesToPersist": "10",
        "managedLedgerPersistIndividualAckAsLongArray": "false",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    return kept.get("forgetful", lambda: own_broker(config))


@pytest.fixture
def tuned(kept: Kept) -> LocalPulsar:
    """A broker with limits of its own, which may be killed and restarted; it runs between the tests."""
    config = {
        "managedLedgerMaxUnackedRangesToPersist": "777",
        "managedLedgerPersistIndividualAckAsLongArray": "true",
        "managedLedgerMaxEntriesPerLedger": "1234",
        "managedLedgerMinLedgerRolloverTimeMinutes": "3",
        "delayedDeliveryTickTimeMillis": "250",
    }
    return kept.get("tuned", lambda: own_broker(config))


@pytest.fixture
def secured(kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """A broker where a token's role decides, and that speaks TLS; tenants are the tests' own."""
    return kept.get("secured", lambda: secured_broker(tmp_path_factory.mktemp("certificates")))


CLUSTER_SESSION_TIMEOUT_S = 6.0


@pytest.fixture
def cluster(kept: Kept) -> Iterator[LocalCluster]:
    """A cluster that the tests of its lane share; all its nodes run when a test ends."""

    def make() -> LocalCluster:
        return LocalCluster(session_timeout_s=CLUSTER_SESSION_TIMEOUT_S)

    with skipped_or_failed():
        shared = kept.get("cluster", make)
    yield shared
    for node in shared.nodes:
        shared.start(node)
        shared.thaw(node)
