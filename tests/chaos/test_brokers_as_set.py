"""A broker set as in production: every scheme keeps its promises through unloads and kills of the broker.

Small buckets and small ledgers make the bucket tracker (PIP-195) store, load and delete snapshots all the time; with
its defaults, 50,000 messages a bucket, a play would meet none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import httpx
import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_ledger import Handled, now_ms
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import QUICK_TAKEOVER
from tests.support.chaos_verdict import judge, keeps_every_promise
from tests.support.own_broker import BUCKETS
from timewheel.core.plan import Calendar, Native, Ring, Scheme, Tiered, Wheel
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.testing.admin_calls import unload_all_namespaces
from timewheel.testing.plugin import MakeLocalPulsar

AS_SET = {
    **BUCKETS,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "unblockStuckSubscriptionEnabled": "true",
    "allowAutoTopicCreation": "false",
    "defaultRetentionTimeInMinutes": "2880",  # a broker starts only if it retains more than the quotas allow
    "defaultRetentionSizeInMB": "2048",
    "backlogQuotaDefaultLimitBytes": str(1 << 30),
    "backlogQuotaDefaultLimitSecond": "86400",
    "backlogQuotaDefaultRetentionPolicy": "producer_exception",
}
OF_SETTINGS = {"pauses-at-the-limit", "tracker-merges", "tracker-stands-still", "quota-blocks", "kept-for-ever"}
"""The doctor's findings that such settings may have."""
SCHEMES: Mapping[str, Scheme] = {
    "tiers": Tiered(window_ms=3_000, tiers_ms=(2_000, 6_000)),
    "wheel": Wheel(rings=(Ring(slot_ms=3_000, slots=20),)),
    "calendar": Calendar(interval_ms=30_000),
    "held": Tiered(window_ms=3_000, tiers_ms=(3_000, 12_000), hold="broker"),
    "native": Native(),
}
TRAFFIC = Traffic(burst=8, every_s=0.5, shortest_ms=5_000, longest_ms=20_000)
GUARD_MS = 3_000
ROUNDS = 6
LEAST_IN_FLIGHT = 500
RECOVERY_TIMEOUT_S = 240.0
DRAIN_TIMEOUT_S = 120.0
OPERATION = re.compile(r'^pulsar_\w+_bucket_op_count\{.*subscription=.*"succeed".*type="(\w+)".*\} ([\d.]+)')


def snapshots(admin_url: str) -> Counter[str]:
    """Count the snapshots that were created, loaded, merged and deleted since the topics were loaded, on all topics."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{admin_url}/metrics/", timeout=60).raise_for_status().text.splitlines():
        if (match := OPERATION.match(line)) is not None:
            found[match[1]] += int(float(match[2]))
    return found


@pytest.mark.proof
@pytest.mark.timeout(1_200)
def test_every_scheme_keeps_its_promises_on_a_broker_with_buckets_quotas_and_retention(
    make_local_pulsar: MakeLocalPulsar, stage: MakeStage
) -> None:
    broker = make_local_pulsar(config={**QUICK_TAKEOVER, **AS_SET})
    stages = {
        name: stage(scheme, broker=broker, guard_ms=GUARD_MS, partitions=2, max_delay_ms=40_000)
        for name, scheme in SCHEMES.items()
    }
    posts = [on.consumer(name, embedded=True) for name, on in stages.items()]
    for post in posts:
        post.start()
    loads = {name: on.load(TRAFFIC, name=f"{name}-") for name, on in stages.items()}
    on = stages["native"]
    play = on.conductor([*loads.values()], steady=posts)
    done: Counter[str] = Counter()

    def go_on() -> None:
        """Until every scheme has handled a timer that fell due after this call."""
        begin, begin_ms = len(play.events), now_ms()

        def again() -> set[str]:
            handled = (event for event in play.events[begin:] if isinstance(event, Handled))
            return {event.timer_id.rpartition("-")[0] for event in handled if event.due_ms > begin_ms}

        play.calm(lambda: again() == loads.keys(), RECOVERY_TIMEOUT_S, "every scheme delivers")
        with suppress(httpx.HTTPError):  # a busy broker gives up its metrics
            done.update(snapshots(broker.admin_url))

    play.calm(lambda: play.in_flight >= LEAST_IN_FLIGHT, RECOVERY_TIMEOUT_S, "timers in flight")
    for _ in range(ROUNDS):
        go_on()
        unload_all_namespaces(broker.admin_url)
        go_on()
        broker.kill()
        broker.start()
    go_on()
    for on in stages.values():
        found = {one.slug for one in verdict_on(inspect_plan(on.admin, on.plan, target="plan.toml")).findings}
        assert found & OF_SETTINGS == {"pauses-at-the-limit"}
    on.drain(play, [*loads.values()], DRAIN_TIMEOUT_S)
    verdict = judge({key: sent for load in loads.values() for key, sent in load.sent.items()}, play.events)
    on.say(f"{verdict}; snapshots {dict(done)}")
    if verdict.totals.lost:
        for name, load in loads.items():
            on.say(stages[name].whereabouts(play, load))
    keeps_every_promise(verdict, copies=False)
    assert min(done[kind] for kind in ("create", "load", "delete")) > 0, done
    figures = {"kills": ROUNDS, "unloads": ROUNDS, "timers": verdict.totals.acknowledged, "lost": 0, "early": 0}
    on.evidence("a broker with buckets, quotas and retention", {**figures, "handled twice": 0})
