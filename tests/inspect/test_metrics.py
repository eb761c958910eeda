"""Metrics as Prometheus reads them, of relays, gaps, plans and shadows."""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.inspect.test_gap_looks import Cluster, gap_status, snapshot_of, stats
from tests.support.plans import shadow_of
from timewheel.consumers import ConsumerCounts, Lateness
from timewheel.consumers.counts import BOUNDS_MS
from timewheel.core.durations import HOUR_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.events import HandlerFailed, SnapshotFailed, TokenExpired
from timewheel.hooks import Event
from timewheel.inspect.gaps.snapshot import GapHistory
from timewheel.metrics import CATALOGUE, Exporter, Metrics, metrics_page
from timewheel.metrics.catalogue import Sample, families, of_relay, of_snapshot
from timewheel.producers import ProducerCounts
from timewheel.producers.base_producer import Counters
from timewheel.relay.driver.source import PartitionState
from timewheel.relay.relay import PartitionStatus, RelayStatus
from timewheel.shadow.desired_state import State
from timewheel.shadow.machine.move_decider import MoveDecision
from timewheel.shadow.shadow import MoverStatus, ShadowStatus
from timewheel.testing import eventually

DUE = "persistent://public/default/due"
PLAN = Plan(due_topic=DUE, subscriptions=("billing",))

PARTITION = PartitionStatus(
    topic=f"{DUE}.tw.tier-1d-partition-0", state=PartitionState.HOLDING, connected=True, alive=True,
    head_release_ms=None, newest_release_ms=None, in_flight=2, in_flight_bytes=9, forwarded=10, late=3, dead=1,
    refiled=0, dropped=9, skipped=4, deduplicated=5, jumps=6, failures=7, entries=8, reason=None,
)  # fmt: skip
OF_BILLING = {"due_topic": DUE, "subscription": "billing"}


def scraped(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus would read."""
    text = metrics_page(registry)().body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"timewheel_{name}", frozenset(labels.items())


class Role:
    """Has what a collector reads of a producer, a consumer or a relay."""

    def __init__(self, counts: Any, status: RelayStatus | None = None) -> None:
        self.plan, self.subscription, self.counts, self.relay_status = PLAN, "billing", counts, status
        self.ready = True
        self.lateness = Lateness()

    def measure_lateness(self) -> Lateness:
        return self.lateness


def test_metrics_have_names_of_their_own_and_those_of_counters_say_so() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE) > 40
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in CATALOGUE)
    (family,) = families([Sample(CATALOGUE[0], (DUE,), 1)])
    assert (family.documentation, families([])) == (CATALOGUE[0].means, []), "one without a sample is absent"


def test_a_producers_counts_are_told_and_go_with_it() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    role: Any = Role(ProducerCounts(stored=5, refused=1, failed=2, unknown=3, pending=4))
    second: Any = Role(ProducerCounts(stored=10))
    metrics.watch_producer(role)
    metrics.watch_producer(second)

    found = scraped(registry)
    assert found[of("producer_stored_total", due_topic=DUE)] == 15, "two of one plan are told as one"
    assert found[of("producer_pending", due_topic=DUE)] == 4
    del role, second
    gc.collect()
    assert not [name for name, _ in scraped(registry) if "producer" in name]


def test_a_consumer_is_told_with_its_lateness_and_its_relay() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    status = RelayStatus(relay_id="r", ready=False, partitions=(PARTITION,), unreadable=("x",))
    role: Any = Role(ConsumerCounts(received=9, handed=7, already_handled=2, held=1), status)
    metrics.watch_consumer(role)
    for late_ms in (0, 1, 3, 10**9):
        role.lateness.add(late_ms)

    found, labels = scraped(registry), OF_BILLING
    assert found[of("consumer_ready", **labels)] == 1
    assert found[of("consumer_copies_dropped_total", **labels, why="already_handled")] == 2
    assert found[of("consumer_lateness_seconds_bucket", **labels, le="0.001")] == 2
    assert found[of("consumer_lateness_seconds_bucket", **labels, le="0.005")] == 3
    assert found[of("consumer_lateness_seconds_bucket", **labels, le="+Inf")] == 4
    assert found[of("consumer_lateness_seconds_count", **labels)] == 4
    assert found[of("consumer_lateness_seconds_sum", **labels)] == pytest.approx(1_000_000.004)
    assert found[of("relay_ready", due_topic=DUE, relay_id="r")] == 0
    assert found[of("relay_unreadable_topics", due_topic=DUE, relay_id="r")] == 1


def test_relays_and_shadows_of_a_service_are_asked_for_at_each_scrape() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    class Working(Role):
        def status(self) -> RelayStatus:
            return RelayStatus(relay_id="r", ready=True, partitions=(PARTITION,))

    relays: list[Any] = []
    shadows: list[OneShadow] = []
    metrics.watch_relays(lambda: relays)
    metrics.watch_shadows(lambda: shadows)
    told = {of("relay_ready", due_topic=DUE, relay_id="r"), of("shadow_moved_total", due_topic=DUE, relay_id="mover")}
    for is_working in (False, True, False):
        relays[:], shadows[:] = [Working(ConsumerCounts())] * is_working, [OneShadow(status_of(BUSY))] * is_working
        assert (told & scraped(registry).keys()) == (told if is_working else set())


def test_of_two_consumers_of_a_subscription_the_worse_readiness_is_told() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    well, ill = Role(ConsumerCounts(handed=1)), Role(ConsumerCounts(handed=2))
    ill.ready = False
    for role in (well, ill):
        metrics.watch_consumer(role)  # type: ignore[type-var]
        role.lateness.add(1)

    found, labels = scraped(registry), {"due_topic": DUE, "subscription": "billing"}
    assert found[of("consumer_ready", **labels)] == 0
    assert found[of("consumer_handed_total", **labels)] == 3
    assert found[of("consumer_lateness_seconds_count", **labels)] == 2


def test_partitions_of_a_topic_are_told_as_one_and_the_latest_head_counts() -> None:
    partitions = (
        replace(PARTITION, newest_release_ms=9_000),
        replace(PARTITION, topic=f"{DUE}.tw.tier-1d-partition-1", newest_release_ms=7_500, alive=False),
        replace(PARTITION, topic=f"{DUE}.tw.tier-5d", newest_release_ms=99_000, connected=False),
    )
    told = {
        (sample.metric.name, sample.labels): sample.value
        for sample in of_relay(DUE, RelayStatus(relay_id="r", ready=True, partitions=partitions), now_ms=10_000)
    }
    one, other = (DUE, "r", f"{DUE}.tw.tier-1d"), (DUE, "r", f"{DUE}.tw.tier-5d")
    assert told["timewheel_relay_hops_total", (*one, "on_time")] == 20
    assert told["timewheel_relay_hops_total", (*one, "late")] == 6
    assert told["timewheel_relay_entries_written_total", other] == 8
    assert told["timewheel_relay_head_late_seconds", one] == 2.5
    assert told["timewheel_relay_head_late_seconds", other] == 0
    assert told["timewheel_relay_in_flight_bytes", one] == 18
    assert told["timewheel_relay_partitions", (DUE, "r", "holding")] == 3
    assert told["timewheel_relay_stuck_partitions", (DUE, "r")] == 1
    assert told["timewheel_relay_disconnected_partitions", (DUE, "r")] == 1


def test_events_are_counted_by_name() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for _ in range(3):
        metrics.count_event(HandlerFailed(timer_id="a", error="b"))
    metrics.count_event(TokenExpired(source="f", expired_at_ms=1))

    found = scraped(registry)
    assert found[of("events_total", event="handler_failed", level="warning")] == 3
    assert found[of("events_total", event="token_expired", level="error")] == 1
    assert found[of("events_total", event="hook_failed", level="error")] == 0, "else its first would be no increase"


@given(st.lists(st.integers(-5, 4_000_000), max_size=50))
def test_a_histogram_counts_as_its_definition_says(late: list[int]) -> None:
    lateness = Lateness()
    for late_ms in late:
        lateness.add(late_ms)
    counted = lateness.counted()
    at_most = [sum(max(one, 0) <= bound for one in late) for bound in (*BOUNDS_MS, float("inf"))]
    assert [sum(counted.counts[: number + 1]) for number in range(len(at_most))] == at_most
    assert counted.sum_ms == sum(max(one, 0) for one in late)


def test_a_tally_knows_what_became_of_sends() -> None:
    from timewheel.core.errors import BadTimerId, SendFailed, SendOutcomeUnknown

    tally = Counters()
    tally.ended(10, [SendFailed("a", "t", "x"), SendOutcomeUnknown("b", "t", "x")])
    tally.raised(BadTimerId("", "empty"))
    tally.raised(KeyboardInterrupt())
    assert tally.counts(2, 0) == ProducerCounts(stored=8, refused=1, failed=1, unknown=1, pending=2)


def test_only_the_worst_subscriptions_are_told_and_the_others_counted() -> None:
    facts = {"backlog": 20, "delayed": 5, "unacked": 3}
    snapshot = snapshot_of(*(gap_status(5 - number, topic=f"t{number}", **facts) for number in range(5)), topics=5)
    snapshots = GapHistory()
    snapshots.add(snapshot)
    samples = list(of_snapshot(snapshot, snapshots, most=2))
    told = {(sample.metric.name, sample.labels): sample.value for sample in samples}
    assert told["timewheel_exporter_left_out", ()] == 3
    assert {labels for name, labels in told if name == "timewheel_gaps"} == {("t0", "s"), ("t1", "s")}
    assert told["timewheel_gap_limit_used_ratio", ("t0", "s")] == 0.5
    assert told["timewheel_backlog_entries", ("t0", "s", "ready")] == 12
    assert told["timewheel_backlog_entries", ("t0", "s", "unknown")] == 0
    assert "timewheel_gap_growth_per_hour" not in {name for name, _ in told}, "one look knows no growth"


def test_a_counter_does_not_fall_when_one_of_several_roles_ends() -> None:
    """A fall is a beginning to Prometheus: all that is left would count once more, and an alert would fire."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    first, second = Role(ConsumerCounts(handed=3, held=1)), Role(ConsumerCounts(handed=5, held=2))
    for role in (first, second):
        metrics.watch_consumer(role)  # type: ignore[type-var]
        role.lateness.add(1)
    labels = {"due_topic": DUE, "subscription": "billing"}
    assert scraped(registry)[of("consumer_handed_total", **labels)] == 8

    del first, role
    gc.collect()
    for _ in range(2):
        found = scraped(registry)
        assert found[of("consumer_handed_total", **labels)] == 8
        assert found[of("consumer_lateness_seconds_count", **labels)] == 2
        assert found[of("consumer_lateness_seconds_bucket", **labels, le="0.001")] == 2
        assert found[of("consumer_held", **labels)] == 2, "a gauge is of those that live"

    third = Role(ConsumerCounts(handed=1))
    metrics.watch_consumer(third)  # type: ignore[type-var]
    assert scraped(registry)[of("consumer_handed_total", **labels)] == 9
    del second, third
    gc.collect()
    assert not [name for name, _ in scraped(registry) if "consumer" in name], "nothing is kept for ever"


def test_many_may_scrape_while_roles_end() -> None:
    failed: list[BaseException] = []

    def scrape(metrics: Metrics) -> None:
        try:
            metrics.collect()
        except BaseException as error:  # noqa: BLE001 - to be told in the test's own thread
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            metrics = Metrics(CollectorRegistry())
            for _ in range(50):
                metrics.watch_producer(Role(ProducerCounts()))  # type: ignore[type-var]
            scrapes = [threading.Thread(target=scrape, args=(metrics,)) for _ in range(4)]
            for thread in scrapes:
                thread.start()
            for thread in scrapes:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []


HERE: dict[str, Any] = {
    "/brokers/configuration/runtime": {},
    "/brokers/version": "4.0.7",
    "/persistent/acme/crm": ["persistent://acme/crm/t"],
    "/persistent/acme/crm/t/stats": stats(),
}
"""A namespace with one topic."""


def exporter(targets: list[str], answers: dict[str, Any]) -> tuple[Exporter, CollectorRegistry, list[Event]]:
    told: list[Event] = []
    made = Exporter(Cluster(answers).client(), targets, (), hooks=(told.append,))
    registry = CollectorRegistry()
    registry.register(made)
    return made, registry, told


def test_a_target_that_is_not_there_hides_no_other() -> None:
    for targets in (["acme/gone", "acme/crm"], ["acme/crm", "persistent://acme/crm/gone", "nobody"]):
        made, registry, events = exporter(targets, HERE)
        assert made.inspect()
        found = scraped(registry)
        assert found[of("gaps", topic="persistent://acme/crm/t", subscription="s")] == 0
        assert found[of("exporter_unseen")] == len(targets) - 1
        assert events == []


def test_a_look_that_finds_none_of_its_targets_has_failed() -> None:
    made, registry, events = exporter(["acme/gone", "nobody"], HERE)
    assert not made.inspect()
    assert [type(event) for event in events] == [SnapshotFailed]
    assert scraped(registry)[of("exporter_snapshots_failed_total")] == 1
    assert of("exporter_unseen") not in scraped(registry), "nothing was seen, and 0 would be a claim"


def test_what_was_seen_is_told_on_when_no_broker_answers() -> None:
    answers = dict(HERE)
    made, registry, _ = exporter(["acme/crm"], answers)
    assert made.inspect()
    before = scraped(registry)
    answers["/persistent/acme/crm"] = 503
    assert not made.inspect()
    assert scraped(registry) == {**before, of("exporter_snapshots_failed_total"): 1}


def test_what_should_never_be_raised_is_told_and_the_next_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made, registry, events = exporter(["acme/crm"], HERE)
    with monkeypatch.context() as patched:
        patched.setattr("timewheel.metrics.exporting.inspect_gaps", lambda *_, **__: 1 / 0)
        assert not made.inspect()
    assert (events[-1].name, events[-1].fields["error"]) == ("snapshot_failed", "ZeroDivisionError('division by zero')")
    assert scraped(registry)[of("exporter_snapshots_failed_total")] == 1
    assert made.inspect()


def test_an_exporter_looks_until_it_is_told_to_end() -> None:
    made, registry, _ = exporter(["acme/crm"], HERE)
    running = threading.Thread(target=made.run, args=(HOUR_MS,))
    running.start()
    eventually(lambda: made.is_fresh(HOUR_MS), 10)
    assert scraped(registry)[of("exporter_interval_seconds")] == 3_600
    made.end()
    running.join(10)
    assert not running.is_alive(), "it does not sit the pause out"


SHADOWED = shadow_of(Tiered(window_ms=60_000, tiers_ms=(60_000,)), due_topic=DUE, guard_ms=30_000, max_delay_ms=600_000)
DECISIONS = {decision.value: 0 for decision in MoveDecision}
IDLE = MoverStatus(
    topic=f"{DUE}-partition-0", leads=False, alive=True, caught_up=False, moved=0, deduplicated=0, acked_again=0,
    nudges=0, failures=0, decisions=DECISIONS, lag_p50_ms=None, lag_p99_ms=None, reason=None,
)  # fmt: skip
BUSY = replace(
    IDLE, leads=True, caught_up=True, moved=10, deduplicated=2, acked_again=3, nudges=4, failures=5,
    decisions={**DECISIONS, "moved": 12, "near": 6}, lag_p50_ms=20, lag_p99_ms=1_500,
)  # fmt: skip
SLOW = replace(BUSY, caught_up=False, alive=False, lag_p50_ms=10, lag_p99_ms=2_000)


@dataclass
class OneShadow:
    """Has what a collector reads of a shadow."""

    status: ShadowStatus
    relay_id: str = "mover"
    plan: Plan = SHADOWED

    def shadow_status(self) -> ShadowStatus:
        return self.status


def status_of(*movers: MoverStatus, **more: Any) -> ShadowStatus:
    return ShadowStatus(**{"state": State.SHADOWING, "refusal": "", "acked_originals": 7, "movers": movers, **more})


def reported_of(*shadows: OneShadow) -> dict[str, float]:
    """By name without the labels that all have, and the others in the order of their names."""
    registry = CollectorRegistry()
    Metrics(registry).watch_shadows(lambda: shadows)
    same = {"due_topic": DUE, "relay_id": "mover"}
    found = {}
    for (name, labels), value in scraped(registry).items():
        more = sorted(set(labels) - set(same.items()))
        if name.startswith("timewheel_shadow_"):
            found[" ".join([name.removeprefix("timewheel_shadow_"), *(text for _, text in more)])] = value
    return found


def test_partitions_are_told_as_one_and_the_longest_of_lags() -> None:
    found = reported_of(OneShadow(status_of(IDLE, BUSY, SLOW)))
    assert (found["partitions"], found["led_partitions"], found["caught_up_partitions"]) == (3, 2, 1)
    assert found["stuck_partitions"] == 1
    assert (found["moved_total"], found["acked_total"], found["acked_again_total"]) == (20, 7, 6)
    assert (found["deduplicated_total"], found["nudges_total"], found["sessions_failed_total"]) == (4, 8, 10)
    assert (found["lag_seconds 0.5"], found["lag_seconds 0.99"], found["guard_seconds"]) == (0.02, 2.0, 30)


def test_every_fate_and_every_state_is_a_series_from_the_beginning() -> None:
    """Of a series that begins with 1, Prometheus sees no increase."""
    found = reported_of(OneShadow(status_of(IDLE, BUSY)))
    decisions = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("entries_total")}
    assert decisions == {**DECISIONS, "moved": 12, "near": 6}
    states = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("state")}
    assert states == {**{state.value: 0 for state in State}, "shadowing": 1}


def test_a_lag_that_is_not_known_is_absent_and_a_refusal_is_told() -> None:
    found = reported_of(OneShadow(status_of(IDLE, refusal="a subscription is Exclusive")))
    assert not [name for name in found if name.startswith("lag")]
    assert found["refused"] == 1
    assert reported_of(OneShadow(status_of(IDLE)))["refused"] == 0


def test_a_story_is_json_of_all() -> None:
    story = status_of(BUSY, refusal="no").story()
    assert (story["state"], story["refusal"], story["acked_originals"]) == ("shadowing", "no", 7)
    assert (story["movers"][0]["leads"], story["movers"][0]["decisions"]["near"]) == (True, 6)
