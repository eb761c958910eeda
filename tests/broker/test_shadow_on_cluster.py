"""A shadow on a cluster goes on while a broker hangs that serves none of its topics, but owns a name of theirs.

Questions about a partitioned topic as a whole go to the owner of the name without a partition.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.shadow_stage import moved, shadow_plan, staged
from timewheel.broker.protocol.dialing import Dialer
from timewheel.testing import LocalCluster, eventually

pytestmark = pytest.mark.short

FROZEN, SERVING = "broker-1", "broker-2"
DUE_AFTER_MS = 30_000
MOVED_WITHIN_S = 20  # less than the time-out of one request, in which nothing was moved


def test_a_mover_moves_on_while_the_first_host_of_its_url_is_frozen(cluster: LocalCluster) -> None:
    others = ",".join(cluster.service_url.removeprefix("pulsar://").split(",")[1:])
    healthy: Any = SimpleNamespace(service_url=f"pulsar://{others}", admin_url=cluster.admin_urls[SERVING])
    with staged(healthy, shadow_plan()) as on:
        on.dialer = Dialer(cluster.service_url)
        topics, name = on.admin.topics.list("public/default"), on.names.journal
        while cluster.bundle(name) in map(cluster.bundle, topics):
            cluster.split(name)
        cluster.move(name, to=FROZEN)
        for topic in topics:
            cluster.move(topic, to=SERVING)
        shadow = on.shadow()
        consumer = on.plain_consumer()
        on.send(range(5), due_ms=now_ms() + DUE_AFTER_MS)
        eventually(lambda: moved(shadow) == 5, MOVED_WITHIN_S)

        cluster.freeze(FROZEN)
        for part in on.parts():
            on.admin.topics.unload(part)
        on.send(range(5, 50), due_ms=now_ms() + DUE_AFTER_MS)
        try:
            eventually(lambda: moved(shadow) == 50, MOVED_WITHIN_S)
        except AssertionError as error:
            served = {part: cluster.owner(part) for part in on.parts()}
            raise AssertionError(f"{shadow.shadow_status()}; topics: {served}") from error
        eventually(lambda: len(consumer.handled) == 50, 2 * DUE_AFTER_MS / 1_000)
