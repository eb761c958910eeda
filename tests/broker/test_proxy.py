"""A Pulsar proxy with TLS and tokens before two brokers without TLS: all works, and goes on when one was killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.broker.due_topic import Handled, now_ms, running
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import PlainConsumer, shadow_plan
from tests.support.certificates import make_authority, make_identity
from tests.support.command_line import timewheel, well
from tests.support.pulsar_proxy import ROLE, pulsar_proxy
from tests.support.tokens import SECURED_SETTINGS, token_for
from timewheel.broker.admin import AdminClient
from timewheel.cli.connecting import Access
from timewheel.consumers import DelayedConsumer
from timewheel.core.connection_file import load_connection
from timewheel.core.names import partition_topic
from timewheel.core.planfile import save_plan
from timewheel.producers import DelayedProducer
from timewheel.testing import LocalCluster, eventually
from timewheel.testing.plugin import MakeLocalCluster, skipped_or_failed

DELAYS_S = (1, 3, 6)  # delayed by the broker, held once, held twice
SHADOWED_AFTER_S = 8  # a plain message is due by so much later, so that the shadow moves it, on a busy machine too
SESSION_TIMEOUT_S = 10.0
WITHIN_S = 120  # on a busy machine; 6 to 15 s otherwise


@pytest.fixture
def cluster(make_local_cluster: MakeLocalCluster) -> LocalCluster:
    return make_local_cluster(brokers=2, bookies=1, session_timeout_s=SESSION_TIMEOUT_S, config=SECURED_SETTINGS)


@pytest.fixture
def connection(cluster: LocalCluster, tmp_path: Path) -> Iterator[Path]:
    """The file of a connection through a proxy, as the administrator of a tenant, which the proxy's role is, too."""
    with AdminClient(cluster.admin_url, token=token_for("admin")) as root:
        root.tenants.create("proxied", admin_roles=["ops", ROLE])
    (metadata,) = re.findall("^metadataStoreUrl=(.*)", (cluster.folder / "broker-1.conf").read_text(), re.MULTILINE)
    behind = {"metadataStoreUrl": metadata, "configurationMetadataStoreUrl": metadata}
    authority = make_authority(tmp_path)
    with skipped_or_failed(), pulsar_proxy(tmp_path, make_identity(tmp_path, authority, "proxy"), behind) as proxy:
        urls = {"service_url": proxy.service_url, "admin_url": proxy.admin_url}
        known = {**urls, "tls_trust_certs_file_path": authority.certificate_path, "token": token_for("ops")}
        file = tmp_path / "connection.toml"
        file.touch(mode=0o600)
        file.write_text(tomli_w.dumps({"connection": known}))
        yield file


class Traffic:
    """Timers, and messages of a plain client, and which of them were handled."""

    def __init__(self, producer: DelayedProducer, plain: Any, handled: Handled, consumer: PlainConsumer) -> None:
        self._producer, self._plain, self._handled, self._consumer = producer, plain, handled, consumer
        self._names: set[str] = set()

    def send(self) -> None:
        for delay_s in DELAYS_S:
            name, due_ms = str(len(self._names)), now_ms() + 1_000 * (delay_s + SHADOWED_AFTER_S)
            self._producer.send(b"", deliver_after=timedelta(seconds=delay_s), timer_id=name)
            self._plain.send(f"{name} {due_ms}".encode(), deliver_at=due_ms)
            self._names.add(name)

    def is_handled(self) -> bool:
        assert (self._names - self._handled.times.keys(), self._names - self._consumer.handled.keys()) == (set(), set())
        return True


@pytest.mark.short
@pytest.mark.timeout(600)
def test_all_work_through_a_proxy_and_go_on_when_a_broker_behind_it_was_killed(
    cluster: LocalCluster, connection: Path, tmp_path: Path
) -> None:
    plan_file, shadow_file = tmp_path / "timers.toml", tmp_path / "plan.toml"
    plan = replace(plan_of(), due_topic="persistent://proxied/n/timers")
    shadowed = replace(shadow_plan(), due_topic="persistent://proxied/n/shadowed")
    save_plan(plan, plan_file)
    save_plan(shadowed, shadow_file)

    def command(*words: object) -> str:
        return well(timewheel(*words, "--connection", connection)).stdout

    command("topics", "ensure", plan_file, "--create-namespaces")
    command("topics", "ensure", shadow_file)
    command("shadow", "start", shadow_file)
    access, handled = Access(load_connection(connection), ()), Handled()
    with (
        RelayProcess(cluster, shadowed, tmp_path, connection=connection, kind="shadow") as shadow,
        access.client(plan.due_topic) as client,
        DelayedProducer(client, plan) as producer,
        running(DelayedConsumer(client, plan, BUSINESS), handled),
    ):
        consumer = PlainConsumer(client, shadowed.due_topic)
        traffic = Traffic(producer, client.create_producer(shadowed.due_topic), handled, consumer)
        shadow.await_ready()

        def moved() -> int:
            (mover,) = shadow.status()["relays"][0]["shadow"]["movers"]
            return int(mover["moved"])

        traffic.send()
        eventually(lambda: moved() > 0, WITHIN_S)
        owner = cluster.owner(partition_topic(plan.due_topic, 0))
        assert owner is not None
        cluster.kill(owner)
        traffic.send()
        cluster.start(owner)
        eventually(traffic.is_handled, WITHIN_S)
        before = moved()
        traffic.send()
        eventually(lambda: moved() > before, WITHIN_S)
        eventually(traffic.is_handled, WITHIN_S)
        assert (handled.early, set(handled.times.values())) == (0, {1})

        status = json.loads(command("status", plan_file, "--json"))
        assert (status["missing"], status["unseen"], len(status["relays"])) == ([], [], 1)
        doctor = json.loads(timewheel("doctor", plan_file, "--json", "--connection", connection).stdout)
        assert (doctor["topics"], doctor["errors"], doctor["is_blind"]) == (4, 0, False)
        consumer.close()
