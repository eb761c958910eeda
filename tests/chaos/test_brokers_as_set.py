"""A broker set as in production: every scheme keeps its promises through unloads and kills of the broker.

Small buckets and small ledgers make the bucket tracker (PIP-195) store, load and delete snapshots all the time; with
its defaults, 50,000 messages a bucket, a play would meet none.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping

import httpx
import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import QUICK_TAKEOVER
from tests.support.chaos_verdict import times_handled_and_never_early
from timewheel.core.plan import Calendar, Native, Ring, Scheme, Tiered, Wheel
from timewheel.testing.admin_calls import unload_all_namespaces
from timewheel.testing.evidence.ledger import check
from timewheel.testing.plugin import MakeLocalPulsar

BUCKETS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "2",
    "managedLedgerMaxEntriesPerLedger": "30",  # a bucket is stored when the next ledger begins
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
AS_SET = {
    **BUCKETS,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "allowAutoTopicCreation": "false",
    "defaultRetentionTimeInMinutes": "2880",  # a broker starts only if it retains more than the quotas allow
    "defaultRetentionSizeInMB": "2048",
    "backlogQuotaDefaultLimitBytes": str(1 << 30),
    "backlogQuotaDefaultLimitSecond": "86400",
    "backlogQuotaDefaultRetentionPolicy": "producer_exception",
}
SCHEMES: Mapping[str, Scheme] = {
    "tiers": Tiered(window_ms=3_000, tiers_ms=(2_000, 6_000)),
    "wheel": Wheel(rings=(Ring(slot_ms=3_000, slots=20),)),
    "calendar": Calendar(interval_ms=30_000),
    "broker-held tiers": Tiered(window_ms=3_000, tiers_ms=(3_000, 12_000), hold="broker"),
    "native": Native(),
}
TRAFFIC = Traffic(burst=15, every_s=0.5, shortest_ms=5_000, longest_ms=20_000)
GUARD_MS = 3_000
ROUNDS = 8
LEAST_IN_FLIGHT = 200
TIMEOUT_S = 120.0
AFTER_FAULT_S = 6.0
OPERATION = re.compile(r'^pulsar_delayed_message_index_bucket_op_count\{.*state="succeed".*type="(\w+)".*\} ([\d.]+)')


def snapshots(admin_url: str) -> Counter[str]:
    """Count the snapshots that were created, loaded, merged and deleted since the last call, on all topics."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{admin_url}/metrics/", timeout=60).raise_for_status().text.splitlines():
        if (match := OPERATION.match(line)) is not None:
            found[match[1]] += int(float(match[2]))
    return found


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_every_scheme_keeps_its_promises_on_a_broker_with_buckets_quotas_and_retention(
    make_local_pulsar: MakeLocalPulsar, stage: MakeStage
) -> None:
    broker = make_local_pulsar(config={**QUICK_TAKEOVER, **AS_SET})
    stages = {
        name: stage(scheme, broker=broker, guard_ms=GUARD_MS, partitions=2, max_delay_ms=40_000)
        for name, scheme in SCHEMES.items()
    }
    posts = {name: on.consumer(name.replace(" ", "-"), embedded=True) for name, on in stages.items()}
    for post in posts.values():
        post.start()
    loads = {name: on.load(TRAFFIC) for name, on in stages.items()}
    plays = {name: on.conductor(loads[name], steady=[posts[name]]) for name, on in stages.items()}

    def go_on(seconds: float) -> None:
        until = time.monotonic() + seconds
        for play in plays.values():
            play.calm(lambda: time.monotonic() >= until, TIMEOUT_S, "time with the load")

    for name, play in plays.items():
        play.calm(lambda play=play: play.in_flight >= LEAST_IN_FLIGHT, TIMEOUT_S, name)  # type: ignore[misc]
    go_on(AFTER_FAULT_S)
    done = snapshots(broker.admin_url)
    for _ in range(ROUNDS):
        unload_all_namespaces(broker.admin_url)
        go_on(AFTER_FAULT_S)
        broker.kill()
        broker.start()
        go_on(AFTER_FAULT_S)
    for name, on in stages.items():
        on.drain(plays[name], loads[name], TIMEOUT_S)
    stages["native"].say(f"snapshots {dict(done)}")
    for name, on in stages.items():
        load = loads[name]
        totals = check(
            attempted=load.sent,
            acknowledged=load.confirmed(),
            handled=times_handled_and_never_early(plays[name].events),
        )
        on.say(f"{name}: {totals}")
        assert (totals.lost, totals.duplicated, totals.unexpected) == (0, 0, 0), (totals, on.backlogs())
        figures = {"faults": 2 * ROUNDS, "timers": totals.acknowledged, "lost": 0, "handled twice": 0, "early": 0}
        on.evidence(f"a broker with buckets, quotas and retention: {name}", figures)
    assert min(done[kind] for kind in ("create", "load", "delete")) > 0, done
