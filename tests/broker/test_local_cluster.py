"""LocalCluster is the real thing: brokers share topics, and each node can be killed, frozen and restarted by name."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

from tests.broker.conftest import Connect
from tests.support.checkout import ROOT
from tests.support.pages import blocks
from timewheel.testing import LocalCluster, eventually
from timewheel.testing.plugin import MakeLocalCluster

pytestmark = pytest.mark.short

SERVED_AGAIN_S = 60
"""Time-out until another broker serves a lost topic: the session's time-out and the client's back-off."""
RECEIVE_TIMEOUT_MS = 30_000


class Pair:
    """A producer and a consumer of one topic."""

    def __init__(self, client: Any, topic: str) -> None:
        self._consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        self._producer = client.create_producer(topic, send_timeout_millis=SERVED_AGAIN_S * 1_000)

    def carry(self, payload: bytes) -> bool:
        """Send a message and wait until it arrives; an earlier one may come again, as after each move."""
        self._producer.send(payload)
        data = None
        while data != payload:
            received = self._consumer.receive(RECEIVE_TIMEOUT_MS)
            self._consumer.acknowledge(received)
            data = received.data()
        return True


@pytest.fixture
def pair_on(connect: Connect) -> Callable[[LocalCluster, str], Pair]:
    return lambda cluster, topic: Pair(connect(cluster, operation_timeout_seconds=SERVED_AGAIN_S), topic)


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def test_the_extensible_load_manager_moves_and_splits_and_nothing_is_left_after_close(
    make_local_cluster: MakeLocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    cluster = make_local_cluster(brokers=2, bookies=1, load_manager="extensible")
    pair = pair_on(cluster, topic)
    for broker in cluster.admin_urls:
        cluster.move(topic, to=broker)
        assert cluster.owner(topic) == broker
    before = cluster.bundle(topic)
    assert cluster.split(topic) != before
    assert pair.carry(b"after all that")

    pids, folder = [cluster.pid(node) or 0 for node in cluster.nodes], cluster.folder
    cluster.freeze("bookie-1")
    cluster.close()
    assert gone(pids)
    assert not folder.exists()


OWNER = """
from timewheel.testing import LocalCluster
with LocalCluster(brokers=1, bookies=1) as cluster:
    print(cluster.folder, *(cluster.pid(node) for node in cluster.nodes), flush=True)
    input()
"""


def test_no_node_outlives_an_owner_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            folder, *pids = owner.stdout.readline().split()
        finally:
            owner.send_signal(signal.SIGKILL)
    assert len(pids) == 3
    eventually(lambda: gone([int(pid) for pid in pids]) and not Path(folder).exists())


def test_brokers_share_the_topics(cluster: LocalCluster, connect: Connect, topic: str) -> None:
    client = connect(cluster)
    topics = [f"{topic}-{number}" for number in range(12)]
    for each in topics:
        client.create_producer(each).send(b"x")
    assert len({cluster.owner(each) for each in topics}) > 1
    for each, broker in zip(topics, cluster.admin_urls, strict=False):
        cluster.move(each, to=broker)
        assert cluster.owner(each) == broker


def test_a_split_bundle_is_served(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    before = cluster.bundle(topic)
    assert cluster.split(topic) == cluster.bundle(topic) != before
    assert pair.carry(b"after the split")


def test_an_unloaded_topic_is_loaded_again(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    cluster.unload(topic)
    assert pair.carry(b"after the unload")


def test_another_broker_serves_the_topics_of_a_killed_broker_which_comes_back_with_its_ports(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    victim, urls = cluster.owner(topic), cluster.service_url
    assert victim is not None
    cluster.kill(victim)
    assert cluster.pid(victim) is None
    assert pair.carry(b"while its first broker is dead")
    assert cluster.owner(topic) not in {victim, None}
    with pytest.raises(RuntimeError, match=f"{victim} is down"):
        cluster.move(topic, to=victim)

    cluster.start(victim)
    assert cluster.service_url == urls
    cluster.move(topic, to=victim)
    assert pair.carry(b"on its first broker")


def test_a_frozen_broker_loses_its_topics_and_serves_again_once_thawed(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    victim = cluster.owner(topic)
    assert victim is not None
    cluster.freeze(victim)
    eventually(lambda: cluster.owner(topic) not in {victim, None}, SERVED_AGAIN_S)
    cluster.thaw(victim)
    assert pair.carry(b"after the thaw")
    cluster.move(topic, to=victim)
    assert pair.carry(b"on its first broker")


def test_a_broker_is_restarted_in_order_and_its_topics_are_served_meanwhile(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    broker = cluster.owner(topic)
    assert broker is not None
    before = cluster.pid(broker)
    cluster.stop(broker)
    assert pair.carry(b"while its broker is away")
    cluster.start(broker)
    assert cluster.pid(broker) not in {before, None}


def test_two_copies_on_three_bookies_are_written_while_a_bookie_is_away(
    cluster: LocalCluster, pair_on: Callable[[LocalCluster, str], Pair], topic: str
) -> None:
    pair = pair_on(cluster, topic)
    for bookie in ("bookie-1", "bookie-2", "bookie-3"):
        cluster.kill(bookie)
        assert pair.carry(f"without {bookie}".encode())
        cluster.start(bookie)


def test_the_page_about_testing_uses_it_so(cluster: LocalCluster) -> None:
    page = (ROOT / "docs" / "how-to" / "test-your-service.md").read_text(encoding="utf-8")
    *_, block = blocks(page, "python")
    names: dict[str, Any] = {}
    exec(block.content, names)
    names["test_a_producer_follows_its_topic"](lambda **_: cluster)
