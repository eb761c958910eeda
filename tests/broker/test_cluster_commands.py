"""Commands on a cluster: the asked broker owns nothing, or gives no answer; or the owner is dead."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import Stage, plan_of
from tests.broker.shadow_stage import ShadowStage, moved, shadow_plan, staged
from tests.support.command_line import timewheel
from tests.support.kept import Kept
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import MESSAGE_TTL_S
from timewheel.core.durations import HOUR_MS
from timewheel.core.envelope import Envelope
from timewheel.core.errors import OWNER_DIED, OwnerUnreachable
from timewheel.core.names import namespace_of
from timewheel.core.plan import Calendar, Cancel, Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.producers import DelayedProducer
from timewheel.shadow.shadow import Shadow
from timewheel.testing import LocalCluster, eventually

pytestmark = [pytest.mark.short, pytest.mark.timeout(300)]

ASKED, OWNER = "broker-1", "broker-2"
SCHEME = Tiered(window_ms=60_000, tiers_ms=(60_000, 600_000))
FAR: dict[str, Any] = {"guard_ms": 90_000, "max_delay_ms": 24 * HOUR_MS}
TIMERS, DEAD, PLAIN = 40, 5, 10
SETTLE_S = 60.0
ENDS_WITHIN_S = 25.0
"""Bound of a command on a busy machine; a single call to a host that hangs would take 30 s."""
FACTS: Mapping[str, Mapping[str, object]] = {
    "ensure": {"steps": [], "findings": []},
    "gaps": {"level": "ok", "topics": 12, "unseen": []},
    "explain": {"subscription": "billing", "gaps": 0, "holes": 0},
    "doctor": {"topics": 7, "errors": 1, "warnings": 0},  # no relay runs
    "status": {"timers": {"count": TIMERS, "error": 0}},
    "whereis": {"state": "held"},
    "cancellations": {"live": 1},
    "dead letters": {"inspected": DEAD},
    "sample": {"rows": TIMERS, "population": TIMERS, "unread": 0},
    "shadow status": {"state": "shadowing"},
    "shadow verify": {"is_balanced": True},
}
"""Facts of a command's result, which do not change while a test runs."""


class Ended(NamedTuple):
    """A command that has ended."""

    name: str
    output: str
    is_right: bool
    took_s: float


class Setup:
    """A plan with timers, dead letters and a cancellation, and a topic with a shadow at work; one broker owns all."""

    def __init__(self, cluster: LocalCluster, on: Stage, shadowed: ShadowStage, shadow: Shadow, folder: Path) -> None:
        self.cluster, self.on, self.shadow = cluster, on, shadow
        self._plain = shadowed.plain_producer()
        plan, own, sample = str(folder / "plan.toml"), str(folder / "shadow.toml"), str(folder / "sample.parquet")
        save_plan(on.plan, Path(plan))
        save_plan(shadowed.plan, Path(own))
        self._words: Mapping[str, Sequence[str]] = {
            "ensure": ("topics", "ensure", plan),
            "gaps": ("gaps", plan),
            "explain": ("gaps", "explain", on.plan.due_topic),
            "doctor": ("doctor", plan),
            "status": ("status", plan),
            "whereis": ("whereis", plan, "t1", "--sent-at", str(now_ms()), "--within", "1h"),
            "cancellations": ("cancellations", "list", plan),
            "dead letters": ("dead-letters", "list", plan),
            "sample": ("sample", on.tiers[0], "-o", sample),
            "shadow status": ("shadow", "status", own),
            "shadow verify": ("shadow", "verify", own),
        }
        with DelayedProducer(on.client, on.plan) as producer:
            for number in range(TIMERS):
                producer.send(b"x", deliver_at=now_ms() + 3 * HOUR_MS, timer_id=f"t{number}")
            producer.cancel("t0")
        for number in range(DEAD):
            on.put(on.names.dead_letter, Envelope(f"d{number}", now_ms(), now_ms()))
        on.flush()
        self.await_moves()
        eventually(lambda: self.run("shadow verify", cluster.admin_url).is_right, SETTLE_S)

    def await_moves(self) -> None:
        """Send messages of a plain producer and wait until the shadow has moved as many."""
        before = moved(self.shadow)
        for _ in range(PLAIN):
            self._plain.send(b"x", deliver_at=now_ms() + 3 * HOUR_MS)
        eventually(lambda: moved(self.shadow) == before + PLAIN, SETTLE_S, message="moves of the shadow")

    def run(self, name: str, admin_url: str) -> Ended:
        began_s = time.monotonic()
        done = timewheel(*self._words[name], "--admin-url", admin_url, "--json")
        found = json.loads(done.stdout) if done.stdout else {}
        is_right = {one: found.get(one) for one in FACTS[name]} == FACTS[name]
        return Ended(name, done.stdout + done.stderr, is_right, time.monotonic() - began_s)

    def wrong(
        self, admin_url: str, say: Callable[[object], None] = lambda _: None, *, within_s: float = SETTLE_S
    ) -> list[Ended]:
        """Run all commands and return those whose results are wrong."""
        with ThreadPoolExecutor(4) as pool:
            ended = list(pool.map(lambda name: self.run(name, admin_url), FACTS))
        say({one.name: f"{one.took_s:.1f} s" for one in ended})
        assert max(one.took_s for one in ended) < within_s
        return [one for one in ended if not one.is_right]


def within(namespace: str, plan: Plan) -> Plan:
    return replace(plan, due_topic=f"persistent://{namespace}/{plan.due_topic.rpartition('/')[2]}")


@contextmanager
def made(cluster: LocalCluster, folder: Path) -> Iterator[Setup]:
    with AdminClient(cluster.admin_url) as admin:  # one bundle: a broker serves all of it
        admin.namespaces.create(namespace := f"public/commands-{uuid.uuid4().hex[:8]}", bundles=1)
    plan = within(namespace, plan_of(SCHEME, partitions=2, cancel=Cancel(), **FAR))
    with Stage(cluster, plan) as on, staged(cluster, within(namespace, shadow_plan(SCHEME, **FAR))) as shadowed:
        yield Setup(cluster, on, shadowed, shadowed.shadow(), folder)


@pytest.fixture
def setup(cluster: LocalCluster, kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    found = kept.get("commands", lambda: made(cluster, tmp_path_factory.mktemp("commands")))
    cluster.move(found.on.plan.due_topic + "-partition-0", to=OWNER)
    return found


def test_a_broker_that_owns_nothing_gives_right_results_and_carries_out_writes(setup: Setup) -> None:
    assert not setup.wrong(setup.cluster.admin_urls[ASKED])
    topic = f"persistent://{namespace_of(setup.on.plan.due_topic)}/anew"
    with AdminClient(setup.cluster.admin_urls[ASKED]) as asked, AdminClient(setup.cluster.admin_urls[OWNER]) as owner:
        assert (asked.topics.create(topic, 2), asked.subscriptions.create(topic, "s")) == (True, True)
        asked.topic_policies.set(topic, MESSAGE_TTL_S, 77)
        asked.topics.update_properties(topic, {"made-by": "another"})
        assert owner.topic_policies.get(topic, MESSAGE_TTL_S) == 77
        assert owner.topics.properties(topic)["made-by"] == "another"
        assert owner.topics.stats(f"{topic}-partition-1").subscriptions.keys() == {"s"}
        assert asked.topics.delete(topic)
        assert owner.topics.partitions(topic) is None


@contextmanager
def rolling(setup: Setup, admin_url: str, folder: Path) -> Iterator[Callable[[], set[str]]]:
    """Roll a calendar until the block ends, and give what lists its topics."""
    namespace = namespace_of(setup.on.plan.due_topic)
    plan = within(namespace, plan_of(Calendar(interval_ms=4_000), max_delay_ms=8_000, guard_ms=0))
    save_plan(plan, folder / "calendar.toml")
    words = ("topics", "roll", str(folder / "calendar.toml"), "--watch", "--json", "--admin-url", admin_url)
    with AdminClient(setup.cluster.admin_urls[OWNER]) as admin:

        def topics() -> set[str]:
            return {name for name in admin.topics.list_partitioned(namespace) if name.startswith(plan.due_topic)}

        with subprocess.Popen([sys.executable, "-m", "timewheel", *words], stdout=subprocess.DEVNULL) as roller:
            try:
                eventually(topics, SETTLE_S)
                yield topics
            finally:
                roller.terminate()
        assert roller.returncode == 0


@pytest.mark.parametrize("fault", [LocalCluster.kill, LocalCluster.freeze])
def test_while_the_first_host_gives_no_answer_the_next_one_is_asked(
    setup: Setup, fault: Callable[[LocalCluster, str], None], tmp_path: Path, say: Callable[[object], None]
) -> None:
    urls = setup.cluster.admin_url
    assert urls.startswith(setup.cluster.admin_urls[ASKED])
    with rolling(setup, urls, tmp_path) as topics:
        fault(setup.cluster, ASKED)
        before = topics()
        assert not setup.wrong(urls, say, within_s=ENDS_WITHIN_S)
        eventually(lambda: topics() - before, SETTLE_S, message="a new topic of the calendar")
        setup.await_moves()


def test_while_the_owner_is_dead_a_command_that_needs_it_names_it_and_says_when_to_try_again(
    setup: Setup, say: Callable[[object], None]
) -> None:
    cluster = setup.cluster
    hosts = [cluster.admin_urls[OWNER], cluster.service_url.split(",")[list(cluster.admin_urls).index(OWNER)]]
    with AdminClient(cluster.admin_url, retry_for_s=0) as admin:
        admin.brokers.version()  # connected, so that the owner's session has not timed out when it is asked for
        cluster.kill(OWNER)
        with pytest.raises(OwnerUnreachable, match=re.escape(OWNER_DIED)):
            admin.topics.stats(setup.on.tiers[0] + "-partition-0")
    for one in setup.wrong(cluster.admin_url, say):  # as long as no other broker serves its topics
        assert OWNER_DIED in one.output, one
        assert any(host.rpartition("/")[2] in one.output for host in hosts), one
